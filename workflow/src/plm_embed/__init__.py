"""Protein sequences to language-model embeddings, from ten in a notebook to a billion on a cluster.

`embed(sequences)` computes vectors in memory, `load(model)` keeps a model for more of them,
`score(sequences)` says how probable a model finds them, `open(path)` reads what the workflow made,
and `models` has the table of models (`plm_embed.models.find_model("esm2_650m").dim`).

What is wrong with files, settings or ids is raised as a `PlmEmbedError`; its subclasses in
`plm_embed.errors` say of what kind it is.
"""

import typing as _typing

from plm_embed import errors as _errors
from plm_embed._version import __version__ as __version__
from plm_embed.errors import PlmEmbedError

if _typing.TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any, Literal

    import numpy as np
    from numpy.typing import NDArray

    from plm_embed import models as models
    from plm_embed.fingerprint import (
        ComputeDtype,
        LongSequences,
        Pooling,
        Score,
        Strand,
    )
    from plm_embed.inference.inputs import SequenceInput
    from plm_embed.inference.language_model import (
        EmbedOptions,
        LanguageModel,
        Pooled,
        TokenRows,
    )
    from plm_embed.reading.open import Embeddings
    from plm_embed.sequences.settings import OnError

    class _Options(EmbedOptions, total=False):
        weights: str | Path | None
        device: Literal["auto", "cpu", "cuda"]
        dtype: ComputeDtype | Literal["auto"]
        threads: int | None
        strand: Strand
        linker: str


__all__ = ["PlmEmbedError", "embed", "load", "models", "open", "score"]


def __getattr__(name: str) -> object:
    """Import the table of models when it is asked for."""
    if name != "models":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module("plm_embed.models")


def open(path: "str | Path") -> "Embeddings":
    """Open embeddings for reading.

    `path` is a master .h5, its .parquet index, the folder that holds them, or a results folder with
    one master: vectors by id, key and row. Or it is a store: vectors by key and row. StoreError for
    anything else.
    """
    from plm_embed.reading.open import Embeddings

    return Embeddings(_errors.some_path("path", path))


def _language_model(model: str, weights: "str | Path | None", **options: "Any") -> "LanguageModel":
    """Return a model whose weights are not loaded yet."""
    from plm_embed.startup import set_up

    set_up("embed")
    with _errors.extra():
        from plm_embed.inference.language_model import LanguageModel
    return LanguageModel(model, weights, **options)


def load(
    model: str = "esm2_t6_8M_UR50D",
    *,
    weights: "str | Path | None" = None,
    device: 'Literal["auto", "cpu", "cuda"]' = "auto",
    dtype: 'ComputeDtype | Literal["auto"]' = "auto",
    threads: int | None = None,
    strand: "Strand" = "as_given",
    linker: str = "",
) -> "LanguageModel":
    """A model in memory, for as many calls of `embed` and `stream` as wanted.

    Args:
        model: A published name or an alias, such as esm2_650m.
        weights: A checkpoint file or folder, a weights folder, or a campaign's `weights_folder`.
            None downloads the published weights once, to PLM_EMBED_WEIGHTS or
            ~/.cache/plm-embed/weights.
        device: auto is the GPU if there is one.
        dtype: The precision of the computation; auto is bfloat16 on a GPU from Ampere on, else
            float32. int8 is the fastest on most CPUs, and the least exact.
        threads: CPU threads, at most the cores that this process may use; None leaves torch's
            setting.
        strand: Of DNA; canonical: a sequence and its reverse complement have one vector.
        linker: Of pairs of protein chains, such as 25 * "G": the model reads it between the two,
            and no vector has a part of it. Empty: sequences are single chains.

    The device is first checked against vectors of the reference: DeviceError if it computes
    wrongly. WeightsError if the weights cannot be had or are not the model's.
    """
    return _language_model(
        model, weights, device=device, dtype=dtype, threads=threads, strand=strand, linker=linker
    ).load()


@_typing.overload
def embed(
    sequences: "SequenceInput",
    model: str = ...,
    *,
    pooling: "Pooled" = ...,
    **options: "_typing.Unpack[_Options]",
) -> "NDArray[np.float32]": ...


@_typing.overload
def embed(
    sequences: "SequenceInput",
    model: str = ...,
    *,
    pooling: 'Literal["per_residue"]',
    **options: "_typing.Unpack[_Options]",
) -> "list[NDArray[np.float32]]": ...


