"""A language model held in memory: what `plm_embed.load` returns, and `plm_embed.embed` uses."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypedDict, Unpack, cast, get_args, overload

import numpy as np
import torch
from numpy.typing import NDArray

from plm_embed.errors import ConfigError, PlmEmbedError, WeightsError, whole_number
from plm_embed.fingerprint import (
    SPANS,
    ComputeDtype,
    Fingerprint,
    LongSequences,
    Pooling,
    Strand,
    has_matrix,
    pooling_and_layer,
)
from plm_embed.inference.batches import room_for
from plm_embed.inference.inputs import Given, Named, named_sequences, of_kind, refuse
from plm_embed.inference.pipeline import Vectors
from plm_embed.inference.resolve import Shape, compute_dtype, fingerprint_of, resolved
from plm_embed.inference.self_test import self_test
from plm_embed.inference.settings import Settings, known
from plm_embed.inference.vector_stream import LeftOut, VectorStream
from plm_embed.inference.weights import prepared_weights, with_sha256
from plm_embed.io.progress import progress
from plm_embed.io.threads import cores
from plm_embed.kernels import devices
from plm_embed.models import weights as weights_folders
from plm_embed.models.engine import Engine
from plm_embed.models.registry import find_model
from plm_embed.sequence_windows import span_ends, spans
from plm_embed.sequences.settings import OnError, ResiduePolicy
from plm_embed.store.hdf5 import decode, encode

Array = NDArray[np.float32]
Pooled = Literal["mean", "mean_special", "bos", "max"]
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


def _token_rows(found: Vectors) -> TokenRows:
    """Return the representation per token and the spans of one sequence."""
    return TokenRows(next(iter(found.values())), span_ends(found[SPANS]))


class How(TypedDict, total=False):
    """Further options of `stream`."""

    layer: int
    long_sequences: LongSequences | Mapping[str, Any] | None
    on_error: OnError


class EmbedHow(How, total=False):
    """Further options of `embed`."""

    bar: bool


class Machine(NamedTuple):
    """The device that computes, and in which numbers. `threads` None leaves torch's setting."""

    device: torch.device
    dtype: ComputeDtype | Literal["auto"]
    threads: int | None


def machine(
    device: Literal["auto", "cpu", "cuda"] = "auto",
    dtype: ComputeDtype | Literal["auto"] = "auto",
    threads: int | None = None,
) -> Machine:
    """Choose the device. ConfigError for what is not known, DeviceError for a GPU that cannot be
    used.
    """
    known("device", device, ("auto", "cpu", "cuda"))
    known("dtype", dtype, ("auto", *get_args(ComputeDtype)))
    if threads is not None:
        threads = min(whole_number("threads", threads, above_zero=True), cores())
    chosen = devices.choose_device(device)
    if dtype != "auto":
        devices.choose_dtype(dtype, chosen)
    return Machine(chosen, dtype, threads)


def residue_policy(model: Shape, strand: Strand) -> ResiduePolicy:
    """Return the rules for a model's letters. ConfigError for a strand that its sequences do not
    have.
    """
    known("strand", strand, get_args(Strand))
    return ResiduePolicy(alphabet=model.family.alphabet.name, strand=strand)


def settings_of(  # noqa: PLR0917
    model: Shape,
    name: str,
    strand: Strand,
    pooling: Pooling,
    layer: int,
    long_sequences: LongSequences | Mapping[str, Any] | None,
) -> Settings:
    """Return the settings of one kind of vectors, as a campaign's that stores float32. ConfigError
    for vectors that the model cannot give.
    """
    known("pooling", pooling, get_args(Pooling))
    if isinstance(long_sequences, Mapping):
        names = ("policy", "max_residues", "overlap")
        for key in long_sequences:
            known("long_sequences", key, names)
        long_sequences = LongSequences(**long_sequences)
    if not isinstance(long_sequences, LongSequences | None):
        raise ConfigError(
            "long_sequences: a dictionary of policy, max_residues and overlap", key="long_sequences"
        )
    if pooling == "per_token" and strand == "canonical":
        raise ConfigError(
            "per_token with strand canonical: nothing here says which sequences were turned",
            key="pooling",
        )
    settings = Settings(
        layers=(whole_number("layer", layer),),
        pooling=(pooling,),
        storage_dtype="float32",
        long_sequences=long_sequences or LongSequences(),
        strand=strand,
    )
    return resolved(settings, model, name)


