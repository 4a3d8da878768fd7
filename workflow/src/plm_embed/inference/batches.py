"""Batches: which pieces share a forward pass, and how many tokens fit into a device's memory."""

import logging
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from plm_embed.errors import out_of_memory
from plm_embed.kernels import devices
from plm_embed.models.engine import Engine
from plm_embed.models.packed_batch import LEAST_ROWS, TOKENS

log = logging.getLogger(__name__)
BATCHES_AHEAD = 16
"""Batches' worth of pieces to choose from, where more become known while others are computed."""
BATCHES_TO_FORGET = 32
"""Batches in a row that fit before larger ones are tried again; after a shortage that has not
passed, twice as many.
"""
SHARE_OF_FREE_MEMORY = 0.8
"""The share of free memory for batches; the rest is for fragments, and for sequences longer than
those that were measured.
"""


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


class Room:
    """Size of batches by what memory was seen to hold: `budget` tokens, in products of the engine's
    number of rows.

    Batches are padded to whole products, so once they are no larger than one, products shrink.
    """

    def __init__(self, engine: Engine, budget: int) -> None:
        self.engine = engine
        self.budget = self._full_budget = budget
        self._full_rows = engine.rows
        self._successes, self._patience = 0, BATCHES_TO_FORGET
        self._grown = False

    def shrink(self, costs: Sequence[int]) -> bool:
        """Make batches smaller after one of sequences of so many tokens did not fit; return False
        where that would not help these.
        """
        engine = self.engine
        self._successes = 0
        self._patience *= 1 + self._grown
        self._grown = False
        if sum(costs) > engine.rows:
            if len(costs) == 1:
                return False
            self.budget = max(self.budget // 2, engine.rows)
            log.warning("out of memory: token budget lowered to %d", self.budget)
        elif engine.rows > LEAST_ROWS[engine.device.type]:
            engine.rows //= 2
            self.budget = min(self.budget, engine.rows)
            log.warning(
                "out of memory: products of %d rows; the last bits of vectors may differ from "
                "those of other batches",
                engine.rows,
            )
        else:
            return False
        return True

    def grow(self) -> None:
        """Count a batch that fit; make batches larger again after enough of them."""
        if self.budget == self._full_budget and self.engine.rows == self._full_rows:
            return
        self._successes += 1
        if self._successes == self._patience:
            self._successes, self._grown = 0, True
            self.engine.rows = min(2 * self.engine.rows, self._full_rows)
            self.budget = min(2 * self.budget, self._full_budget)


def room_for(engine: Engine, layers: Sequence[int], budget: int = 0) -> Room:
    """Measure the room for batches of a model that was just loaded: on CUDA by the memory that a
    batch of one product takes, and by what is then free. A `budget` in tokens takes precedence.

    Where even one product does not fit, the engine's products get fewer rows.
    """
    device, largest = engine.device, TOKENS[engine.device.type]
    while device.type == "cuda":
        try:
            batch = engine.pack([np.zeros(engine.rows // 32, np.uint8)] * 32)
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            engine.forward(batch, layers)
            torch.cuda.synchronize(device)
            used = max(torch.cuda.max_memory_allocated(device) - before, 1)
            torch.cuda.empty_cache()
            products = int(SHARE_OF_FREE_MEMORY * torch.cuda.mem_get_info(device)[0] / used)
            largest = max(engine.rows, min(largest, products * engine.rows))
            break
        except RuntimeError as error:
            if not out_of_memory(error) or engine.rows <= LEAST_ROWS["cuda"]:
                raise
        torch.cuda.empty_cache()
        engine.rows //= 2
        log.warning(
            "%s has little free memory: products of %d rows; the last bits of vectors may differ "
            "from those of larger products",
            devices.device_name(device),
            engine.rows,
        )
    return Room(engine, budget or largest)
