"""Sequences to vectors: cut into windows, tokenized, packed, computed, joined.

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

from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import SPANS, TOKEN_SCORES, Fingerprint, has_matrix, representation
from plm_embed.inference.loading import Room
from plm_embed.inference.pooling import pool_batch
from plm_embed.io.threads import spread
from plm_embed.kernels import devices
from plm_embed.models.engine import Batch, pack
from plm_embed.models.family import Ids
from plm_embed.sequence_windows import Span, edges, spans, whole

log = logging.getLogger(__name__)
Vectors = dict[str, NDArray[Any]]
"""Vectors of a sequence or window by representation, (D,) or (L, D): fp32, or of a matrix stored
bits (uint16) where the storage dtype is narrower.
"""
Costs = Iterable[tuple[int, int]]
"""Numbers of tokens, special ones included, and of the pieces that have them."""
LeftOut = Literal["out_of_memory", "too_many_tokens"]
MASKED = "masked"
"""The log-probabilities (V,) of all tokens at the place that is masked."""
LARGEST = "_largest"
"""Ending of the name of the largest absolute number that a representation had before it was
rounded; NaN if any was.
"""
STORED = {"float16": torch.float16, "bfloat16": torch.bfloat16}
"""Storage dtypes that matrices are rounded to on the device: half as much to copy and to hold."""
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
    """A batch on its way, and its rows by name: on CUDA in pinned memory, complete after the event
    `copied`.
    """

    batch: Batch
    rows: dict[str, Tensor]
    exact: bool
    copied: torch.cuda.Event | None


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
        self.room, self.fingerprint = room, fingerprint
        self.sequences, self._masked = sequences, masked
        self.left_out: dict[int, LeftOut] = {}
        """Sequences that have no vector, and why: they did not fit into the device's memory even
        alone, or have more tokens than the model has positions for.
        """
        self._engine, self._family = room.engine, room.engine.model.family
        self.lengths = [self._family.alphabet.length(sequence) for sequence in sequences]
        """Residues of each sequence."""
        self._windows = [spans(length, fingerprint.long_sequences) for length in self.lengths]
        self._pieces = [(i, span) for i, cut in enumerate(self._windows) for span in cut]
        self._scored_by_masks = "pseudo_perplexity" in fingerprint.scores
        how = fingerprint.long_sequences, fingerprint.linker, self._scored_by_masks
        passes = [times for n in self.lengths for times in self._family.passes(n, *how)]
        self.tokens = sum(tokens * times for tokens, times in passes)
        """Tokens of all sequences and passes, special ones included; an estimate where letters do
        not tell them.
        """
        self._counted = [tokens for tokens, _ in passes]
        self._costs = self._counted.copy()  # once tokenized, the true ones
        self._ids: dict[int, Ids] = {}  # of pieces that are tokenized ahead
        self._copies: torch.cuda.Stream | None = None

    def run(self) -> Iterator[Step]:
        """Compute batch after batch; each sequence comes once.

        Raises DeviceError when the device is of no more use, PlmEmbedError when a number is not
        finite or too large for the storage type.
        """
        windows: dict[int, dict[Span, Vectors]] = defaultdict(dict)
        unmasked: list[tuple[int, Vectors]] = []
        for batch, computed in self._batches():
            finished = []
            for piece, vectors in zip(batch, computed, strict=True):
                i, span = self._pieces[piece]
                windows[i][span] = vectors
                if len(windows[i]) == len(self._windows[i]):
                    finished.append((i, self._whole(i, windows.pop(i))))
            if self._scored_by_masks:
                unmasked += finished
                finished = []
            tokens = sum(self._costs[piece] for piece in batch)
            yield Step(tokens, sum(self._counted[piece] for piece in batch), finished)
            # to mask the residues of many at once
            if sum(self.lengths[i] ** 2 for i, _ in unmasked) >= BATCHES_AHEAD * self.room.budget:
                yield from self._masked_steps(unmasked)
                unmasked = []
        if unmasked:
            yield from self._masked_steps(unmasked)

    def _masked_steps(self, waiting: list[tuple[int, Vectors]]) -> Iterator[Step]:
        """Run the masked passes of sequences that lack nothing but their pseudo-perplexity, and
        yield each with it as soon as its passes are done. Of windows, each residue is masked in
        that in which it lies farther from an edge.
        """
        owners, texts, residues, hidden = list[int](), list[str](), list[int](), list[int]()
        for owner, (i, _) in enumerate(waiting):
            cut = self._windows[i]
            for (start, stop), (low, high) in zip(cut, pairwise(edges(cut)), strict=True):
                text = self.sequences[i][start:stop]
                owners += [owner] * (high - low)
                texts += [text] * (high - low)
                residues += range(low - start, high - start)
                hidden += self._engine.own_tokens(text)[low - start : high - start].tolist()
        bounds = np.searchsorted(owners, range(len(waiting) + 1))
        left, logs = np.diff(bounds), np.empty(len(owners))
        plain = replace(self.fingerprint, pooling=(), scores=())
        stream = VectorStream(self.room, plain, texts, residues)
        for step in stream.run():
            finished = []
            for number, vectors in step.finished:
                owner = owners[number]
                logs[number] = vectors[MASKED][hidden[number]]
                left[owner] -= 1
                if not left[owner]:
                    mean = logs[slice(*bounds[owner : owner + 2])].mean()
                    perplexity = {"pseudo_perplexity": np.exp([-mean]).astype("f4")}
                    finished.append((waiting[owner][0], waiting[owner][1] | perplexity))
            yield step._replace(finished=finished)
        for number, reason in stream.left_out.items():
            self.left_out[waiting[owners[number]][0]] = reason

    def _batches(self) -> Iterator[tuple[list[int], list[Vectors]]]:
        """Yield the pieces of batch after batch, and their vectors. What memory did not hold comes
        again, in smaller batches.
        """
        cuda, costs = self._engine.device.type == "cuda", self._costs
        known = iter([zip(costs, range(len(costs)), strict=True)])
        more: Iterator[Costs] = known if self._family.token_per_letter else self._tokenized()
        waiting: dict[int, list[int]] = defaultdict(list)
        packed: deque[tuple[list[int], Future[Batch]]] = deque()
        launched: deque[tuple[list[int], Launched]] = deque()
        thread = ThreadPoolExecutor(1)
        try:
            while True:
                budget = self.room.budget
                while len(packed) <= 2 * cuda and (batch := take_batch(waiting, more, budget)):
                    packed.append((batch, thread.submit(self._pack, batch)))
                if not packed and not launched:
                    return
                windows = None
                try:
                    if packed:
                        batch, future = packed.popleft()
                        launched.append((batch, self.launch(future.result())))
                        if len(launched) <= cuda:
                            # a GPU has a batch in hand while the host looks at the one before
                            continue
                    batch, oldest = launched.popleft()
                    windows = self.collect(oldest)
                except (RuntimeError, MemoryError) as error:
                    devices.raise_others(error, self._engine.device)
                # not above: the error holds on to the tensors of the call that failed
                if windows is not None:
                    self.room.grow()
                    yield batch, windows
                elif self.room.shrink([costs[piece] for piece in batch]):
                    for piece in (*batch, *(piece for later, _ in packed for piece in later)):
                        waiting[costs[piece]].append(piece)
                    packed.clear()
                else:
                    i, _ = self._pieces[batch[0]]
                    self.left_out[i] = "out_of_memory"
                    words = "a sequence of %d residues does not fit into memory: skipped"
                    log.warning(words, self.lengths[i])
        finally:
            thread.shutdown(wait=False, cancel_futures=True)  # as in `spread`

    def _tokenize(self, piece: int) -> Ids:
        if (ids := self._ids.pop(piece, None)) is not None:
            return ids
        i, span = self._pieces[piece]
        (text,) = self._family.texts(self.sequences[i], [span], self.fingerprint.linker)
        return self._engine.tokenize(text)

    def _tokenized(self) -> Iterator[Costs]:
        """Yield pieces, the longest first, tokenized in threads ahead of the device. A sequence
        with more tokens than positions is left out.
        """
        limit = self._family.max_tokens
        letters = [stop - start for _, (start, stop) in self._pieces]
        order = sorted(range(len(letters)), key=letters.__getitem__, reverse=True)
        starts = range(0, len(order), TOKENIZED_TOGETHER)
        groups = [order[start : start + TOKENIZED_TOGETHER] for start in starts]
        tokenized = spread(
            lambda group: [*map(self._tokenize, group)], groups, torch.get_num_threads()
        )
        for group, all_ids in zip(groups, tokenized, strict=True):
            fitting = []
            for piece, ids in zip(group, all_ids, strict=True):
                i, _ = self._pieces[piece]
                if limit is None or len(ids) <= limit:
                    self._ids[piece], self._costs[piece] = ids, len(ids)
                    fitting.append((len(ids), piece))
                elif i not in self.left_out:
                    self.left_out[i] = "too_many_tokens"
                    log.warning(
                        "a sequence of %d letters has more than %d tokens, since each unknown "
                        "letter is a token: skipped",
                        len(self.sequences[i]),
                        limit,
                    )
            yield fitting

    def _pack(self, batch: list[int]) -> Batch:
        family, linker = self._family, self.fingerprint.linker
        owners = [self._pieces[piece][0] for piece in batch]
        return pack(
            [self._tokenize(piece) for piece in batch],
            family,
            self._engine.rows,
            pinned=self._engine.device.type == "cuda",
            masked=self._masked and [self._masked[i] for i in owners],
            linkers=[family.linker_tokens(self.sequences[i], linker) for i in owners if linker],
        )

    @torch.inference_mode()
    def launch(self, batch: Batch, exact: bool = False) -> Launched:
        """Queue a batch: its forward pass, and the rows of each representation, one per sequence,
        residue or token, with the largest number of each. Of scores TOKEN_SCORES, or MASKED.

        `exact` as in `Engine.forward`. An error about memory leaves nothing that matters in the
        queue.
        """
        engine, fingerprint = self._engine, self.fingerprint
        last, stored = engine.model.layers, STORED.get(fingerprint.storage_dtype)
        head = bool(fingerprint.scores) or batch.masked is not None
        on_device = batch.to(engine.device)
        states = engine.forward(
            on_device, {*fingerprint.layers} | ({last} if head else set()), exact
        )
        rows = {
            representation(pooling, layer): pool_batch(pooling, states[layer], on_device)
            for layer, pooling in product(fingerprint.layers, fingerprint.pooling)
        }
        if on_device.masked is not None:
            rows[MASKED] = engine.log_probabilities(states[last])[on_device.masked]
        elif head:
            scores = engine.token_scores(states[last], on_device.tokens)
            rows[TOKEN_SCORES] = pool_batch("per_residue", scores, on_device)
        for name in [*rows]:
            low, high = torch.aminmax(rows[name], dim=1)
            rows[name + LARGEST] = torch.maximum(-low, high)
            if stored is not None and has_matrix(name) and name != TOKEN_SCORES:
                rows[name] = rows[name].to(stored)
        if engine.device.type != "cuda":
            return Launched(batch, rows, exact, None)
        pinned = {
            name: torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
            for name, part in rows.items()
        }
        # the next batch need not wait until this one is copied
        self._copies = self._copies or torch.cuda.Stream(engine.device)  # type: ignore[no-untyped-call]
        self._copies.wait_stream(torch.cuda.current_stream(engine.device))
        with torch.cuda.stream(self._copies):
            for name, part in rows.items():
                pinned[name].copy_(part, non_blocking=True)
                part.record_stream(self._copies)
        return Launched(batch, pinned, exact, self._copies.record_event())

    def collect(self, launched: Launched) -> list[Vectors]:
        """Return the vectors of each piece of a batch when it is done. What float16 could not hold
        is computed again in fp32.
        """
        batch = launched.batch
        if launched.copied:
            devices.wait(launched.copied)
        starts = np.cumsum([0, *(stop - first for first, stop in batch.residues)])[:-1]
        columns: dict[str, Any] = {}
        for name, held in launched.rows.items():
            halves = held.dtype != torch.float32
            parts: Any = held.view(torch.int16).numpy().view(np.uint16) if halves else held.numpy()
            if held.is_pinned():  # which is scarce: the next batches need it
                parts = parts.copy()
            if has_matrix(name) and name.endswith(LARGEST):
                parts = np.maximum.reduceat(parts, starts)
            elif has_matrix(name):
                parts = np.split(parts, starts[1:])
            columns[name] = parts
        if "per_token" in self.fingerprint.pooling:
            tokens = [part.numpy().astype(np.uint16) for part in batch.split(batch.tokens)]
            columns[SPANS] = [self._engine.spans(ids) for ids in tokens]
        rows = zip(*columns.values(), strict=True)
        pieces = [dict(zip(columns, row, strict=True)) for row in rows]
        if self._engine.dtype == torch.float16 and not launched.exact:
            largest = [values for name, values in columns.items() if name.endswith(LARGEST)]
            overflown = np.flatnonzero(~np.isfinite(largest).all(axis=0))
            again = self.collect(self.launch(batch, exact=True)) if len(overflown) else pieces
            for i in overflown:
                pieces[i] = again[i]
        return pieces

    def _whole(self, i: int, windows: dict[Span, Vectors]) -> Vectors:
        """Return the vectors of a sequence, joined from those of its windows. PlmEmbedError where a
        number cannot be stored.
        """
        cut, sequence = self._windows[i], self.sequences[i]
        pieces = [windows[span] for span in cut]
        for name in (name for name in pieces[0] if name.endswith(LARGEST)):
            scores = name.startswith(TOKEN_SCORES)
            stored_as = "float32" if scores else self.fingerprint.storage_dtype
            words = "scores" if scores else name.removesuffix(LARGEST)
            largest = np.max([piece[name] for piece in pieces])
            if not largest <= torch.finfo(getattr(torch, stored_as)).max:  # NaN compares false
                raise PlmEmbedError(
                    f"{words} of a sequence of {self.lengths[i]} residues ({sequence[:20]}...): "
                    f"not finite or too large to store ({largest:.3g})\n"
                    "compute and store in float32 (embedding.compute_dtype and storage_dtype); if "
                    "that is so already, suspect the device"
                )
        return pieces[0] if self._masked else whole(self.fingerprint, pieces, cut)


def take_batch(waiting: dict[int, list[int]], more: Iterator[Costs], budget: int) -> list[int]:
    """Take the pieces of the next batch, of at most `budget` tokens, from those that wait, by their
    numbers of tokens, after taking in `more` where few are left; none when all are taken.

    Longest first, so that memory errors come early: the longest piece, and then the longest that
    still fit. A piece longer than the budget gets a batch of its own.
    """
    enough = BATCHES_AHEAD * budget
    while sum(tokens * len(pieces) for tokens, pieces in waiting.items()) < enough:
        if (further := next(more, None)) is None:
            break
        for tokens, piece in further:
            waiting[tokens].append(piece)
    numbers, batch = sorted(waiting), list[int]()
    while numbers and (not batch or numbers[0] <= budget):
        place = bisect_right(numbers, budget) - 1 if batch else -1
        tokens = numbers[place]
        batch.append(waiting[tokens].pop())
        budget -= tokens
        if not waiting[tokens]:
            del waiting[tokens], numbers[place]
    return batch
