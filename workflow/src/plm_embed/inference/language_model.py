"""A language model held in memory: what `plm_embed.load` returns, and `plm_embed.embed` uses."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, NamedTuple, Self, TypedDict, Unpack, get_args, overload

import numpy as np
import torch
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import (
    SPANS,
    ComputeDtype,
    Fingerprint,
    LongSequences,
    Pooling,
    Strand,
)
from plm_embed.inference.arguments import asked, machine, residue_policy
from plm_embed.inference.inputs import Given, Named, named_sequences, refuse
from plm_embed.inference.pipeline import Vectors
from plm_embed.inference.resolve import compute_dtype, fingerprint_of
from plm_embed.inference.room import room_for
from plm_embed.inference.self_test import self_test
from plm_embed.inference.settings import known
from plm_embed.inference.vector_stream import LeftOut, VectorStream
from plm_embed.io.progress import progress
from plm_embed.kernels import devices
from plm_embed.models import weights as weights_folders
from plm_embed.models.engine import Engine
from plm_embed.models.manifest import read_manifest
from plm_embed.sequence_windows import span_ends, spans
from plm_embed.sequences.settings import OnError

Array = NDArray[np.float32]
Pooled = Literal["mean", "mean_special", "bos", "max"]
BATCHES_AT_ONCE = 16
"""How many batches' worth of sequences `stream` collects, so that they can be packed well."""
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
    """Of the vectors of one sequence, a representation per token and the spans."""
    return TokenRows(next(iter(found.values())), span_ends(found[SPANS]))


class How(TypedDict, total=False):
    """What `stream` may be told besides."""

    layer: int
    long_sequences: LongSequences | None
    on_error: OnError


class EmbedHow(How, total=False):
    """What `embed` may be told besides."""

    bar: bool


class LanguageModel:
    """A language model on one device, loaded and checked against its golden vectors.

    A context manager. Threads may share it, and several models may be loaded: calls wait for each
    other. What a call changes of torch's settings (threads, precision) it puts back.
    """

    def __init__(
        self,
        folder: Path,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        dtype: ComputeDtype | Literal["auto"] = "auto",
        threads: int | None = None,
        strand: Strand = "as_given",
    ) -> None:
        """`folder` is a weights folder; otherwise as `load`."""
        self.device, _, self._threads = machine(device, dtype, threads)
        manifest = read_manifest(folder)
        family = manifest.family
        self.policy = residue_policy(family, strand)
        self.dtype = compute_dtype(dtype, manifest, self.device)
        with devices.loading(self.device), self._settings():
            self.manifest, tensors = weights_folders.load(folder)
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
        long_sequences: LongSequences | None = None,
    ) -> Fingerprint:
        """What vectors depend on that are made so; as a campaign's that stores float32."""
        wanted = asked(pooling, layer, long_sequences, self.policy.strand, self.dtype)
        return fingerprint_of(self.manifest, wanted, self.device)

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
        long_sequences: LongSequences | None = None,
        on_error: OnError = "raise",
        bar: bool = True,
    ) -> Array | list[Array] | list[TokenRows]:
        """The vectors (n, D) of these sequences, fp32, in the order given; as `plm_embed.embed`."""
        fingerprint = self.fingerprint(pooling, layer, long_sequences)
        found = self.vectors(
            list(named_sequences(sequences, self.policy)), fingerprint, on_error, bar
        )
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
        long_sequences: LongSequences | None = None,
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
