"""FASTA cut into blocks of whole records; the blocks that need no second look are parsed as arrays.

Most blocks of most files are ASCII with upper-case residues. `parse_clean` takes those and no others; what it declines,
`readers` parses line by line.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.residues import is_clean_text

_READ_BYTES = 1 << 20
_MOST_RECORDS = 1 << 16  # of a block; each costs some Python numbers for a while
_NEWLINE, _SPACE, _GREATER = b"\n >"


@dataclass(frozen=True)
class CleanBatch:
    """Consecutive records, numbered from `first`, whose residues are upper-case letters that the model knows.

    The fields that `readers.Batch` has too are made when asked for.
    """

    first: int
    id_column: pa.StringArray
    header_column: pa.StringArray
    text: bytes
    """The residues of all records, one after the other."""
    ends: NDArray[np.int64]
    """Where each record's residues end in `text` (n,)."""
    kept: tuple[list[str | None], ...] = ()
    faults: dict[int, tuple[str, str | None]] = field(default_factory=dict)

    @cached_property
    def ids(self) -> list[str]:
        ids: list[str] = self.id_column.to_pylist()
        return ids

    @cached_property
    def headers(self) -> list[str]:
        headers: list[str] = self.header_column.to_pylist()
        return headers

    @cached_property
    def residues(self) -> list[str]:
        residues: list[str] = strings(self.text, self.ends).to_pylist()
        return residues


def strings(text: bytes, ends: NDArray[np.int64]) -> pa.StringArray:
    """The pieces of `text` that end at `ends`, without making Python strings of them."""
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    return pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(text))


def record_blocks(read: Callable[[int], bytes], size: int) -> Iterator[bytes]:
    """The bytes that `read(n)` gives, cut at the first start of a record after every `size` bytes.

    `read` returns up to n bytes and nothing at the end. When it raises, the records that are complete by then come
    first, as does what precedes the first.
    """
    pending = bytearray()
    searched = size
    while True:
        try:
            data = read(_READ_BYTES)
        except Exception:
            yield bytes(pending[: _last_start(pending)])
            raise
        if not data:
            break
        pending += data
        while (start := _next_start(pending, searched)) > 0:
            yield bytes(pending[:start])
            del pending[:start]
            searched = size
        searched = max(size, len(pending))
    if pending:
        yield bytes(pending)


def _next_start(text: bytearray, begin: int) -> int:
    """Where the first record at `begin` or later starts; -1 if none. A line ends with LF, CR or both."""
    found = [at + 1 for at in (text.find(b"\n>", begin - 1), text.find(b"\r>", begin - 1)) if at >= 0]
    return min(found, default=-1)


def _last_start(text: bytearray) -> int:
    return max(text.rfind(b"\n>"), text.rfind(b"\r>")) + 1


def parse_clean(block: bytes, first: int) -> CleanBatch | None:
    """The records of a block, numbered from `first`; None unless each is an ASCII header and clean residues.

    A header with a control character, or a blank at either end, or none at all, is left to others too.
    """
    if not block.startswith(b">"):
        return None
    whole = block if block.endswith(b"\n") else block + b"\n"
    letters = np.frombuffer(whole, np.uint8)
    line_ends = np.flatnonzero(letters == _NEWLINE)
    line_starts = np.concatenate([[0], line_ends[:-1] + 1])
    header_lines = np.flatnonzero(letters[line_starts] == _GREATER)
    starts, header_ends = line_starts[header_lines], line_ends[header_lines]
    ends = np.append(starts[1:], len(whole))
    header_lengths = header_ends - starts - 1
    lengths = ends - header_ends - np.diff(header_lines, append=len(line_ends))
    if len(starts) > _MOST_RECORDS or not (header_lengths.all() and lengths.all()):
        return None
    cuts = list(zip(starts.tolist(), header_ends.tolist(), ends.tolist(), strict=True))
    headers = b"".join([whole[start + 1 : header_end] for start, header_end, _ in cuts])
    text = b"".join([whole[header_end:end] for _, header_end, end in cuts]).translate(None, b"\n")
    ids = _first_words(headers, np.cumsum(header_lengths))
    if ids is None or not is_clean_text(text):
        return None
    return CleanBatch(first, ids, strings(headers, np.cumsum(header_lengths)), text, np.cumsum(lengths))


def _first_words(headers: bytes, ends: NDArray[np.int64]) -> pa.StringArray | None:
    """What precedes the first blank of each header that ends at `ends`; None unless all are plain."""
    letters = np.frombuffer(headers, np.uint8)
    starts = np.concatenate([[0], ends[:-1]])
    outer = letters[starts], letters[ends - 1]
    if not headers.isascii() or (letters < _SPACE).any() or any((each == _SPACE).any() for each in outer):
        return None
    blanks = np.append(np.flatnonzero(letters == _SPACE), len(headers))
    word_ends = np.minimum(blanks[np.searchsorted(blanks, starts)], ends)
    words = [headers[start:end] for start, end in zip(starts.tolist(), word_ends.tolist(), strict=True)]
    return strings(b"".join(words), np.cumsum(word_ends - starts))
