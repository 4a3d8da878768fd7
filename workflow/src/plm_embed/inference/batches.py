"""Batches: which pieces share one forward pass, and how large a batch may be, by the device's
memory and by what did not fit into it. Where letters do not tell how many tokens they are, pieces
are tokenized before, in threads ahead of the device.
"""

import logging
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch

from plm_embed.errors import out_of_memory
from plm_embed.io.threads import give_up
from plm_embed.kernels import devices
from plm_embed.models.engine import Engine
from plm_embed.models.packed_batch import LEAST_ROWS, ROWS, TOKENS, Batch
from plm_embed.models.tokens import Ids

log = logging.getLogger(__name__)
BATCHES_TO_FORGET = 32
"""After so many batches in a row a shortage of memory may have passed, and larger ones are tried;
after a shortage that has not passed, twice as many.
"""
SHARE_OF_FREE_MEMORY = 0.8
"""The share of free memory for batches; the rest is for fragments, and for sequences longer than
those that were measured.
"""

BATCHES_AHEAD = 16
"""Batches' worth of pieces that are tokenized at a time, while as many are computed."""
LETTERS_AT_ONCE = 1 << 16
"""Letters that a thread takes at a time."""


class Packer:
    """Hands out batches of at most `budget` tokens, longest first, so that memory errors come
    early.

    Each batch starts with the longest piece left and is filled with the longest that still fit. A
    piece longer than the budget gets a batch of its own. The budget may be lowered between two
    batches.
    """

    def __init__(
        self,
        costs: Sequence[int],
        budget: int,
        more: Iterable[tuple[Sequence[int], Sequence[int]]] = (),
    ) -> None:
        """`costs[i]` is the number of tokens of piece i with its special ones.

        `more` has costs and indices of further pieces, asked for when what is left fills no batch.
        """
        self.budget = budget
        self._more = iter(more)
        self._left = sum(costs)
        self._by_cost: dict[int, list[int]] = defaultdict(list)
        for index in reversed(range(len(costs))):
            self._by_cost[costs[index]].append(index)
        self._costs = sorted(self._by_cost)

    def add(self, costs: Sequence[int], indices: Sequence[int]) -> None:
        """Take in pieces: of a batch that did not fit into memory, or further ones."""
        self._left += sum(costs)
        for cost, index in zip(costs, indices, strict=True):
            self._by_cost[cost].append(index)
        self._costs = sorted(cost for cost, waiting in self._by_cost.items() if waiting)

    def take(self) -> list[int]:
        """The next batch's pieces; none when all are taken."""
        while self._left < self.budget and (further := next(self._more, None)) is not None:
            self.add(*further)
        free = self.budget
        batch: list[int] = []
        while self._costs:
            at = bisect_right(self._costs, free) - 1 if batch else -1
            if batch and at < 0:
                break
            cost = self._costs[at]
            batch.append(self._by_cost[cost].pop())
            free -= cost
            self._left -= cost
            if not self._by_cost[cost]:
                self._costs.remove(cost)
        return batch

    def __iter__(self) -> Iterator[list[int]]:
        while batch := self.take():
            yield batch


@dataclass
class TokensAhead:
    """Tokenizes pieces, the longest first, a block of them while the one before is computed."""

    model: Engine
    lengths: Sequence[int]
    texts: Callable[[Sequence[int]], list[str]]
    """The letters of some pieces."""
    budget: int
    """Tokens per batch."""
    costs: list[int]
    """The number of tokens of each piece; an estimate until its block is handed out."""
    too_many: list[int] = field(default_factory=list)
    """Pieces of more tokens than the model has positions for; they are not handed out."""
    _ids: dict[int, Ids] = field(default_factory=dict)

    def prepare(self, batch: list[int]) -> Batch:
        """Pack some pieces of blocks that were handed out."""
        if lacking := [piece for piece in batch if piece not in self._ids]:  # packed once before
            self._ids |= zip(lacking, self._tokenize(self.texts(lacking)), strict=True)
        return self.model.pack([self._ids.pop(piece) for piece in batch])

    def blocks(self) -> Iterator[tuple[list[int], list[int]]]:
        """The numbers of tokens of some pieces, and which these are, until all are tokenized."""
        letters = BATCHES_AHEAD * self.budget * self.model.manifest.family.letters_per_token
        order = sorted(range(len(self.lengths)), key=self.lengths.__getitem__, reverse=True)
        waiting: deque[list[tuple[list[int], Future[list[Ids]]]]] = deque()
        pool = ThreadPoolExecutor(torch.get_num_threads())
        try:
            for block in self._cut(order, letters):
                shares = self._cut(block, LETTERS_AT_ONCE)
                waiting.append(
                    [(share, pool.submit(self._tokenize, self.texts(share))) for share in shares]
                )
                if len(waiting) > 1:
                    yield self._finished(waiting.popleft())
            while waiting:
                yield self._finished(waiting.popleft())
        finally:
            give_up(pool)

    def _cut(self, pieces: Sequence[int], letters: int) -> Iterator[list[int]]:
        """Runs of pieces with at most so many letters, or one piece that has more."""
        run: list[int] = []
        left = letters
        for piece in pieces:
            if run and self.lengths[piece] > left:
                yield run
                run, left = [], letters
            run.append(piece)
            left -= self.lengths[piece]
        if run:
            yield run

    def _tokenize(self, texts: list[str]) -> list[Ids]:
        return [self.model.tokenize(text) for text in texts]

    def _finished(
        self, shares: list[tuple[list[int], Future[list[Ids]]]]
    ) -> tuple[list[int], list[int]]:
        limit = self.model.manifest.family.max_tokens
        costs, pieces = [], []
        for share, future in shares:
            for piece, found in zip(share, future.result(), strict=True):
                if limit is not None and len(found) > limit:
                    self.too_many.append(piece)
                    continue
                self._ids[piece] = found
                self.costs[piece] = len(found)
                costs.append(len(found))
                pieces.append(piece)
        return costs, pieces


