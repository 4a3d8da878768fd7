"""Records on their way through memory: columns of a few thousand at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

BATCH_RECORDS = 8_192
BATCH_CHARACTERS = 1 << 22
MOST_RECORDS = 1 << 16
"""Of a batch; each costs some Python numbers for a while."""
BLOCKS_AHEAD = 1

Faults = dict[int, tuple[str, str | None]]
"""By place in a batch why a record cannot be used: a word to group by, and the particulars."""


@dataclass(frozen=True)
class Batch:
    """Consecutive records of one file, numbered from `first`.

    Headers are the line after '>' without trailing blanks, or the id cell; residues are as given,
    white space included but for line ends. Lists of Python strings are made when asked for.
    """

    first: int
    id_column: pa.StringArray
    header_column: pa.StringArray
    text: memoryview
    """The residues of all records in UTF-8, one after the other."""
    ends: NDArray[np.int64]
    """Where each record's residues end in `text` (n,)."""
    kept_columns: tuple[pa.StringArray, ...] = ()
    """One per kept column, or none at all for FASTA."""
    faults: Faults = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.ends)

    @cached_property
    def ids(self) -> list[str]:
        ids: list[str] = self.id_column.to_pylist()
        return ids

    @cached_property
    def headers(self) -> list[str]:
        headers: list[str] = self.header_column.to_pylist()
        return headers

    @cached_property
    def kept(self) -> list[list[str | None]]:
        return [column.to_pylist() for column in self.kept_columns]

    @cached_property
    def residues(self) -> list[str]:
        residues: list[str] = strings(self.text, self.ends).to_pylist()
        return residues


def batch_of(
    first: int,
    ids: Sequence[str],
    headers: Sequence[str],
    residues: Sequence[str],
    *,
    kept: Sequence[Sequence[str | None]] = (),
    faults: Faults | None = None,
) -> Batch:
    """Make a batch of Python strings, n of each."""
    id_column, header_column, residue_column, *kept_columns = (
        pa.array(values, pa.string()) for values in (ids, headers, residues, *kept)
    )
    text, ends = text_and_ends(residue_column)
    return Batch(first, id_column, header_column, text, ends, tuple(kept_columns), faults or {})


def strings(
    text: bytes | memoryview | NDArray[np.uint8], ends: NDArray[np.int64]
) -> pa.StringArray:
    """Cut `text` at `ends`, without making Python strings of the pieces."""
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    return pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(text))


def text_and_ends(column: pa.StringArray) -> tuple[memoryview, NDArray[np.int64]]:
    """Return what `strings` makes a column of. A null must hold no bytes, and becomes an empty
    text.
    """
    if not len(column):
        return memoryview(b""), np.empty(0, np.int64)
    _, offsets, text = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
    return memoryview(text or b"").cast("B")[ends[0] : ends[-1]], ends[1:] - ends[0]