class LanguageModel:
    """A language model on one device, loaded and checked against its golden vectors.

    A context manager. Threads may share it, and several models may be loaded: calls wait for each
    other. What a call changes of torch's settings (threads, precision) it puts back.
    """

    def __init__(
        self, folder: Path, on: Machine | None = None, policy: ResiduePolicy | None = None
    ) -> None:
        """`folder` is a weights folder; `on`: without one, as `load` chooses; `policy`: without
        one, that of the model's letters.
        """
        self.device, dtype, self._threads = on or machine()
        self.manifest, tensors = weights_folders.load(folder)
        self.policy = policy or residue_policy(self.manifest, "as_given")
        self.dtype = compute_dtype(dtype, self.manifest, self.device)
        with devices.loading(self.device), self._settings():
            self._engine: Engine | None = Engine(self.manifest, tensors, self.device, self.dtype)
            self._room = room_for(self._engine, [self.manifest.layers])
            self_test(self._engine, folder, self._room.budget)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        said = f"{self.manifest.model}: {self.manifest.layers} layers, width {self.manifest.dim}"
        return f"<{said}, {self.dtype} on {self.device}>"

    def close(self) -> None:
        """Give its memory back; it can't be used any more."""
        with devices.ALONE:
            self._engine = None
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _settings(self) -> AbstractContextManager[None]:
        """Alone, with what torch has to be told for this model."""
        return devices.as_set_up(self.device, self._threads, self.dtype)

    def fingerprint(
        self,
        pooling: Pooling = "mean",
        layer: int = -1,
        long_sequences: LongSequences | Mapping[str, Any] | None = None,
    ) -> Fingerprint:
        """Return what vectors depend on that are made so; as a campaign's that stores float32."""
        strand, name = self.policy.strand, self.manifest.model
        settings = settings_of(self.manifest, name, strand, pooling, layer, long_sequences)
        return fingerprint_of(self.manifest, settings, self.device, self.dtype)

    @overload
    def embed(
        self, sequences: Given, *, pooling: Pooled = ..., **how: Unpack[EmbedHow]
    ) -> Array: ...

    @overload
    def embed(
        self, sequences: Given, *, pooling: Literal["per_residue"], **how: Unpack[EmbedHow]
    ) -> list[Array]: ...

    @overload
    def embed(
        self, sequences: Given, *, pooling: Literal["per_token"], **how: Unpack[EmbedHow]
    ) -> list[TokenRows]: ...

    def embed(
        self,
        sequences: Given,
        *,
        pooling: Pooling = "mean",
        layer: int = -1,
        long_sequences: LongSequences | Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
        bar: bool = True,
    ) -> Array | list[Array] | list[TokenRows]:
        """The vectors (n, D) of these sequences, fp32, in the order given; as `plm_embed.embed`."""
        fingerprint = self.fingerprint(pooling, layer, long_sequences)
        return self._arrays(sequences, fingerprint, on_error, bar)

    def _arrays(
        self, sequences: Given, fingerprint: Fingerprint, on_error: OnError, bar: bool
    ) -> Array | list[Array] | list[TokenRows]:
        (pooling,) = fingerprint.pooling
        named = list(named_sequences(sequences, self.policy))
        found = self.vectors(named, fingerprint, on_error, bar)
        nothing = np.empty((0, self.manifest.dim), np.float32)
        if pooling == "per_residue":
            return [nothing if each is None else next(iter(each.values())) for each in found]
        if pooling == "per_token":
            none = TokenRows(nothing, np.empty((0, 2), np.int64))
            return [none if each is None else _token_rows(each) for each in found]
        pooled = np.full((len(found), self.manifest.dim), np.nan, np.float32)
        for row, each in zip(pooled, found, strict=True):
            if each is not None:
                (row[:],) = each.values()
        return pooled

    @overload
    def stream(
        self,
        sequences: Given,
        *,
        pooling: Pooled | Literal["per_residue"] = ...,
        **how: Unpack[How],
    ) -> Iterator[tuple[str, Array]]: ...

    @overload
    def stream(
        self, sequences: Given, *, pooling: Literal["per_token"], **how: Unpack[How]
    ) -> Iterator[tuple[str, TokenRows]]: ...

    def stream(
        self,
        sequences: Given,
        *,
        pooling: Pooling = "mean",
        layer: int = -1,
        long_sequences: LongSequences | Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
    ) -> Iterator[tuple[str, Array | TokenRows]]:
        """The id and the vector, (D,) or (L, D) per residue, of one sequence after the other; per
        token its rows and what letters they stand for.

        For more sequences than fit into memory, endless ones too: they are taken as they are
        needed, and computed some batches at a time. Ids are "" where only a sequence was given.
        Skipped sequences are left out.
        """
        fingerprint = self.fingerprint(pooling, layer, long_sequences)
        named = named_sequences(sequences, self.policy)
        while block := list(self._block(named)):
            found = self.vectors(block, fingerprint, on_error, bar=False)
            for one, vector in zip(block, found, strict=True):
                if vector is not None:
                    tokens = SPANS in vector
                    yield one.id, _token_rows(vector) if tokens else next(iter(vector.values()))

    def _block(self, named: Iterator[Named]) -> Iterator[Named]:
        wanted = BATCHES_AT_ONCE * self._room.budget
        for one in named:
            yield one
            wanted -= self.manifest.family.tokens(len(one.sequence))
            if wanted <= 0:
                return

    def _ready(self) -> Engine:
        if self._engine is None:
            raise PlmEmbedError(
                f"the model {self.manifest.model} was closed", remedy="load it again"
            )
        return self._engine

    def vectors(
        self,
        named: list[Named],
        fingerprint: Fingerprint,
        on_error: OnError = "raise",
        bar: bool = True,
    ) -> list[Vectors | None]:
        """The vectors of each by representation, None for one that is skipped. Each distinct
        sequence is computed once.
        """
        known("on_error", on_error, get_args(OnError))
        policy = fingerprint.long_sequences
        named = [
            one
            if one.wrong or spans(len(one.sequence), policy)
            else one._replace(wrong=f"too_long ({len(one.sequence)} residues)")
            for one in named
        ]
        refuse((one for one in named if one.wrong), on_error)
        distinct = list(dict.fromkeys(one.sequence for one in named if not one.wrong))
        todo = list(range(len(distinct)))
        found: dict[str, Vectors] = {}
        with self._settings():
            stream = VectorStream(self._ready(), self._room, fingerprint, distinct)
            with progress("embed", stream.tokens(todo), "tokens", bar) as meter:
                for step in stream.run(todo):
                    for i, vectors in step.finished:
                        found[distinct[i]] = vectors
                    meter.advance(step.counted)
        left_out = {distinct[i]: _LEFT_OUT[why] for i, why in stream.left_out.items()}
        refuse(
            (
                one._replace(wrong=left_out[one.sequence])
                for one in named
                if not one.wrong and one.sequence not in found
            ),
            on_error,
        )
        # an array of its own for each, so that none changes with another one
        return [
            None
            if one.wrong or one.sequence not in found
            else {name: vector.copy() for name, vector in found[one.sequence].items()}
            for one in named
        ]


