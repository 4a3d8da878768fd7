"""What validate knows of the letters of tokens without a tokenizer."""

import numpy as np
import pytest

from plm_embed.master.check_spans import wrong_spans

# three sequences, as stored: letters between the token before and this one, and letters of it
WHOLE = [(0, 5), (0, 1), (0, 6)]  # of 12 letters in one piece
# of 15 letters; those of two windows overlap
WINDOWS = [(0, 6), (-2, 6), (1, 4)]
CROPPED = [(0, 6), (0, 4)]  # the first 10 of more
STORED = np.array(WHOLE + WINDOWS + CROPPED, dtype=np.float16)
EDGES = np.array([0, 3, 6, 8])


def wrong(stored: np.ndarray, kept: tuple[int, ...] = (12, 15, 10)) -> list[bool]:
    windows = np.array([1, 2, 0], dtype=np.int32)
    return wrong_spans(stored, EDGES, np.array(kept), windows).tolist()


def test_tokens_that_are_all_letters_in_order() -> None:
    assert wrong(STORED) == [False, False, False]


@pytest.mark.parametrize(
    ("row", "stored", "sequence"),
    [
        (0, (1, 4), 0),  # does not begin with the first letter
        (3, (1, 5), 1),
        (1, (1, 1), 0),  # a gap in one piece
        (1, (-1, 1), 0),
        (6, (0, 5), 2),  # more letters than there are
        (7, (0, 3), 2),  # fewer
        (1, (0, 0), 0),  # a token of nothing
        (4, (-6, 10), 1),  # does not go forward, though it ends well
        (1, (0, 1.5), 0),
        (5, (np.nan, 4), 1),
    ],
)
def test_what_cannot_be(row: int, stored: tuple[float, float], sequence: int) -> None:
    changed = STORED.copy()
    changed[row] = stored
    assert np.flatnonzero(wrong(changed)).tolist() == [sequence]


def test_tokens_of_another_length() -> None:
    assert wrong(STORED, (12, 15, 11)) == [False, False, True]
