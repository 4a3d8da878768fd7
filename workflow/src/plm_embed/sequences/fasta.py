"""FASTA cut into blocks of whole records; the blocks that need no second look are parsed as arrays.

Most blocks of most files are ASCII without blanks among the residues. `parse_plain` takes those and
no others; what it declines, `records` parses line by line.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.sequences.formats import LARGEST_RECORD

BATCH_RECORDS = 8_192
BATCH_CHARACTERS = 1 << 22
MOST_RECORDS = 1 << 16
"""Of a block; each costs some Python numbers for a while."""
BLOCKS_AHEAD = 1
_READ_BYTES = 1 << 20
_HEAD_BYTES = 1 << 16  # kept of a record that is too large
_NEWLINE, _SPACE, _GREATER, _TILDE = b"\n >~"

Faults = dict[int, tuple[str, str | None]]
"""By place in a batch why a record cannot be used: a word to group by, and the particulars."""


@dataclass
class Batch:
    """Consecutive records of one file, numbered from `first`; lists of equal length.

    `headers` hold the line after '>' without trailing blanks, or the id cell; `residues` are as
    given, white space included but for line ends. `kept` has one list per kept column, or none at
    all for FASTA.
    """

    first: int
    ids: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    residues: list[str] = field(default_factory=list)
    kept: list[list[str | None]] = field(default_factory=list)
    faults: Faults = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.ids)

    def in_columns(self) -> "PlainBatch":
        ids, headers, residues, *kept = (
            pa.array(texts, pa.string())
            for texts in (self.ids, self.headers, self.residues, *self.kept)
        )
        text, ends = text_and_ends(residues)
        return PlainBatch(self.first, ids, headers, text, ends, tuple(kept), self.faults)


@dataclass(frozen=True)
class PlainBatch:
    """What `Batch` holds, as columns; its other fields are made when asked for."""

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


def strings(
    text: bytes | memoryview | NDArray[np.uint8], ends: NDArray[np.int64]
) -> pa.StringArray:
    """The pieces of `text` that end at `ends`, without making Python strings of them."""
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    return pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(text))


def text_and_ends(column: pa.StringArray) -> tuple[memoryview, NDArray[np.int64]]:
    """What `strings` makes a column of. A null must hold no bytes, and becomes an empty text."""
    if not len(column):
        return memoryview(b""), np.empty(0, np.int64)
    _, offsets, text = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
    return memoryview(text or b"").cast("B")[ends[0] : ends[-1]], ends[1:] - ends[0]


@dataclass(frozen=True)
class TooLarge:
    """A record of more than `LARGEST_RECORD` bytes: its first ones, and how many it has."""

    head: bytes
    size: int


def record_blocks(read: Callable[[int], bytes], size: int) -> Iterator[bytes | TooLarge]:
    """The bytes that `read(n)` gives, cut at the first start of a record after every `size` bytes.

    `read` returns up to n bytes and nothing at the end. When it raises, the records that are
    complete by then come first, as does what precedes the first. `size` is at most
    `LARGEST_RECORD`; of a larger record its head is kept.
    """
    parts: list[bytes] = []  # of the block under way
    length = 0
    rest = b""  # read, but not yet looked at
    while True:
        try:
            data = rest or read(_READ_BYTES)
        except Exception:
            pending = b"".join(parts)
            yield pending[: _last_start(pending)]
            raise
        rest = b""
        if not data:
            break
        while (start := _next_start(parts, data, size - length)) >= 0:
            yield from _bounded(b"".join([*parts, data[:start]]))
            parts, length, data = [], 0, data[start:]
        parts.append(data)
        length += len(data)
        if length > size + LARGEST_RECORD:  # no record has started since `size`
            *whole, large = _bounded(b"".join(parts))
            assert isinstance(large, TooLarge)
            yield from whole
            parts, length = [], 0
            skipped, rest = _skip(read, data)
            yield TooLarge(large.head, large.size + skipped)
    if parts:
        yield from _bounded(b"".join(parts))


def _bounded(block: bytes) -> Iterator[bytes | TooLarge]:
    """A block, without its last record when that is too large: the others are shorter than blocks
    are cut.
    """
    start = _last_start(block) if len(block) > LARGEST_RECORD else len(block)
    if len(block) - start <= LARGEST_RECORD:
        yield block
        return
    if start:
        yield block[:start]
    yield TooLarge(block[start : start + _HEAD_BYTES], len(block) - start)


def _skip(read: Callable[[int], bytes], before: bytes) -> tuple[int, bytes]:
    """How many bytes there are up to the next record, and what was read from there; `before` was
    read last.
    """
    skipped = 0
    while data := read(_READ_BYTES):
        if (start := _next_start([before], data, 0)) >= 0:
            return skipped + start, data[start:]
        skipped, before = skipped + len(data), data
    return skipped, b""


def _next_start(before: Sequence[bytes], data: bytes, begin: int) -> int:
    """Where in `data`, which follows `before`, the first record at `begin` or later starts; -1 if
    none.

    A line ends with LF, CR or both.
    """
    if begin <= 0 and before and before[-1][-1] in b"\r\n" and data[0] == _GREATER:
        return 0
    begin = max(begin, 1)
    after = data.find(b"\n>", begin - 1)
    earlier = data.find(b"\r>", begin - 1, after + 1 if after >= 0 else len(data))
    found = after if earlier < 0 else earlier
    return found + 1 if found >= 0 else -1


def _last_start(text: bytes) -> int:
    return max(text.rfind(b"\n>"), text.rfind(b"\r>")) + 1


def parse_plain(block: bytes, first: int) -> PlainBatch | None:
    """The records of a block, numbered from `first`; None unless each is an ASCII header and
    residues that are visible signs of ASCII.

    A header with a control character, or a blank at either end, or none at all, is left to others
    too. Most of the work is done by calls that let other threads run.
    """
    if not block.startswith(b">"):
        return None
    whole = block if block.endswith(b"\n") else block + b"\n"
    letters = np.frombuffer(whole, np.uint8)
    line_ends = np.flatnonzero(letters == _NEWLINE)
    line_starts = np.concatenate([[0], line_ends[:-1] + 1])
    is_header = letters[line_starts] == _GREATER
    header_lines = np.flatnonzero(is_header)
    # residues up to the end of each line, and of each record
    residues = np.cumsum(np.where(is_header, 0, line_ends - line_starts))
    ends = residues[np.append(header_lines[1:], len(residues)) - 1]
    starts, header_ends = line_starts[header_lines] + 1, line_ends[header_lines]
    if (
        len(ends) > MOST_RECORDS
        or (starts == header_ends).any()
        or not np.diff(ends, prepend=0).all()
    ):
        return None
    headers = between(whole, starts, header_ends)
    ids = _first_words(headers)
    lines = between(whole, line_starts[~is_header], line_ends[~is_header])
    text, _ = text_and_ends(lines)
    signs = np.frombuffer(text, np.uint8)
    if ids is None or signs.min() <= _SPACE or signs.max() > _TILDE:
        return None
    return PlainBatch(first, ids, headers, text, ends)


def between(
    text: bytes | NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> pa.StringArray:
    """The pieces of `text` from `starts` to `ends` (n,), which follow one another."""
    pieces = strings(text, np.stack([starts, ends], axis=1).ravel())
    return pieces.take(pa.array(np.arange(1, len(pieces), 2)))


def _first_words(headers: pa.StringArray) -> pa.StringArray | None:
    """What precedes the first blank of each header; None unless all are plain."""
    ends = np.frombuffer(headers.buffers()[1], np.int32, len(headers), 4).astype(np.int64)
    letters = np.frombuffer(headers.buffers()[2], np.uint8, ends[-1])
    starts = np.concatenate([[0], ends[:-1]])
    outer = letters[starts], letters[ends - 1]
    if (
        letters.min() < _SPACE
        or letters.max() > _TILDE
        or any((each == _SPACE).any() for each in outer)
    ):
        return None
    blanks = np.append(np.flatnonzero(letters == _SPACE), len(letters))
    word_ends = np.minimum(blanks[np.searchsorted(blanks, starts)], ends)
    return between(letters, starts, word_ends)