@_typing.overload
def embed(
    sequences: "SequenceInput",
    model: str = ...,
    *,
    pooling: 'Literal["per_token"]',
    **options: "_typing.Unpack[_Options]",
) -> "list[TokenRows]": ...


def embed(
    sequences: "SequenceInput",
    model: str = "esm2_t6_8M_UR50D",
    *,
    pooling: "Pooling" = "mean",
    layer: int = -1,
    long_sequences: "LongSequences | Mapping[str, Any] | None" = None,
    on_error: "OnError" = "raise",
    weights: "str | Path | None" = None,
    device: 'Literal["auto", "cpu", "cuda"]' = "auto",
    dtype: 'ComputeDtype | Literal["auto"]' = "auto",
    threads: int | None = None,
    strand: "Strand" = "as_given",
    linker: str = "",
    bar: bool = True,
) -> "NDArray[np.float32] | list[NDArray[np.float32]] | list[TokenRows]":
    """The vectors of sequences in float32 and in the order given: (n, D); for `per_residue` a list
    of matrices (L, D), and for `per_token` of matrices (T, D) with the spans (T, 2) of the tokens.

    Args:
        sequences: A list of strings, of pairs of an id and a sequence, or of records of Biopython;
            a dictionary of sequences by id; or the name of a file: FASTA, or a table with the
            columns id and sequence. With a linker each sequence is two chains, (first, second) or
            "FIRST:SECOND".
        pooling: mean or max over the residues, mean_special (over special tokens too), bos (the
            first token), mean_chain1 or mean_chain2 of pairs, per_residue, or per_token where
            tokens are several bases.
        layer: The layer whose output is taken; 0 is the embedding, -1 the last layer.
        long_sequences: Windows, or a limit, by the keys of the configuration (policy, max_residues,
            overlap); None embeds each sequence whole.
        on_error: raise an InputError for a sequence that has no vector (it names the record), or
            skip it: its row is NaN (per residue, its matrix is empty), and a warning names it.
        bar: Whether progress is drawn on a terminal or in a notebook.

    The other arguments are those of `load`. Equal sequences are computed once. The numbers are
    those of a campaign with the same settings on the same kind of machine, bit by bit, whatever
    else is computed with them.
    """
    with _language_model(
        model, weights, device=device, dtype=dtype, threads=threads, strand=strand, linker=linker
    ) as loaded:
        return loaded.embed(
            sequences,
            pooling=pooling,
            layer=layer,
            long_sequences=long_sequences,
            on_error=on_error,
            bar=bar,
        )


def score(
    sequences: "SequenceInput",
    model: str = "esm2_t6_8M_UR50D",
    *,
    scores: "Score | Sequence[Score]" = "log_likelihood",
    long_sequences: "LongSequences | Mapping[str, Any] | None" = None,
    on_error: "OnError" = "raise",
    weights: "str | Path | None" = None,
    device: 'Literal["auto", "cpu", "cuda"]' = "auto",
    dtype: 'ComputeDtype | Literal["auto"]' = "auto",
    threads: int | None = None,
    bar: bool = True,
) -> "dict[Score, NDArray[np.float32]]":
    """Score sequences by a language model; return (n,) fp32 in their order, by name of the score.
    ESM-2, ESM-1b, ESM-1v, ESM C, ProtBERT and AMPLIFY have scores.

    Args:
        sequences: As in `embed`.
        scores: log_likelihood, the mean natural log-probability of the sequence's own residues, in
            one pass without masks; entropy, the mean entropy (nats) of the distributions that this
            pass predicts; pseudo_perplexity, exp(-mean log-probability of each residue where it
            alone is masked), which takes a pass for each residue.
        long_sequences: As in `embed`. Of windows, each residue counts where it lies farther from an
            edge.
        on_error: As in `embed`; the score of a skipped sequence is NaN.
        bar: As in `embed`.

    The other arguments are those of `load`. Equal sequences are computed once, and no score depends
    on what else is computed with it. `load(model).score_variants(sequence, ["A23T"])` scores
    variants of a sequence.
    """
    with _language_model(model, weights, device=device, dtype=dtype, threads=threads) as loaded:
        return loaded.score(
            sequences, scores=scores, long_sequences=long_sequences, on_error=on_error, bar=bar
        )
