"""Sequences in memory to their vectors: cut into windows, packed, computed, put together."""

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch

from plm_embed.errors import PlmEmbedError, out_of_memory
from plm_embed.fingerprint import Fingerprint
from plm_embed.inference.batches import Packer, Room, TokensAhead
from plm_embed.inference.pipeline import (
    LARGEST,
    Inference,
    Launched,
    Prefetch,
    Vectors,
    largest_number,
)
from plm_embed.kernels import devices
from plm_embed.models.engine import Engine
from plm_embed.models.packed_batch import Batch
from plm_embed.sequence_windows import Span, spans, whole
from plm_embed.store.hdf5 import largest

log = logging.getLogger(__name__)
LeftOut = Literal["out_of_memory", "too_many_tokens"]
Piece = tuple[int, Span]
"""The index of a sequence, and which of its residues go through the model at once."""


class Step(NamedTuple):
    """The outcome of one batch: how many tokens it had, how many it counts for in
    `VectorStream.tokens`, and the sequences that it finished.
    """

    tokens: int
    counted: int
    finished: list[tuple[int, Vectors]]


@dataclass
class VectorStream:
    """Computes the vectors of normalized `sequences`, in whatever order keeps the device busy."""

    model: Engine
    room: Room
    fingerprint: Fingerprint
    sequences: list[str]
    left_out: dict[int, LeftOut] = field(default_factory=dict)
    """Indices of sequences that have no vector, and why: they did not fit into the device's memory
    even alone, or have more tokens than the model has positions for.
    """
    busy: float = 0.0
    """Seconds that the device was at work."""
    exact: int = 0
    """Sequences that were computed in fp32, because float16 could not hold their numbers."""

    def tokens(self, todo: list[int]) -> int:
        """Tokens of the sequences `todo`, special ones included: what the steps add up to. An
        estimate where letters do not tell them.
        """
        return sum(self._cost(piece) for piece in self._pieces(todo))

    def run(self, todo: list[int]) -> Iterator[Step]:
        """The vectors of the sequences `todo` (indices), batch after batch; each sequence once.

        A sequence that the long-sequence policy gives no vector must not be among them. Raises
        DeviceError when the device is of no more use, PlmEmbedError when a number is not finite or
        too large for the storage type.
        """
        self.room.least = self.room.budget
        pieces = self._pieces(todo)
        counted = [self._cost(piece) for piece in pieces]
        costs = counted.copy()
        inference = Inference(self.model, self.fingerprint)
        waiting: dict[int, dict[Span, Vectors]] = {}
        for batch, vectors in self._results(inference, pieces, costs):
            finished = []
            for at, found in zip(batch, vectors, strict=True):
                i, span = pieces[at]
                windows = waiting.setdefault(i, {})
                windows[span] = found
                if len(windows) == len(self._spans(i)):
                    finished.append((i, self._whole(i, waiting.pop(i))))
            self.busy, self.exact = inference.busy, inference.exact
            yield Step(sum(costs[at] for at in batch), sum(counted[at] for at in batch), finished)

    def _pieces(self, todo: list[int]) -> list[Piece]:
        return [(i, span) for i in todo for span in self._spans(i)]

    def _spans(self, i: int) -> list[Span]:
        return spans(len(self.sequences[i]), self.fingerprint.long_sequences)

    def _cost(self, piece: Piece) -> int:
        start, stop = piece[1]
        return self.model.manifest.family.tokens(stop - start)

    def _results(
        self, inference: Inference, pieces: list[Piece], costs: list[int]
    ) -> Iterator[tuple[list[int], list[Vectors]]]:
        """The indices and vectors of batch after batch of pieces. `costs` become the true ones."""

        def texts(batch: Sequence[int]) -> list[str]:
            return [
                self.sequences[i][start:stop] for i, (start, stop) in (pieces[at] for at in batch)
            ]

        def prepare(batch: list[int]) -> Batch:
            return self.model.prepare(texts(batch)) if known else ahead.prepare(batch)

        known = self.model.manifest.family.token_per_letter
        lengths = [stop - start for _, (start, stop) in pieces]
        ahead = TokensAhead(self.model, lengths, texts, self.room.budget, costs)
        packer = Packer(costs if known else (), self.room.budget, () if known else ahead.blocks())
        cuda = self.model.device.type == "cuda"
        launched: deque[tuple[list[int], Launched]] = deque()
        with Prefetch(packer, costs, prepare, ahead=2 if cuda else 0) as batches:
            while True:
                batch: list[int] = []
                exhausted = False
                try:
                    taken = batches.next()
                    if not taken and not launched:
                        self._leave_out({pieces[at][0] for at in ahead.too_many})
                        return
                    if taken:
                        batch = taken[0]
                        launched.append((batch, inference.launch(texts(batch), taken[1])))
                        if len(launched) <= cuda:
                            # a GPU has one batch in hand while the host looks at the one before
                            continue
                    batch, waited_for = launched.popleft()
                    vectors = inference.collect(waited_for)
                except (RuntimeError, MemoryError) as error:
                    if lost := devices.failure(error, self.model.device):
                        raise lost from error
                    if not out_of_memory(error):
                        raise
                    exhausted = True
                if exhausted:  # only now: the error held on to the tensors of the call that failed
                    self._make_room(batches, pieces, costs, batch or batches.give_up())
                else:
                    if self.room.grow():
                        packer.budget, self.model.rows = self.room.budget, self.room.rows
                    yield batch, vectors

    def _leave_out(self, wordy: Iterable[int]) -> None:
        """Take note of the sequences that have more tokens than the model has positions."""
        for i in wordy:
            self.left_out[i] = "too_many_tokens"
            log.warning(
                "a sequence of %d letters makes more than %d tokens, for unknown letters are one "
                "each: skipped",
                len(self.sequences[i]),
                self.model.manifest.family.max_tokens,
            )

    def _make_room(
        self, batches: Prefetch, pieces: list[Piece], costs: list[int], batch: list[int]
    ) -> None:
        """After an out-of-memory error: make batches smaller, or give up a sequence that does not
        fit alone. DeviceError where even the smallest batch does not: no sequence is to blame.
        """
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()
        tokens = [costs[at] for at in batch]
        if self.room.shrink(tokens):
            self.model.rows = self.room.rows
            batches.put_back(batch, self.room.budget)
            return
        if sum(tokens) <= self.room.rows:
            raise devices.too_small(self.model.device)
        i, _ = pieces[batch[0]]
        log.warning(
            "a sequence of %d residues does not fit into memory: skipped", len(self.sequences[i])
        )
        self.left_out[i] = "out_of_memory"

    def _whole(self, i: int, windows: dict[Span, Vectors]) -> Vectors:
        """The vectors of a sequence, from those of its windows."""
        where = self._spans(i)
        pieces = [windows[span] for span in where]
        vectors = whole(self.fingerprint, pieces, where)
        most = largest(self.fingerprint.storage_dtype)
        for name in vectors:
            of = pieces if LARGEST + name in pieces[0] else [vectors]
            found = np.max([largest_number(each, name) for each in of])
            if not found <= most:  # NaN compares false
                raise PlmEmbedError(
                    f"{name} of a sequence of {len(self.sequences[i])} residues "
                    f"({self.sequences[i][:20]}...) is not finite or too large to store "
                    f"({found:.3g})\ncompute and store in float32 (embedding.compute_dtype and "
                    "storage_dtype); if that is so already, suspect the device"
                )
        return vectors