def embed(  # noqa: PLR0917
    sequences: Given,
    model: str,
    weights: str | Path | None,
    on: tuple[Literal["auto", "cpu", "cuda"], ComputeDtype | Literal["auto"], int | None],
    strand: Strand,
    kind: tuple[Pooling, int, LongSequences | Mapping[str, Any] | None],
    on_error: OnError,
    bar: bool,
) -> Array | list[Array] | list[TokenRows]:
    """Return the vectors of sequences, as `plm_embed.embed`: `kind` is its pooling, layer and
    long_sequences, `on` its device, dtype and threads. What is wrong with the call is said before
    weights are downloaded or loaded for it.
    """
    known("on_error", on_error, get_args(OnError))
    chosen = find_model(model)
    policy = residue_policy(chosen, strand)
    settings = settings_of(chosen, chosen.name, strand, *kind)
    sequences = of_kind(sequences, chosen.family.alphabet)
    place = machine(*on)
    with LanguageModel(prepared_weights(chosen, weights), place, policy) as loaded:
        fingerprint = fingerprint_of(loaded.manifest, settings, loaded.device, loaded.dtype)
        return loaded._arrays(sequences, fingerprint, on_error, bar)


def load(
    model: str,
    weights: str | Path | None,
    on: tuple[Literal["auto", "cpu", "cuda"], ComputeDtype | Literal["auto"], int | None],
    strand: Strand,
) -> LanguageModel:
    """Load a model, as `plm_embed.load`. What is asked for wrongly does not wait for a download."""
    chosen = find_model(model)
    place, policy = machine(*on), residue_policy(chosen, strand)
    return LanguageModel(prepared_weights(chosen, weights), place, policy)


