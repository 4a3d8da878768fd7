"""Sequences to vectors: cut into windows, packed, computed, pooled on the device, joined.

On a GPU three things happen at a time: a thread packs the next batches, the device computes one,
and the host takes over the vectors of the one before. On a CPU one thing follows the other.
"""

import logging
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise, product
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
from plm_embed.inference.loading import Room
from plm_embed.inference.pooling import pool_batch
from plm_embed.io.threads import spread
from plm_embed.kernels import devices
from plm_embed.models.packed_batch import Batch, pack
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
BATCHES_AHEAD = 16
"""Batches' worth of pieces to choose from, where more become known while others are computed."""


class Step(NamedTuple):
    """Outcome of a batch: its tokens, how many these count for in `VectorStream.tokens`, and the
    sequences that it finished.
    """

    tokens: int
    counted: int
    finished: list[tuple[int, Vectors]]


class Launched(NamedTuple):
    """A batch on its way, and its pooled rows by representation: on CUDA in pinned memory, complete
    after the event `copied`.
    """

    batch: Batch
    rows: dict[str, Tensor]
    exact: bool
    copied: torch.cuda.Event | None = None


class VectorStream:
    """Computes the vectors of normalized sequences, in whatever order keeps the device busy. The
    long-sequence policy must give each of them a vector.
    """

    def __init__(
        self,
        room: Room,
        fingerprint: Fingerprint,
        sequences: Sequence[str],
        masked: Sequence[int] | None = None,
    ) -> None:
        """masked: the residue of each sequence that is masked. Such a stream computes MASKED and
        nothing else; none of its sequences may be cut.
        """
        self.engine, self.room, self.fingerprint = room.engine, room, fingerprint
        self.sequences, self._masked = sequences, masked
        self.left_out: dict[int, LeftOut] = {}
        """Sequences that have no vector, and why: they did not fit into the device's memory even
        alone, or have more tokens than the model has positions for.
        """
        family, linker = room.engine.manifest.family, fingerprint.linker
        self.lengths = [family.alphabet.length(sequence) for sequence in sequences]
        """Residues of each sequence."""
        self._windows = [spans(length, fingerprint.long_sequences) for length in self.lengths]
        self._pieces = [(i, span) for i, cut in enumerate(self._windows) for span in cut]
        self._texts = [
            text
            for sequence, cut in zip(sequences, self._windows, strict=True)
            for text in family.texts(sequence, cut, linker)
        ]
        how = fingerprint.long_sequences, linker, "pseudo_perplexity" in fingerprint.scores
        passes = [times for length in self.lengths for times in family.passes(length, *how)]
        self._counted = [tokens for tokens, _ in passes]
        self._costs = self._counted.copy()  # once tokenized, the true ones
        self._ids: dict[int, Ids] = {}
        self._copies: torch.cuda.Stream | None = None
        self.tokens = sum(tokens * times for tokens, times in passes)
        """Tokens of all sequences and passes, special ones included; an estimate where letters do
        not tell them.
        """

    def run(self) -> Iterator[Step]:
        """Compute batch after batch; each sequence comes once.

        Raises DeviceError when the device is of no more use, PlmEmbedError when a number is not
        finite or too large for the storage type.
        """
        masks = "pseudo_perplexity" in self.fingerprint.scores
        waiting: dict[int, dict[Span, Vectors]] = {}
        finished: list[tuple[int, Vectors]] = []
        for batch, vectors in self._batches():
            for piece, window in zip(batch, vectors, strict=True):
                i, span = self._pieces[piece]
                windows = waiting.setdefault(i, {})
                windows[span] = window
                if len(windows) == len(self._windows[i]):
                    finished.append((i, self._whole(i, waiting.pop(i))))
            tokens, counted = (
                sum(numbers[piece] for piece in batch) for numbers in (self._costs, self._counted)
            )
            yield Step(tokens, counted, [] if masks else finished)
            much = BATCHES_AHEAD * self.room.budget
            if masks and sum(self.lengths[i] ** 2 for i, _ in finished) < much:
                continue  # to mask the residues of many at once
            if masks:
                yield from self._perplexities(finished)
            finished = []
        if finished:
            yield from self._perplexities(finished)

    def _perplexities(self, finished: list[tuple[int, Vectors]]) -> Iterator[Step]:
        """Run the masked passes of sequences that lack nothing but their pseudo-perplexity, and
        yield each with it as soon as its passes are done. Of windows, each residue is masked in
        that in which it lies farther from an edge.
        """
        texts: list[str] = []
        places: list[int] = []
        tokens: list[int] = []
        owners: list[int] = []
        ends = [0]
        for place, (i, _) in enumerate(finished):
            cut = self._windows[i]
            for (start, stop), (low, high) in zip(cut, pairwise(edges(cut)), strict=True):
                text = self.sequences[i][start:stop]
                texts += [text] * (high - low)
                places += range(low - start, high - start)
                tokens += self.engine.own_tokens(text)[low - start : high - start].tolist()
            owners += [place] * (len(texts) - ends[-1])
            ends.append(len(texts))
        plain = replace(self.fingerprint, pooling=(), scores=())
        stream = VectorStream(self.room, plain, texts, places)
        logs = np.empty(len(texts))
        left = np.diff(ends)
        for step in stream.run():
            complete = []
            for number, masked in step.finished:
                logs[number] = masked[MASKED][tokens[number]]
                place = owners[number]
                left[place] -= 1
                if not left[place]:
                    i, vectors = finished[place]
                    mean = logs[ends[place] : ends[place + 1]].mean()
                    vectors["pseudo_perplexity"] = np.exp([-mean]).astype("f4")
                    complete.append((i, vectors))
            yield step._replace(finished=complete)
        for number, reason in stream.left_out.items():
            self.left_out[finished[owners[number]][0]] = reason

    def _batches(self) -> Iterator[tuple[list[int], list[Vectors]]]:
        """Yield the pieces of batch after batch, and their vectors."""
        device, room = self.engine.device, self.room
        cuda = device.type == "cuda"
        countable = self.engine.manifest.family.token_per_letter
        pieces = range(len(self._costs))
        packer = Packer([(self._costs, pieces)] if countable else self._tokenized())
        packed: deque[tuple[list[int], Future[Batch]]] = deque()
        launched: deque[tuple[list[int], Launched]] = deque()
        thread = ThreadPoolExecutor(1)
        try:
            while True:
                while len(packed) <= 2 * cuda and (batch := packer.take(room.budget)):
                    packed.append((batch, thread.submit(self._pack, batch)))
                if not packed and not launched:
                    return
                vectors = None
                try:
                    if packed:
                        batch, future = packed.popleft()
                        launched.append((batch, self._launch(future.result())))
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
                # not above: the error holds on to the tensors of the call that failed
                if vectors is not None:
                    room.grow()
                    yield batch, vectors
                elif self._make_room(batch):
                    for again in (batch, *(waiting for waiting, _ in packed)):
                        packer.add([self._costs[piece] for piece in again], again)
                    packed.clear()
        finally:
            thread.shutdown(wait=False, cancel_futures=True)  # as in `spread`

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
        return pack(
            [
                self.engine.tokenize(self._texts[piece]) if ids is None else ids
                for piece, ids in zip(batch, tokenized, strict=True)
            ],
            family,
            self.engine.rows,
            pinned=self.engine.device.type == "cuda",
            masked=masked,
            linkers=[family.linker_tokens(pair, linker) for pair in pairs],
        )

    @torch.inference_mode()
    def _launch(self, batch: Batch, exact: bool = False) -> Launched:
        """Queue a batch: its forward pass, and the rows of each representation, one per sequence,
        residue or token; of those that are rounded to the storage type also the largest number of
        each row, (rows,). Of scores TOKEN_SCORES, or MASKED.

        An error about memory leaves nothing that matters in the queue.
        """
        device, last, kind = self.engine.device, self.engine.manifest.layers, self.fingerprint
        layers, stored = {*kind.layers}, STORED.get(kind.storage_dtype)
        if kind.scores or batch.masked is not None:
            layers.add(last)
        on_device = batch.to(device)
        states = self.engine.forward(on_device, layers, exact)
        pooled = {}
        for layer, pooling in product(kind.layers, kind.pooling):
            name = representation(pooling, layer)
            pooled[name] = rows = pool_batch(pooling, states[layer], on_device)
            if stored is not None and has_matrix(name):
                low, high = torch.aminmax(rows, dim=1)
                pooled[LARGEST + name] = torch.maximum(-low, high)
                pooled[name] = rows.to(stored)
        if on_device.masked is not None:
            pooled[MASKED] = self.engine.log_probabilities(states[last])[on_device.masked]
        elif kind.scores:
            scores = self.engine.token_scores(states[last], on_device.tokens)
            pooled[TOKEN_SCORES] = pool_batch("per_residue", scores, on_device)
        if device.type != "cuda":
            return Launched(batch, pooled, exact)
        pinned = {
            name: torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
            for name, rows in pooled.items()
        }
        # the next batch need not wait until this one is copied
        self._copies = self._copies or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copies.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._copies):
            for name, rows in pooled.items():
                pinned[name].copy_(rows, non_blocking=True)
                rows.record_stream(self._copies)
        return Launched(batch, pinned, exact, self._copies.record_event())

    def _collect(self, launched: Launched) -> list[Vectors]:
        """Return the vectors of each sequence of a batch when it is done. What float16 could not
        hold is computed again in fp32.
        """
        batch = launched.batch
        if launched.copied:
            devices.wait(launched.copied)
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
            overflown = [
                i
                for i, vectors in enumerate(sequences)
                if not all(np.isfinite(largest_number(vectors, name)) for name in vectors)
            ]
            again = self._collect(self._launch(batch, exact=True)) if overflown else sequences
            for i in overflown:
                sequences[i] = again[i]
        return sequences

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


