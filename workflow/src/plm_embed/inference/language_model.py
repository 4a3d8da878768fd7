"""A language model held in memory: what `plm_embed.load` returns, and `plm_embed.embed` uses."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypedDict, Unpack, cast, get_args, overload

import numpy as np
import torch
from numpy.typing import NDArray

from plm_embed.errors import ConfigError, PlmEmbedError, WeightsError, whole_number
from plm_embed.fingerprint import (
    MATRICES,
    SCORES,
    SPANS,
    ComputeDtype,
    Fingerprint,
    LongSequences,
    Pooling,
    Score,
    Strand,
    pooling_and_layer,
)
from plm_embed.inference import loading
from plm_embed.inference.inputs import (
    NamedSequence,
    SequenceInput,
    named_sequences,
    refuse,
    substitutions,
)
from plm_embed.inference.loading import Room
from plm_embed.inference.settings import DeviceName, Settings, check_word, resolved
from plm_embed.inference.vector_stream import MASKED, LeftOut, Vectors, VectorStream
from plm_embed.inference.weights import prepared_weights, with_sha256
from plm_embed.io.terminal import progress
from plm_embed.kernels import devices
from plm_embed.models.checkpoints import model_of
from plm_embed.sequence_windows import span_ends, spans
from plm_embed.sequences.residues import ResiduePolicy
from plm_embed.sequences.settings import OnError
from plm_embed.store.hdf5 import decode, encode

Array = NDArray[np.float32]
Pooled = Literal["mean", "mean_special", "bos", "max", "mean_chain1", "mean_chain2"]
Long = LongSequences | Mapping[str, Any] | None
BATCHES_AT_ONCE = 16
"""Batches' worth of sequences that `stream` collects, so that they can be packed well."""
_LEFT_OUT: dict[LeftOut, str] = {
    "out_of_memory": "out_of_memory: it does not fit into the device's memory",
    "too_many_tokens": "too_many_tokens: more than the model has positions for",
}


class TokenRows(NamedTuple):
    """A matrix (T, D), and the letters (T, 2) of each token in the normalized sequence: the first,
    and one past the last.
    """

    vectors: Array
    spans: NDArray[np.int64]


class EmbedOptions(TypedDict, total=False):
    """Further options of `embed`."""

    layer: int
    long_sequences: Long
    on_error: OnError
    bar: bool


