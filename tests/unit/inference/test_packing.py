from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from plm_embed.inference.vector_stream import take_batch


def batches_of(costs: list[int], budget: int) -> list[list[int]]:
    waiting, pieces = defaultdict[int, list[int]](list), zip(costs, range(len(costs)), strict=True)
    more = iter([pieces])
    return list(iter(lambda: take_batch(waiting, more, budget), []))


@given(st.lists(st.integers(3, 500), max_size=200), st.integers(3, 600))
def test_every_piece_once_within_the_budget_and_longest_first(
    costs: list[int], budget: int
) -> None:
    batches = batches_of(costs, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(costs)))
    for batch in batches:
        assert len(batch) == 1 or sum(costs[i] for i in batch) <= budget
    firsts = [costs[batch[0]] for batch in batches]
    assert firsts[:1] == sorted(costs, reverse=True)[:1]
    assert firsts == sorted(firsts, reverse=True)


def test_a_batch_is_filled_with_the_longest_that_still_fits() -> None:
    assert batches_of([50, 30, 60, 40, 10], 100) == [[2, 3], [0, 1, 4]]
    assert batches_of([500, 20, 10], 100) == [[0], [1, 2]]  # above the budget, alone