class Packer:
    """Hands out batches, longest pieces first, so that memory errors come early.

    Each batch starts with the longest piece left and is filled with the longest that still fit. A
    piece longer than the budget gets a batch of its own.
    """

    def __init__(self, pieces: Iterable[tuple[Sequence[int], Sequence[int]]]) -> None:
        """`pieces`: numbers of tokens, special ones included, and the numbers of their pieces,
        group by group.
        """
        self._more = iter(pieces)
        self._left = 0
        self._by_cost: dict[int, list[int]] = defaultdict(list)
        self._costs: list[int] = []

    def add(self, costs: Sequence[int], pieces: Sequence[int]) -> None:
        """Take in pieces: further ones, or those of a batch that did not fit into memory."""
        self._left += sum(costs)
        for cost, piece in zip(costs, pieces, strict=True):
            self._by_cost[cost].append(piece)
        self._costs = sorted(cost for cost, waiting in self._by_cost.items() if waiting)

    def take(self, budget: int) -> list[int]:
        """Return the next batch's pieces, of at most `budget` tokens; none when all are taken."""
        while self._left < BATCHES_AHEAD * budget and (further := next(self._more, None)):
            self.add(*further)
        free = budget
        batch: list[int] = []
        while self._costs:
            place = bisect_right(self._costs, free) - 1 if batch else -1
            if batch and place < 0:
                break
            cost = self._costs[place]
            batch.append(self._by_cost[cost].pop())
            free -= cost
            self._left -= cost
            if not self._by_cost[cost]:
                self._costs.remove(cost)
        return batch