class LanguageModel(AbstractContextManager["LanguageModel"]):
    """A language model on one device, checked against its golden vectors when it is loaded.

    A context manager. Threads may share it, and several models may be loaded: calls wait for each
    other. What a call changes of torch's settings (threads, precision) it puts back.
    """

    def __init__(
        self,
        model: str,
        weights: str | Path | None = None,
        *,
        device: DeviceName = "auto",
        dtype: ComputeDtype | Literal["auto"] = "auto",
        threads: int | None = None,
        strand: Strand = "as_given",
        linker: str = "",
    ) -> None:
        """Choose model and device, as `plm_embed.load`. The weights are loaded by `load`, or when
        they are first needed: so nothing wrong waits for a download.
        """
        check_word("device", device, get_args(DeviceName))
        check_word("dtype", dtype, ("auto", *get_args(ComputeDtype)))
        check_word("strand", strand, get_args(Strand))
        if threads is not None:
            threads = min(whole_number("threads", threads, above_zero=True), devices.cores())
        self._model, self._weights, self._threads = model_of(model, weights), weights, threads
        self._family = self._model.family
        if not isinstance(linker, str):
            raise ConfigError(f"linker: {linker!r} is no text of residues", key="linker")
        alphabet = "protein_pair" if linker else self._family.alphabet.name
        self.policy, self._linker = ResiduePolicy(alphabet=alphabet, strand=strand), linker
        self.device = devices.choose_device(device)
        if dtype != "auto":
            devices.choose_dtype(dtype, self.device)
        self._setting = self.dtype = dtype
        """In which it computes; `auto` until the weights are loaded."""
        self._room: Room | None = None
        self._closed = False

    def load(self, *, scores: bool = False) -> Self:
        """Load the weights, for `scores` with the head of the language model, unless they are
        loaded.
        """
        self._loaded(scores=scores)
        return self

    def _loaded(self, *, scores: bool = False) -> Room:
        """Return the engine with its room for batches, loaded when it is first needed."""
        if self._closed:
            name = self._model.name
            raise PlmEmbedError(f"the model {name} was closed", remedy="load it again")
        if self._room is None or (scores and not self._room.engine.head):
            self.manifest = prepared_weights(self._model, self._weights, scores=scores)
            self._room = None  # its memory is needed
            self.dtype = devices.choose_dtype(
                self._setting, self.device, self.manifest.roundings, self.manifest.model
            )
            with devices.as_set_up(self.device, self._threads, self.dtype):
                folder = self.manifest.path
                self._room, _ = loading.load(folder, self.device, self.dtype, scores=scores)
        return self._room

    def __repr__(self) -> str:
        shape = f"{self._model.name}: {self._model.layers} layers, width {self._model.dim}"
        return f"<{shape}, {self.dtype} on {self.device}>"

    def close(self) -> None:
        """Give its memory back; it can't be used any more."""
        self.__exit__()

    def __exit__(self, *_: object) -> None:
        with devices.ALONE:
            self._room, self._closed = None, True
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def fingerprint(
        self,
        pooling: Pooling | None = "mean",
        layer: int = -1,
        long_sequences: Long = None,
        scores: Sequence[Score] = (),
    ) -> Fingerprint:
        """Return the fingerprint of vectors that are made so, which are stored in float32, or with
        `pooling` None of scores alone. ConfigError for those that the model cannot give.
        """
        if pooling:
            check_word("pooling", pooling, get_args(Pooling))
        for name in scores:
            check_word("scores", name, SCORES)
        if isinstance(long_sequences, Mapping):
            for key in long_sequences:
                check_word("long_sequences", key, ("policy", "max_residues", "overlap"))
            long_sequences = LongSequences(**long_sequences)
        if not isinstance(long_sequences, LongSequences | None):
            words = "long_sequences: a dictionary of policy, max_residues and overlap"
            raise ConfigError(words, key="long_sequences")
        if pooling == "per_token" and self.policy.strand == "canonical":
            raise ConfigError(
                "per_token cannot be used with strand canonical here: no result would say "
                "which sequences were reversed",
                key="pooling",
            )
        settings = Settings(
            layers=(whole_number("layer", layer),),
            pooling=(pooling,) if pooling else (),
            compute_dtype=self._setting,
            scores=tuple(scores),
            storage_dtype="float32",
            long_sequences=long_sequences or LongSequences(),
            strand=self.policy.strand,
            linker=self._linker,
        )
        settings = resolved(settings, self._model)  # an error does not wait for a download
        self._loaded(scores=bool(scores))
        return loading.fingerprint_of(self.manifest, settings, self.device)

    @overload
    def embed(
        self, sequences: SequenceInput, *, pooling: Pooled = ..., **options: Unpack[EmbedOptions]
    ) -> Array: ...

    @overload
    def embed(
        self,
        sequences: SequenceInput,
        *,
        pooling: Literal["per_residue"],
        **options: Unpack[EmbedOptions],
    ) -> list[Array]: ...

    @overload
    def embed(
        self,
        sequences: SequenceInput,
        *,
        pooling: Literal["per_token"],
        **options: Unpack[EmbedOptions],
    ) -> list[TokenRows]: ...

    def embed(
        self,
        sequences: SequenceInput,
        *,
        pooling: Pooling = "mean",
        layer: int = -1,
        long_sequences: Long = None,
        on_error: OnError = "raise",
        bar: bool = True,
    ) -> Array | list[Array] | list[TokenRows]:
        """Return the vectors (n, D) of these sequences, fp32, in their order; as
        `plm_embed.embed`.
        """
        check_word("on_error", on_error, get_args(OnError))
        named = list(named_sequences(sequences, self.policy))
        fingerprint = self.fingerprint(pooling, layer, long_sequences)
        width = self.manifest.dim
        nothing: Any = np.full(width, np.nan, np.float32)
        if pooling in MATRICES:
            nothing = np.empty((0, width), np.float32)
        if pooling == "per_token":
            nothing = TokenRows(nothing, np.empty((0, 2), np.int64))
        computed = self.vectors(named, fingerprint, on_error, bar)
        rows = [nothing if vectors is None else _array(vectors) for vectors in computed]
        return rows if pooling in MATRICES else np.array(rows, np.float32).reshape(-1, width)

    def stream(
        self,
        sequences: SequenceInput,
        *,
        pooling: Pooling = "mean",
        layer: int = -1,
        long_sequences: Long = None,
        on_error: OnError = "raise",
    ) -> Iterator[tuple[str, Any]]:
        """Yield the id and the vector, (D,) or (L, D) per residue, of one sequence after the other;
        per token its `TokenRows`.

        For more sequences than fit into memory, endless ones too: they are taken as they are
        needed, and computed some batches at a time. Ids are "" where only a sequence was given.
        Skipped sequences are left out.
        """
        check_word("on_error", on_error, get_args(OnError))
        named = named_sequences(sequences, self.policy)
        fingerprint = self.fingerprint(pooling, layer, long_sequences)
        enough = BATCHES_AT_ONCE * self._loaded().budget
        block, tokens = list[NamedSequence](), 0
        for record in chain(named, [None]):
            if record is not None:
                block.append(record)
                tokens += self._family.tokens(self._family.alphabet.length(record.sequence))
                if tokens < enough:
                    continue
            computed = self.vectors(block, fingerprint, on_error, bar=False)
            for done, vectors in zip(block, computed, strict=True):
                if vectors is not None:
                    yield done.id, _array(vectors)
            block, tokens = [], 0

    def score(
        self,
        sequences: SequenceInput,
        *,
        scores: Score | Sequence[Score] = "log_likelihood",
        long_sequences: Long = None,
        on_error: OnError = "raise",
        bar: bool = True,
    ) -> dict[Score, Array]:
        """Return scores (n,) of these sequences by name, fp32, in their order; as
        `plm_embed.score`.
        """
        names = (scores,) if isinstance(scores, str) else tuple(scores)
        check_word("on_error", on_error, get_args(OnError))
        named = list(named_sequences(sequences, self.policy))
        fingerprint = self.fingerprint(None, -1, long_sequences, names)
        nothing: Vectors = dict.fromkeys(names, np.full(1, np.nan, np.float32))
        rows = [row or nothing for row in self.vectors(named, fingerprint, on_error, bar)]
        return {name: np.array([row[name][0] for row in rows], np.float32) for name in names}

    def score_variants(self, sequence: str, variants: Sequence[str], *, bar: bool = True) -> Array:
        """Return a score (n,), fp32, of each variant of a sequence: how much more probable it is
        than the sequence itself (natural logarithm; above 0: more probable).

        A variant is a substitution such as "A23T", or several, "A23T:K30R"; residues count from 1.
        These are masked marginals (Meier et al. 2021), as ProteinGym computes them: each
        substituted residue alone is masked, and log p(new) - log p(old) there is summed over the
        substitutions. A pass is computed for each residue that any variant substitutes. InputError
        for a variant that is none, or not of this sequence.
        """
        (record,) = named_sequences([sequence], self.policy)
        refuse([record], "raise")
        text, letters = record.sequence, self._family.alphabet.letters
        changes = [substitutions(variant, text, letters) for variant in variants]
        plain = replace(self.fingerprint(None, scores=("log_likelihood",)), scores=())
        places = sorted({place for parts in changes for place, _ in parts})
        passes = self.vectors([record] * len(places), plain, "raise", bar, places)
        logs = {place: v[MASKED] for place, v in zip(places, passes, strict=True) if v}  # (V,) each
        own_tokens = self._loaded().engine.own_tokens
        old = own_tokens(text)
        sums = [
            sum(logs[place][own_tokens(new)[0]] - logs[place][old[place]] for place, new in parts)
            for parts in changes
        ]
        return np.array(sums, np.float32)

    def vectors(
        self,
        named: list[NamedSequence],
        fingerprint: Fingerprint,
        on_error: OnError = "raise",
        bar: bool = True,
        masked: Sequence[int] | None = None,
    ) -> list[Vectors | None]:
        """Return the vectors of each by representation, None for one that is skipped. Each distinct
        sequence is computed once; with `masked`, as in `VectorStream`, each pass.
        """
        length, limits = self._family.alphabet.length, fingerprint.long_sequences
        named = [
            record
            if spans(residues := length(record.sequence), limits)
            else record._replace(sequence="", problem=f"too_long ({residues} residues)")
            for record in named
        ]
        refuse(named, on_error)
        passes = [*zip((r.sequence for r in named), masked or repeat(-1), strict=False)]
        distinct = [*dict.fromkeys(run for run in passes if run[0])]
        texts, hidden = [text for text, _ in distinct], masked and [place for _, place in distinct]
        room, computed = self._loaded(scores=bool(fingerprint.scores)), dict[Any, Vectors]()
        with devices.as_set_up(self.device, self._threads, self.dtype):
            stream = VectorStream(room, fingerprint, texts, hidden)
            with progress("embed", stream.tokens, "tokens", bar) as meter:
                for step in stream.run():
                    computed |= {distinct[i]: vectors for i, vectors in step.finished}
                    meter.advance(step.counted)
        reasons = {distinct[i]: _LEFT_OUT[reason] for i, reason in stream.left_out.items()}
        problems = (reasons.get(run, "") for run in passes)
        refuse((r._replace(problem=p) for r, p in zip(named, problems, strict=True)), on_error)
        # an array of its own for each, so that none changes with another one
        return [
            {name: vector.copy() for name, vector in computed[run].items()}
            if run in computed
            else None
            for run in passes
        ]


