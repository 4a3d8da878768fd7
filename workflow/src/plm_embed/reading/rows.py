"""Numbers of rows as readers are asked for them, and what is refused among them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


def whole(rows: NDArray[Any]) -> Rows:
    """Numbers of rows as they are counted here. IndexError for others than whole numbers, and for
    a single one.
    """
    if rows.size and isinstance(rows.flat[0], str):
        raise IndexError("rows are whole numbers; for ids, get([...])")
    if rows.size and rows.dtype.kind not in "iu":
        raise IndexError(f"rows are whole numbers, not {rows.dtype}")
    if rows.ndim != 1:
        raise IndexError(f"rows are a list of numbers, not an array of shape {rows.shape}")
    return rows.astype(np.int64)


def within(rows: Rows, count: int) -> Rows:
    """The same numbers among `count` rows, negative ones counted from the end. IndexError for what
    is not there.
    """
    if len(rows) and not (-count <= rows.min() and rows.max() < count):
        raise IndexError(f"rows {rows.min()} to {rows.max()} of {count}")
    return rows % max(count, 1)


def chosen(rows: NDArray[Any], count: int) -> Rows:
    """The rows that an array of numbers (k,), or a mask (count,), chooses. IndexError for a mask of
    another shape, and as above.
    """
    if rows.dtype != bool:
        return within(whole(rows), count)
    if rows.shape != (count,):
        raise IndexError(f"a mask of shape {rows.shape} for {count} rows")
    return np.flatnonzero(rows)
