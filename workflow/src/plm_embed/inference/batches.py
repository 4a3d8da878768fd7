"""Packing: which pieces share one forward pass."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence


class Packer:
    """Hands out batches of at most `budget` tokens, longest first, so that memory errors come
    early.

    Each batch starts with the longest piece left and is filled with the longest that still fit. A
    piece longer than the budget gets a batch of its own. The budget may be lowered between two
    batches.
    """

    def __init__(self, costs: Sequence[int], budget: int) -> None:
        """`costs[i]` is the number of tokens of piece i with its special ones."""
        self.budget = budget
        self._by_cost: dict[int, list[int]] = defaultdict(list)
        for index in reversed(range(len(costs))):
            self._by_cost[costs[index]].append(index)
        self._costs = sorted(self._by_cost)

    def put_back(self, costs: Sequence[int], indices: Sequence[int]) -> None:
        """Return pieces of a batch that did not fit into memory."""
        for cost, index in zip(costs, indices, strict=True):
            self._by_cost[cost].append(index)
        self._costs = sorted(cost for cost, waiting in self._by_cost.items() if waiting)

    def take(self) -> list[int]:
        """The next batch's pieces; none when all are taken."""
        free = self.budget
        batch: list[int] = []
        while self._costs:
            at = bisect_right(self._costs, free) - 1 if batch else -1
            if batch and at < 0:
                break
            cost = self._costs[at]
            batch.append(self._by_cost[cost].pop())
            free -= cost
            if not self._by_cost[cost]:
                self._costs.remove(cost)
        return batch

    def __iter__(self) -> Iterator[list[int]]:
        while batch := self.take():
            yield batch