class Room:
    """The size of batches, by what memory was seen to hold: `budget` tokens, in products of `rows`
    rows. `least`: the smallest budget so far.

    Batches are padded to whole products, so once they are no larger than one, products shrink, down
    to `least_rows`.
    """

    def __init__(self, budget: int, rows: int, least_rows: int) -> None:
        self.budget = self.least = self._full_budget = budget
        self.rows = self._full_rows = rows
        self._least_rows = least_rows
        self._successes, self._patience = 0, BATCHES_TO_FORGET
        self._grown = False

    def shrink(self, costs: Sequence[int]) -> bool:
        """After a batch of sequences of so many tokens did not fit: make batches smaller; False
        where that would not help these.
        """
        self._successes = 0
        self._patience *= 1 + self._grown  # what did not last is tried less often
        self._grown = False
        if sum(costs) > self.rows:
            if len(costs) == 1:
                return False
            self.budget = max(self.budget // 2, self.rows)
            log.warning("out of memory: token budget lowered to %d", self.budget)
        elif self.rows > self._least_rows:
            self.rows //= 2
            self.budget = min(self.budget, self.rows)
            log.warning(
                "out of memory: products of %d rows, not %d; the last bits of vectors may differ "
                "from those of other batches",
                self.rows,
                self._full_rows,
            )
        else:
            return False
        self.least = min(self.least, self.budget)
        return True

    def grow(self) -> bool:
        """After a batch that did fit: whether enough did for larger ones to be tried again."""
        if self.budget == self._full_budget and self.rows == self._full_rows:
            return False
        self._successes += 1
        if self._successes < self._patience:
            return False
        self._successes, self._grown = 0, True
        self.rows = min(2 * self.rows, self._full_rows)
        self.budget = min(2 * self.budget, self._full_budget)
        return True


def room_for(model: Engine, layers: Sequence[int], budget: int = 0) -> Room:
    """Measure the room for a model that was just loaded; `budget` 0: by the device's memory."""
    measured = token_budget(model, layers)
    return Room(budget or measured, model.rows, LEAST_ROWS[model.device.type])


def token_budget(model: Engine, layers: Sequence[int]) -> int:
    """Tokens per batch for a device: on CUDA from its free memory and what a first batch takes.

    Where even one product does not fit, the model's number of rows shrinks.
    """
    if model.device.type != "cuda":
        return TOKENS["cpu"]
    while True:
        try:
            free, taken = _tried(model, layers)
            return budget_from(free, taken, model.rows, TOKENS["cuda"])
        except RuntimeError as error:
            if not out_of_memory(error) or model.rows <= LEAST_ROWS["cuda"]:
                raise
        torch.cuda.empty_cache()
        model.rows //= 2
        log.warning(
            "%s has little free memory: products of %d rows; the last bits of vectors may differ "
            "from those of products of %d",
            devices.device_name(model.device),
            model.rows,
            ROWS["cuda"],
        )


def _tried(model: Engine, layers: Sequence[int]) -> tuple[int, int]:
    """Bytes that are free on a CUDA device, and those that a batch of one product takes."""
    batch = model.pack([np.zeros(model.rows // 32, np.uint8)] * 32)
    torch.cuda.synchronize(model.device)
    torch.cuda.reset_peak_memory_stats(model.device)
    before = torch.cuda.memory_allocated(model.device)
    model.forward(batch, layers)
    torch.cuda.synchronize(model.device)
    taken = torch.cuda.max_memory_allocated(model.device) - before
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(model.device)[0], taken


def budget_from(free: int, taken: int, rows: int, largest: int) -> int:
    """Tokens for `free` bytes when `rows` tokens take `taken` bytes: a multiple of `rows`, at least
    one, at most `largest`."""
    slices = int(SHARE_OF_FREE_MEMORY * free / max(taken, 1))
    return max(rows, min(largest, slices * rows))