def embed_like(
    fingerprint: Fingerprint,
    name: str,
    sequences: Given,
    weights: str | Path | None,
    on_error: OnError = "raise",
) -> tuple[list[str], Array]:
    """Return names (q) and vectors (q, D) of sequences as a master or store of this fingerprint
    holds them as `name`, rounded as there. A name is an id, or else the sequence's number, from 1.

    `weights` as in `prepared_weights`; None: these very weights in the cache, else a download.
    `on_error` as in `plm_embed.embed`; what is skipped has no row and no name.
    WeightsError unless they are the very weights of the fingerprint.
    """
    known("on_error", on_error, get_args(OnError))
    chosen = find_model(fingerprint.model)
    weights = weights or with_sha256(fingerprint.model, fingerprint.weights_sha256)
    folder = prepared_weights(chosen, weights)
    pooled = next(part for part in fingerprint.representations if not has_matrix(part))
    pooling, layer = pooling_and_layer(pooled if name == "emb" else name)
    dtype = fingerprint.compute_dtype
    if dtype == "tfloat32" and not torch.cuda.is_available():
        dtype = "float32"
    policy = residue_policy(chosen, fingerprint.strand)
    with LanguageModel(folder, machine(dtype=dtype), policy) as model:
        if (held := model.manifest.weights_sha256) != fingerprint.weights_sha256:
            raise WeightsError(
                f"{folder} holds other weights of {fingerprint.model} ({held[:12]}) than those "
                f"that made these vectors ({fingerprint.weights_sha256[:12]})",
                path=folder,
                remedy="name theirs (weights=..., or --weights)",
            )
        named = list(named_sequences(sequences, model.policy))
        like = model.fingerprint(cast(Pooling, pooling), layer, fingerprint.long_sequences)
        computed = model.vectors(named, like, on_error)
    vectors = [next(iter(found.values())) for found in computed if found]
    matrix = np.array(vectors, np.float32).reshape(len(vectors), model.manifest.dim)
    bits = encode(matrix, fingerprint.storage_dtype)
    labels = [
        record.id or str(record.number)
        for record, found in zip(named, computed, strict=True)
        if found
    ]
    return labels, decode(bits, fingerprint.storage_dtype).astype(np.float32)
