"""Sequences to vectors: cut into windows, packed, computed, joined.

On a GPU three things happen at a time: a thread packs the next batches, the device computes one,
and the host takes over the vectors of the one before. On a CPU one thing follows the other.
"""

import logging
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import torch

from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import TOKEN_SCORES, Fingerprint
from plm_embed.inference.batch_vectors import LARGEST, MASKED, BatchVectors, Launched, Vectors
from plm_embed.inference.loading import Room, raise_others
from plm_embed.io.threads import spread
from plm_embed.models.packed_batch import Batch, pack
from plm_embed.models.tokens import Ids
from plm_embed.sequence_windows import Span, edges, spans, whole

log = logging.getLogger(__name__)
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


class Pass(NamedTuple):
    """A masked pass of a sequence that waits in place `owner`: the letters of a window, the number
    of the residue that is masked there, and the token that is hidden.
    """

    owner: int
    text: str
    residue: int
    token: int


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
        self._masks = "pseudo_perplexity" in fingerprint.scores
        how = fingerprint.long_sequences, fingerprint.linker, self._masks
        passes = [times for n in self.lengths for times in self._family.passes(n, *how)]
        self._counted = [tokens for tokens, _ in passes]
        self._costs = self._counted.copy()  # once tokenized, the true ones
        self._ids: dict[int, Ids] = {}
        self._batch_vectors = BatchVectors(room.engine, fingerprint)
        self.tokens = sum(tokens * times for tokens, times in passes)
        """Tokens of all sequences and passes, special ones included; an estimate where letters do
        not tell them.
        """

    def run(self) -> Iterator[Step]:
        """Compute batch after batch; each sequence comes once.

        Raises DeviceError when the device is of no more use, PlmEmbedError when a number is not
        finite or too large for the storage type.
        """
        if not self._masks:
            yield from self._steps()
            return
        waiting: list[tuple[int, Vectors]] = []
        for step in self._steps():
            yield step._replace(finished=[])
            waiting += step.finished
            # to mask the residues of many at once
            if sum(self.lengths[i] ** 2 for i, _ in waiting) >= BATCHES_AHEAD * self.room.budget:
                yield from self._masked_steps(waiting)
                waiting = []
        yield from self._masked_steps(waiting)

    def _steps(self) -> Iterator[Step]:
        """Compute all but pseudo-perplexities."""
        waiting: dict[int, dict[Span, Vectors]] = defaultdict(dict)
        for batch, windows in self._batches():
            finished = []
            for piece, window in zip(batch, windows, strict=True):
                i, span = self._pieces[piece]
                waiting[i][span] = window
                if len(waiting[i]) == len(self._windows[i]):
                    finished.append((i, self._whole(i, waiting.pop(i))))
            tokens, counted = (
                sum(numbers[piece] for piece in batch) for numbers in (self._costs, self._counted)
            )
            yield Step(tokens, counted, finished)

    def _masked_steps(self, waiting: list[tuple[int, Vectors]]) -> Iterator[Step]:
        """Run the masked passes of sequences that lack nothing but their pseudo-perplexity, and
        yield each with it as soon as its passes are done. Of windows, each residue is masked in
        that in which it lies farther from an edge.
        """
        passes = []
        for owner, (i, _) in enumerate(waiting):
            cut = self._windows[i]
            for (start, stop), (low, high) in zip(cut, pairwise(edges(cut)), strict=True):
                text = self.sequences[i][start:stop]
                tokens = self._engine.own_tokens(text).tolist()
                masked = range(low - start, high - start)
                passes += [Pass(owner, text, residue, tokens[residue]) for residue in masked]
        bounds = np.searchsorted([run.owner for run in passes], range(len(waiting) + 1))
        left, logs = np.diff(bounds), np.empty(len(passes))
        plain = replace(self.fingerprint, pooling=(), scores=())
        texts, residues = [run.text for run in passes], [run.residue for run in passes]
        stream = VectorStream(self.room, plain, texts, residues)
        for step in stream.run():
            finished = []
            for number, vectors in step.finished:
                owner = passes[number].owner
                logs[number] = vectors[MASKED][passes[number].token]
                left[owner] -= 1
                if not left[owner]:
                    mean = logs[slice(*bounds[owner : owner + 2])].mean()
                    perplexity = {"pseudo_perplexity": np.exp([-mean]).astype("f4")}
                    finished.append((waiting[owner][0], waiting[owner][1] | perplexity))
            yield step._replace(finished=finished)
        for number, reason in stream.left_out.items():
            self.left_out[waiting[passes[number].owner][0]] = reason

    def _batches(self) -> Iterator[tuple[list[int], list[Vectors]]]:
        """Yield the pieces of batch after batch, and their vectors. What memory did not hold comes
        again, in smaller batches.
        """
        cuda = self._engine.device.type == "cuda"
        known = [(self._costs, range(len(self._costs)))]
        packer = Packer(known if self._family.token_per_letter else self._tokenized())
        packed: deque[tuple[list[int], Future[Batch]]] = deque()
        launched: deque[tuple[list[int], Launched]] = deque()
        thread = ThreadPoolExecutor(1)
        try:
            while True:
                while len(packed) <= 2 * cuda and (batch := packer.take(self.room.budget)):
                    packed.append((batch, thread.submit(self._pack, batch)))
                if not packed and not launched:
                    return
                windows = None
                try:
                    if packed:
                        batch, future = packed.popleft()
                        launched.append((batch, self._batch_vectors.launch(future.result())))
                        if len(launched) <= cuda:
                            # a GPU has a batch in hand while the host looks at the one before
                            continue
                    batch, oldest = launched.popleft()
                    windows = self._batch_vectors.collect(oldest)
                except (RuntimeError, MemoryError) as error:
                    raise_others(error, self._engine.device)
                # not above: the error holds on to the tensors of the call that failed
                if windows is not None:
                    self.room.grow()
                    yield batch, windows
                elif self.room.shrink([self._costs[piece] for piece in batch]):
                    for again in (batch, *(waiting for waiting, _ in packed)):
                        packer.add([self._costs[piece] for piece in again], again)
                    packed.clear()
                else:
                    i, _ = self._pieces[batch[0]]
                    self.left_out[i] = "out_of_memory"
                    words = "a sequence of %d residues does not fit into memory: skipped"
                    log.warning(words, self.lengths[i])
        finally:
            thread.shutdown(wait=False, cancel_futures=True)  # as in `spread`

    def _tokenize(self, piece: int) -> Ids:
        i, span = self._pieces[piece]
        (text,) = self._family.texts(self.sequences[i], [span], self.fingerprint.linker)
        return self._engine.tokenize(text)

    def _tokenized(self) -> Iterator[tuple[list[int], list[int]]]:
        """Yield numbers of tokens and their pieces, the longest pieces first, tokenized in threads
        ahead of the device. A sequence with more tokens than positions is left out.
        """
        limit = self._family.max_tokens

        def letters(piece: int) -> int:
            start, stop = self._pieces[piece][1]
            return stop - start

        order = sorted(range(len(self._pieces)), key=letters, reverse=True)
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
        family, linker = self._family, self.fingerprint.linker
        known = [self._ids.pop(piece, None) for piece in batch]
        owners = [self._pieces[piece][0] for piece in batch]
        return pack(
            [
                self._tokenize(piece) if ids is None else ids
                for piece, ids in zip(batch, known, strict=True)
            ],
            family,
            self._engine.rows,
            pinned=self._engine.device.type == "cuda",
            masked=self._masked and [self._masked[i] for i in owners],
            linkers=[family.linker_tokens(self.sequences[i], linker) for i in owners if linker],
        )

    def _whole(self, i: int, windows: dict[Span, Vectors]) -> Vectors:
        """Return the vectors of a sequence, joined from those of its windows. PlmEmbedError where a
        number cannot be stored.
        """
        cut, sequence = self._windows[i], self.sequences[i]
        pieces = [windows[span] for span in cut]
        for name in pieces[0]:
            if not name.endswith(LARGEST):
                continue
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
