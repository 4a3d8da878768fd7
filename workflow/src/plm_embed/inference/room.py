"""How large batches may be: by the device's memory, and by what did not fit into it."""

import logging
from collections.abc import Sequence

import numpy as np
import torch

from plm_embed.errors import out_of_memory
from plm_embed.kernels import devices
from plm_embed.models.engine import Engine
from plm_embed.models.packed_batch import LEAST_ROWS, ROWS, TOKENS

log = logging.getLogger(__name__)
BATCHES_TO_FORGET = 32
"""After so many batches in a row a shortage of memory may have passed, and larger ones are tried;
after a shortage that has not passed, twice as many.
"""
SHARE_OF_FREE_MEMORY = 0.8
"""What batches may take; the rest is for fragments, and for sequences longer than those that were
measured.
"""


class Room:
    """How large batches may be, by what memory was seen to hold: `budget` tokens, in products of
    `rows` rows. `least`: the smallest budget so far.

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
    """For a model that was just loaded; `budget` 0: by the device's memory."""
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
