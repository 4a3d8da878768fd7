from hypothesis import given
from hypothesis import strategies as st

from plm_embed.inference.vector_stream import Packer

costs = st.lists(st.integers(3, 500), max_size=200)


def batches_of(costs: list[int], budget: int) -> list[list[int]]:
    packer = Packer([(costs, range(len(costs)))])
    return list(iter(lambda: packer.take(budget), []))


@given(costs, st.integers(3, 600))
def test_every_piece_once_within_the_budget(costs: list[int], budget: int) -> None:
    batches = batches_of(costs, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(costs)))
    for batch in batches:
        assert len(batch) == 1 or sum(costs[i] for i in batch) <= budget


@given(costs, st.integers(3, 600))
def test_longest_first(costs: list[int], budget: int) -> None:
    firsts = [costs[batch[0]] for batch in batches_of(costs, budget)]
    assert firsts[:1] == sorted(costs, reverse=True)[:1]
    assert firsts == sorted(firsts, reverse=True)


def test_fills_a_batch_with_the_longest_that_still_fits() -> None:
    assert batches_of([50, 30, 60, 40, 10], 100) == [[2, 3], [0, 1, 4]]


def test_a_piece_above_the_budget_travels_alone() -> None:
    assert batches_of([500, 20, 10], 100) == [[0], [1, 2]]


def test_what_is_put_back_comes_again_in_smaller_batches() -> None:
    costs = [40, 40, 40, 40]
    packer = Packer([(costs, range(4))])
    budget, seen = 160, []
    while batch := packer.take(budget):
        if len(batch) > 2:
            packer.add([costs[i] for i in batch], batch)
            budget //= 2
        else:
            seen.append(batch)
    assert sorted(i for batch in seen for i in batch) == [0, 1, 2, 3]
    assert [len(batch) for batch in seen] == [2, 2]