def _array(vectors: Vectors) -> Any:
    """Return the only representation of a sequence; per token with the letters of each."""
    array = next(iter(vectors.values()))
    return TokenRows(array, span_ends(vectors[SPANS])) if SPANS in vectors else array


def embed_like(
    fingerprint: Fingerprint,
    name: str,
    sequences: SequenceInput,
    weights: str | Path | None,
    on_error: OnError = "raise",
) -> tuple[list[str], Array]:
    """Return labels (q) and vectors (q, D) of sequences as a master or store of this fingerprint
    holds them in the representation `name`, rounded as there. A label is an id, or else the
    sequence's number, from 1.

    `weights` as in `prepared_weights`; None: these very weights in the cache, else a download.
    `on_error` as in `plm_embed.embed`; what is skipped has no row and no label.
    WeightsError unless they are the very weights of the fingerprint.
    """
    check_word("on_error", on_error, get_args(OnError))
    weights = weights or with_sha256(fingerprint.model, fingerprint.weights_sha256)
    pooling, layer = pooling_and_layer(name)
    dtype = fingerprint.compute_dtype
    if dtype == "tfloat32" and not torch.cuda.is_available():
        dtype = "float32"
    with LanguageModel(
        fingerprint.model,
        weights,
        device="cpu" if dtype == "int8" else "auto",
        dtype=dtype,
        strand=fingerprint.strand,
        linker=fingerprint.linker,
    ) as model:
        named = list(named_sequences(sequences, model.policy))
        kind = model.fingerprint(cast(Pooling, pooling), layer, fingerprint.long_sequences)
        if (sha256 := kind.weights_sha256) != fingerprint.weights_sha256:
            raise WeightsError(
                f"{weights or model.manifest.model} holds other weights of {fingerprint.model} "
                f"({sha256[:12]}) than those that made these vectors "
                f"({fingerprint.weights_sha256[:12]})",
                remedy="name theirs (weights=..., or --weights)",
            )
        computed = model.vectors(named, kind, on_error)
    pairs = [(r.id or str(r.number), _array(v)) for r, v in zip(named, computed, strict=True) if v]
    matrix = np.array([vector for _, vector in pairs], np.float32)
    bits = encode(matrix.reshape(len(pairs), model.manifest.dim), fingerprint.storage_dtype)
    decoded = decode(bits, fingerprint.storage_dtype).astype(np.float32)
    return [label for label, _ in pairs], decoded
