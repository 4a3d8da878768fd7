import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_embed.fingerprint import LongSequences
from plm_embed.sequence_windows import (
    combine,
    shared_tokens,
    span_ends,
    spans,
    stored_residues,
    stored_spans,
    window_counts,
)


@pytest.mark.parametrize(
    ("length", "policy", "expected", "windows"),
    [
        (5000, LongSequences("whole"), [(0, 5000)], 1),
        (10, LongSequences("window", 10, 2), [(0, 10)], 1),
        (11, LongSequences("window", 10, 2), [(0, 10), (1, 11)], 2),
        (18, LongSequences("window", 10, 2), [(0, 10), (8, 18)], 2),
        (19, LongSequences("window", 10, 2), [(0, 10), (8, 18), (9, 19)], 3),
        (20, LongSequences("window", 10, 0), [(0, 10), (10, 20)], 2),
        (10, LongSequences("crop", 10), [(0, 10)], 1),
        (11, LongSequences("crop", 10), [(0, 10)], 0),
        (10, LongSequences("skip", 10), [(0, 10)], 1),
        (11, LongSequences("skip", 10), [], 0),
    ],
)
def test_spans(
    length: int, policy: LongSequences, expected: list[tuple[int, int]], windows: int
) -> None:
    assert spans(length, policy) == expected
    lengths = np.array([length, 3], dtype=np.int32)
    assert window_counts(lengths, policy).tolist() == [windows, 1]
    rows = max((stop for _, stop in expected), default=0)
    assert stored_residues(lengths, policy).tolist() == [rows, 3]


@given(st.data())
def test_windows_cover_every_residue_in_order(data: st.DataObject) -> None:
    limit = data.draw(st.integers(1, 50))
    policy = LongSequences("window", limit, data.draw(st.integers(0, limit - 1)))
    length = data.draw(st.integers(1, 400))
    found = spans(length, policy)
    assert {i for start, stop in found for i in range(start, stop)} == set(range(length))
    assert found == sorted(set(found))
    assert all(stop - start == min(limit, length) for start, stop in found)


@given(st.integers(2, 60), st.integers(1, 20), st.data())
def test_per_residue_windows_give_each_residue_once(
    length: int, limit: int, data: st.DataObject
) -> None:
    policy = LongSequences("window", limit, data.draw(st.integers(0, limit - 1)))
    where = spans(length, policy)
    residues = np.arange(length, dtype=np.float32)[:, None]
    joined = combine("per_residue", [residues[start:stop] for start, stop in where], where)
    np.testing.assert_array_equal(joined, residues)


def test_mean_is_weighted_by_length_and_max_is_not() -> None:
    where = [(0, 3), (3, 4)]
    pieces = [np.array([1.0, 8.0], dtype=np.float32), np.array([5.0, 4.0], dtype=np.float32)]
    np.testing.assert_allclose(combine("mean", pieces, where), [2.0, 7.0])
    np.testing.assert_allclose(combine("bos", pieces, where), [2.0, 7.0])
    np.testing.assert_allclose(combine("max", pieces, where), [5.0, 8.0])
    assert combine("mean", pieces, where).dtype == np.float32


def test_spans_of_tokens_are_stored_in_small_numbers() -> None:
    first, stop = np.array([0, 6, 12, 10, 20]), np.array([6, 12, 13, 15, 26])
    stored = stored_spans(first, stop)
    assert stored.tolist() == [[0, 6], [0, 6], [0, 1], [-3, 5], [5, 6]]
    assert span_ends(stored.astype(np.float16)).tolist() == np.stack([first, stop], 1).tolist()
    with pytest.raises(ValueError, match="more than 256 letters"):
        stored_spans(np.array([0]), np.array([257]))


def test_a_token_is_taken_from_the_window_that_its_first_letter_lies_in() -> None:
    where = [(0, 10), (6, 16)]  # cut at 8
    pieces = [
        stored_spans(np.array([0, 4, 7]), np.array([4, 7, 10])),
        stored_spans(np.array([0, 3, 6]), np.array([3, 6, 10])),
    ]
    rows, found = shared_tokens(pieces, where)
    assert rows == [slice(0, 3), slice(1, 3)]  # letter 9 is in two tokens
    assert span_ends(found).tolist() == [[0, 4], [4, 7], [7, 10], [9, 12], [12, 16]]
