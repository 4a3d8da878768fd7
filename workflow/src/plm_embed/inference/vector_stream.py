"""Sequences to vectors: cut into windows, packed, computed, pooled on the device, joined.

On a GPU three things happen at a time: a thread packs the next batches, the device computes one,
and the host takes over the vectors of the one before. On a CPU one thing follows the other.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from operator import mul
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plm_embed.errors import PlmEmbedError, out_of_memory
from plm_embed.fingerprint import (
    SCORES,
    SPANS,
    TOKEN_SCORES,
    Fingerprint,
    has_matrix,
    representation,
)
from plm_embed.inference.batches import BATCHES_AHEAD, Packer, Room
from plm_embed.inference.pooling import pool_batch
from plm_embed.io.threads import give_up, spread
from plm_embed.kernels import devices
from plm_embed.models.engine import Engine
from plm_embed.models.packed_batch import Batch
from plm_embed.models.tokens import Ids
from plm_embed.sequence_windows import Span, edges, spans, whole

log = logging.getLogger(__name__)
Vectors = dict[str, NDArray[Any]]
"""Vectors of a sequence or window by representation: (D,) fp32, or (L, D) per residue: fp32, or
stored bits (uint16) that were rounded on the device; then `largest_number` knows what they were
before. Stored bits may lie in memory that the next batches need: copy them.
"""
LARGEST = "largest_"
MASKED = "masked"
"""The log-probabilities (V,) of all tokens at the place that is masked."""
STORED = {"float16": torch.float16, "bfloat16": torch.bfloat16}
"""Storage types that matrices are rounded to on the device: half as much to copy and to hold."""
LeftOut = Literal["out_of_memory", "too_many_tokens"]
TOKENIZED_TOGETHER = 64
"""Pieces that a thread tokenizes at a time."""


class Step(NamedTuple):
    """Outcome of a batch: its tokens, how many these count for in `VectorStream.tokens`, and the
    sequences that it finished.
    """

    tokens: int
    counted: int
    finished: list[tuple[int, Vectors]]


class Launched(NamedTuple):
    """A batch on its way, and its pooled rows by representation, in pinned memory on CUDA.

    marks: CUDA events of the begin, of the end and of the rows' arrival; none on a CPU, where the
    batch is done.
    """

    batch: Batch
    rows: dict[str, Tensor]
    exact: bool
    marks: Sequence[Any] = ()


class VectorStream:
    """Computes the vectors of normalized sequences, in whatever order keeps the device busy. The
    long-sequence policy must give each of them a vector.
    """

    def __init__(
        self,
        engine: Engine,
        room: Room,
        fingerprint: Fingerprint,
        sequences: Sequence[str],
        masked: Sequence[int] | None = None,
    ) -> None:
        """masked: the residue of each sequence that is masked. Such a stream computes MASKED and
        nothing else; none of its sequences may be cut.
        """
        self.engine, self.room, self.fingerprint = engine, room, fingerprint
        self.sequences, self._masked = sequences, masked
        self._layers = {*fingerprint.layers}
        if masked is not None or fingerprint.scores:
            self._layers.add(engine.manifest.layers)
        self._much = BATCHES_AHEAD * room.budget
        self.left_out: dict[int, LeftOut] = {}
        """Sequences that have no vector, and why: they did not fit into the device's memory even
        alone, or have more tokens than the model has positions for.
        """
        self.busy = 0.0
        """Seconds that the device was at work."""
        self.exact = 0
        """Sequences that were computed in fp32, because float16 could not hold their numbers."""
        family, linker = engine.manifest.family, fingerprint.linker
        self.lengths = [family.alphabet.length(sequence) for sequence in sequences]
        """Residues of each sequence."""
        self._windows = [spans(length, fingerprint.long_sequences) for length in self.lengths]
        self._pieces = [(i, span) for i, cut in enumerate(self._windows) for span in cut]
        self._texts = [
            text
            for sequence, cut in zip(sequences, self._windows, strict=True)
            for text in family.texts(sequence, cut, linker)
        ]
        counted = [family.tokens(stop - start + len(linker)) for _, (start, stop) in self._pieces]
        self._counted, self._costs = counted, counted.copy()  # costs: once tokenized, the true ones
        self._ids: dict[int, Ids] = {}
        self._copies: torch.cuda.Stream | None = None
        self.tokens = sum(counted)
        """Tokens of all sequences and passes, special ones included; an estimate where letters do
        not tell them.
        """
        if "pseudo_perplexity" in fingerprint.scores:
            shares = [high - low for cut in self._windows for low, high in pairwise(edges(cut))]
            self.tokens += sum(map(mul, counted, shares))

    def run(self) -> Iterator[Step]:
        """Compute batch after batch; each sequence comes once.

        Raises DeviceError when the device is of no more use, PlmEmbedError when a number is not
        finite or too large for the storage type.
        """
        if "pseudo_perplexity" not in self.fingerprint.scores:
            yield from self._unmasked()
            return
        waiting: list[tuple[int, Vectors]] = []
        for step in self._unmasked():
            yield step._replace(finished=[])
            waiting += step.finished
            if sum(self.lengths[i] ** 2 for i, _ in waiting) >= self._much:
                yield from self._perplexities(waiting)
                waiting = []
        yield from self._perplexities(waiting)

    def _perplexities(self, finished: list[tuple[int, Vectors]]) -> Iterator[Step]:
        """Run the masked passes of sequences that lack nothing but their pseudo-perplexity, and
        yield them with it. Of windows, each residue is masked in that in which it lies farther from
        an edge.
        """
        texts: list[str] = []
        places: list[int] = []
        tokens: list[int] = []
        ends = [0]
        for i, _ in finished:
            cut = self._windows[i]
            for (start, stop), (low, high) in zip(cut, pairwise(edges(cut)), strict=True):
                text = self.sequences[i][start:stop]
                texts += [text] * (high - low)
                places += range(low - start, high - start)
                tokens += self.engine.own_tokens(text)[low - start : high - start].tolist()
            ends.append(len(texts))
        stream = VectorStream(
            self.engine, self.room, replace(self.fingerprint, pooling=(), scores=()), texts, places
        )
        logs, busy = np.empty(len(texts)), 0.0
        for step in stream.run():
            for number, vectors in step.finished:
                logs[number] = vectors[MASKED][tokens[number]]
            self.busy, busy = self.busy + stream.busy - busy, stream.busy
            yield step._replace(finished=[])
        self.exact += stream.exact
        complete = []
        for (i, vectors), (first, stop) in zip(finished, pairwise(ends), strict=True):
            if lost := stream.left_out.keys() & range(first, stop):
                self.left_out[i] = stream.left_out[min(lost)]
            else:
                vectors["pseudo_perplexity"] = np.exp([-logs[first:stop].mean()]).astype("f4")
                complete.append((i, vectors))
        yield Step(0, 0, complete)

    def _unmasked(self) -> Iterator[Step]:
        """Compute all but the masked passes."""
        self.room.least = self.room.budget
        waiting: dict[int, dict[Span, Vectors]] = {}
        for batch, vectors in self._batches():
            finished = []
            for piece, window in zip(batch, vectors, strict=True):
                i, span = self._pieces[piece]
                windows = waiting.setdefault(i, {})
                windows[span] = window
                if len(windows) == len(self._windows[i]):
                    finished.append((i, self._whole(i, waiting.pop(i))))
            tokens, counted = (
                sum(numbers[piece] for piece in batch) for numbers in (self._costs, self._counted)
            )
            yield Step(tokens, counted, finished)

    def _batches(self) -> Iterator[tuple[list[int], list[Vectors]]]:
        """Yield the pieces of batch after batch, and their vectors."""
        device, room = self.engine.device, self.room
        cuda = device.type == "cuda"
        exact = self.engine.manifest.family.token_per_letter
        packer = Packer(self._costs) if exact else Packer((), self._tokenized())
        packed: deque[tuple[list[int], Callable[[], Batch]]] = deque()
        launched: deque[tuple[list[int], Launched]] = deque()
        thread = ThreadPoolExecutor(1)
        try:
            while True:
                while len(packed) <= 2 * cuda and (batch := packer.take(room.budget)):
                    pack: Callable[[], Batch] = partial(self._pack, batch)
                    packed.append((batch, thread.submit(pack).result if cuda else pack))
                if not packed and not launched:
                    return
                exhausted = False
                try:
                    if packed:
                        batch, pack = packed.popleft()
                        launched.append((batch, self._launch(pack())))
                        if len(launched) <= cuda:
                            # a GPU has a batch in hand while the host looks at the one before
                            continue
                    batch, oldest = launched.popleft()
                    vectors = self._collect(oldest)
                except (RuntimeError, MemoryError) as error:
                    if lost := devices.failure(error, device):
                        raise lost from error
                    if not out_of_memory(error):
                        raise
                    exhausted = True
                if not exhausted:
                    room.grow()
                    yield batch, vectors
                    continue
                # only now: the error held on to the tensors of the call that failed
                if self._make_room(batch):
                    for pieces in (batch, *(pieces for pieces, _ in packed)):
                        packer.add([self._costs[piece] for piece in pieces], pieces)
                    packed.clear()
        finally:
            give_up(thread)

    def _make_room(self, batch: list[int]) -> bool:
        """Make batches smaller after one did not fit into memory; return False where its sequence
        does not fit alone, and is left out. DeviceError where even the smallest batch does not: no
        sequence is to blame.
        """
        if self.engine.device.type == "cuda":
            torch.cuda.empty_cache()
        costs = [self._costs[piece] for piece in batch]
        if self.room.shrink(costs):
            return True
        if sum(costs) <= self.engine.rows:
            raise devices.too_small(self.engine.device)
        i, _ = self._pieces[batch[0]]
        self.left_out[i] = "out_of_memory"
        log.warning("a sequence of %d residues does not fit into memory: skipped", self.lengths[i])
        return False

    def _tokenized(self) -> Iterator[tuple[list[int], list[int]]]:
        """Yield numbers of tokens and their pieces, the longest pieces first, tokenized in threads
        ahead of the device. A sequence with more tokens than positions is left out.
        """
        limit = self.engine.manifest.family.max_tokens
        texts = self._texts
        order = sorted(range(len(texts)), key=lambda piece: len(texts[piece]), reverse=True)
        starts = range(0, len(order), TOKENIZED_TOGETHER)
        groups = [order[start : start + TOKENIZED_TOGETHER] for start in starts]

        def tokenize(group: list[int]) -> list[Ids]:
            return [self.engine.tokenize(texts[piece]) for piece in group]

        tokenized = spread(tokenize, groups, torch.get_num_threads())
        for group, all_ids in zip(groups, tokenized, strict=True):
            fitting = []
            for piece, ids in zip(group, all_ids, strict=True):
                i, _ = self._pieces[piece]
                if limit is None or len(ids) <= limit:
                    self._ids[piece], self._costs[piece] = ids, len(ids)
                    fitting.append(piece)
                elif i not in self.left_out:
                    self.left_out[i] = "too_many_tokens"
                    log.warning(
                        "a sequence of %d letters has more than %d tokens, since each unknown "
                        "letter is a token: skipped",
                        len(self.sequences[i]),
                        limit,
                    )
            yield [self._costs[piece] for piece in fitting], fitting

    def _pack(self, batch: list[int]) -> Batch:
        tokenized = [self._ids.pop(piece, None) for piece in batch]
        masked = self._masked and [self._masked[self._pieces[piece][0]] for piece in batch]
        family, linker = self.engine.manifest.family, self.fingerprint.linker
        pairs = [self.sequences[self._pieces[piece][0]] for piece in batch] if linker else ()
        return self.engine.pack(
            [
                self.engine.tokenize(self._texts[piece]) if ids is None else ids
                for piece, ids in zip(batch, tokenized, strict=True)
            ],
            masked,
            [family.linker_tokens(pair, linker) for pair in pairs],
        )

    def _launch(self, batch: Batch, exact: bool = False) -> Launched:
        """Queue a batch. An error about memory leaves nothing that matters in the queue."""
        device = self.engine.device
        if device.type != "cuda":
            began = time.monotonic()
            rows = self._pooled(batch, exact)
            self.busy += time.monotonic() - began
            return Launched(batch, rows, exact)
        marks: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(3)]  # type: ignore[no-untyped-call]
        marks[0].record()
        pooled = self._pooled(batch, exact)
        marks[1].record()
        rows = {
            name: torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            for name, values in pooled.items()
        }
        # the next batch need not wait until this one is copied
        self._copies = self._copies or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copies.wait_event(marks[1])
        with torch.cuda.stream(self._copies):
            for name, values in pooled.items():
                rows[name].copy_(values, non_blocking=True)
                values.record_stream(self._copies)
            marks[2].record()
        return Launched(batch, rows, exact, marks)

    @torch.inference_mode()
    def _pooled(self, batch: Batch, exact: bool) -> dict[str, Tensor]:
        """Return the rows of each representation on the device, one per sequence, residue or token;
        of those that are rounded to the storage type also the largest number of each row, (rows,).
        Of scores TOKEN_SCORES, or MASKED.
        """
        batch = batch.to(self.engine.device)
        stored = STORED.get(self.fingerprint.storage_dtype)
        rows = {}
        states = self.engine.forward(batch, self._layers, exact)
        for layer in self.fingerprint.layers:
            for pooling in self.fingerprint.pooling:
                name = representation(pooling, layer)
                rows[name] = pool_batch(pooling, states[layer], batch)
                if stored is not None and has_matrix(name):
                    low, high = torch.aminmax(rows[name], dim=1)
                    rows[LARGEST + name] = torch.maximum(-low, high)
                    rows[name] = rows[name].to(stored)
        last = states.get(self.engine.manifest.layers)
        if batch.masked is not None and last is not None:
            rows[MASKED] = self.engine.log_probabilities(last)[batch.masked]
        elif self.fingerprint.scores and last is not None:
            scores = self.engine.token_scores(last, batch.tokens)
            rows[TOKEN_SCORES] = pool_batch("per_residue", scores, batch)
        return rows

    def _collect(self, launched: Launched) -> list[Vectors]:
        """Return the vectors of each sequence of a batch when it is done."""
        batch = launched.batch
        if launched.marks:
            began, ended, copied = launched.marks
            devices.wait(copied)
            self.busy += began.elapsed_time(ended) / 1000
        lengths = [stop - first for first, stop in batch.residues]
        edges = np.cumsum(lengths[:-1], dtype=np.int64)
        sequences: list[Vectors] = [{} for _ in lengths]
        for name, rows in launched.rows.items():
            if name.startswith(LARGEST):
                parts = list(np.maximum.reduceat(rows.numpy(), [0, *edges]))
            elif rows.dtype != torch.float32:
                parts = np.split(rows.view(torch.int16).numpy().view(np.uint16), edges)
            else:
                # pinned memory is scarce: the next batches need it
                array = rows.numpy().copy() if rows.is_pinned() else rows.numpy()
                parts = np.split(array, edges) if has_matrix(name) else list(array)
            for vectors, part in zip(sequences, parts, strict=True):
                vectors[name] = part
        if "per_token" in self.fingerprint.pooling:
            for vectors, ids in zip(sequences, batch.split(batch.tokens), strict=True):
                vectors[SPANS] = self.engine.spans(ids.numpy().astype(np.uint16))
        if self.engine.dtype == torch.float16 and not launched.exact:
            self._replace_overflown(sequences, batch)
        return sequences

    def _replace_overflown(self, sequences: list[Vectors], batch: Batch) -> None:
        """Compute again in fp32 the sequences of a batch whose numbers float16 could not hold."""
        overflown = [
            i
            for i, vectors in enumerate(sequences)
            if not all(np.isfinite(largest_number(vectors, name)) for name in vectors)
        ]
        self.exact += len(overflown)
        packer = Packer([batch.lengths[i] for i in overflown])
        tokens = batch.split(batch.tokens)
        masked = None if batch.masked is None else batch.masked - batch.boundaries[:-1]  # tokens
        # fp32 takes twice the memory that the budget was measured for
        while places := packer.take(self.engine.rows):
            numbers = [overflown[place] for place in places]
            pieces = [tokens[i].numpy().astype(np.uint16) for i in numbers]
            residues = (
                None if masked is None else [int(masked[i]) - batch.residues[i][0] for i in numbers]
            )
            linkers = [batch.linkers[i] for i in numbers] if batch.linkers else ()
            again = self._launch(self.engine.pack(pieces, residues, linkers), exact=True)
            for i, vectors in zip(numbers, self._collect(again), strict=True):
                sequences[i] = vectors

    def _whole(self, i: int, windows: dict[Span, Vectors]) -> Vectors:
        """Return the vectors of a sequence, joined from those of its windows."""
        cut, sequence = self._windows[i], self.sequences[i]
        pieces = [windows[span] for span in cut]
        vectors = whole(self.fingerprint, pieces, cut) if self._masked is None else pieces[0]
        for name in vectors:
            stored_as = "float32" if name in SCORES else self.fingerprint.storage_dtype
            limit = torch.finfo(getattr(torch, stored_as)).max
            rounded = LARGEST + name in pieces[0]
            largest = np.max([largest_number(v, name) for v in (pieces if rounded else [vectors])])
            if not largest <= limit:  # NaN compares false
                raise PlmEmbedError(
                    f"{name} of a sequence of {self.lengths[i]} residues ({sequence[:20]}...) is "
                    f"not finite or too large to store ({largest:.3g})\n"
                    "compute and store in float32 (embedding.compute_dtype and storage_dtype); if "
                    "that is so already, suspect the device"
                )
        return vectors


def largest_number(vectors: Vectors, name: str) -> float:
    """Return the largest absolute number of a representation as it was computed; NaN if one is."""
    rounded = vectors.get(LARGEST + name)
    return float(np.abs(vectors[name]).max() if rounded is None else rounded)
