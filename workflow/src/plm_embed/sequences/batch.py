"""Records on their way through memory, as columns of Arrow."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

BLOCK = 1 << 22
"""Bytes of a file, decompressed, that are parsed at a time."""
MOST_RECORDS = 1 << 16
"""Records of a batch; a record costs some Python objects for a while."""
LARGEST_RECORD = 1 << 24
"""Bytes of a FASTA record, characters of a table row: more is not taken into memory. No protein has
a hundredth; the chromosome of a bacterium fits, that of an animal does not.
"""

Faults = dict[int, tuple[str, str | None]]
"""Reasons, by place in a batch, why a record cannot be used: a word to group by, and the
particulars.
"""


@dataclass(frozen=True)
class Batch:
    """Consecutive records of one file, numbered from `first`.

    Headers are the line after '>' without trailing blanks, or the id cell; residues are as in the
    file, white space included but for the line ends of FASTA.
    """

    first: int
    ids: pa.StringArray
    headers: pa.StringArray
    residues: pa.StringArray
    columns: tuple[pa.StringArray, ...] = ()
    """One per column to keep, or none at all for FASTA."""
    faults: Faults = field(default_factory=dict)
    lines: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    """Lengths of the lines of residues in FASTA, and how many lines each record has."""

    def __len__(self) -> int:
        return len(self.ids)


def batch_of(
    first: int,
    ids: Sequence[str],
    headers: Sequence[str],
    residues: Sequence[str],
    faults: Faults,
) -> Batch:
    """Make a batch of Python strings, n of each."""
    arrays = [pa.array(values, pa.string()) for values in (ids, headers, residues)]
    return Batch(first, arrays[0], arrays[1], arrays[2], faults=faults)


def strings(
    text: bytes | memoryview | NDArray[np.uint8], ends: NDArray[np.integer]
) -> pa.StringArray:
    """Cut UTF-8 `text` at `ends` (n,) without copying it."""
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
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
