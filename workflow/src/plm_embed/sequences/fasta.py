"""FASTA to batches: cut into blocks of whole records, whose lines are then arrays of places.

Lines end with LF, CR or both.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.io.streams import Stream, as_utf8
from plm_embed.io.threads import ahead
from plm_embed.sequences.batch import (
    BATCH_CHARACTERS,
    BLOCKS_AHEAD,
    MOST_RECORDS,
    Batch,
    batch_of,
    strings,
    text_and_ends,
)
from plm_embed.sequences.formats import LARGEST_RECORD

_READ_BYTES = 1 << 20
_HEAD_BYTES = 1 << 16  # kept of a record that is too large
_MARK = "\ufeff".encode()
_NEWLINE, _GREATER = b"\n>"


class Fasta:
    """The records of a FASTA stream; read once. `records` counts those of the batches returned.

    Text before the first '>' is a batch of one record with the number 0 and a fault.
    """

    def __init__(self) -> None:
        self.records = 0

    def batches(self, stream: Stream) -> Iterator[Batch]:
        # one thread reads, another one parses
        blocks = ahead(record_blocks(stream.read1, BATCH_CHARACTERS), BLOCKS_AHEAD)
        for batch in ahead(_parsed(blocks), BLOCKS_AHEAD):
            self.records += batch.count
            yield batch


@dataclass(frozen=True)
class TooLarge:
    """A record of more than `LARGEST_RECORD` bytes: its first ones, and how many it has."""

    head: bytes
    size: int


def record_blocks(read: Callable[[int], bytes], size: int) -> Iterator[bytes | TooLarge]:
    """Cut the bytes that `read(n)` returns, up to n and none at the end, where records start.

    `size` bytes are read for each block. When `read` raises, the complete records come first, as
    does what precedes the first one. Of a record that is too large only its head is in memory.
    """
    block, dropped = b"", 0  # what is left of the last block, and bytes left out of its record
    error: Exception | None = None
    while True:
        parts, length = [block], 0
        try:
            while length < size and (data := read(_READ_BYTES)):
                parts.append(data)
                length += len(data)
        except Exception as raised:
            error = raised
        block, ended = b"".join(parts), length < size and not error
        if dropped + len(block) > LARGEST_RECORD:  # only the first record can be too large
            end = _next_start(block, _HEAD_BYTES if dropped else 1)
            if end < 0 and not ended:  # keep the last byte, too: it may end a line
                dropped += len(block) - _HEAD_BYTES - 1
                block = block[:_HEAD_BYTES] + block[-1:]
            elif (end := end if end >= 0 else len(block)) + dropped > LARGEST_RECORD:
                yield TooLarge(block[:_HEAD_BYTES], dropped + end)
                block, dropped = block[end:], 0
        end = len(block) if ended else max(block.rfind(b"\n>"), block.rfind(b"\r>")) + 1
        if end and not dropped:
            yield block[:end]
            block = block[end:]
        if error:
            raise error
        if ended:
            return


def _next_start(text: bytes, begin: int) -> int:
    """Return where the first record starts whose line end is at `begin` or later; -1 if none."""
    newline = text.find(b"\n>", begin)
    carriage = text.find(b"\r>", begin, newline + 1 if newline >= 0 else len(text))
    before = newline if carriage < 0 else carriage
    return before + 1 if before >= 0 else -1


def _parsed(blocks: Iterator[bytes | TooLarge]) -> Iterator[Batch]:
    number = 1
    for block in blocks:
        if isinstance(block, TooLarge):
            yield _left_out(block, number)
            number += 1
            continue
        text = _with_newlines(block)
        if not text.startswith(b">"):
            text = text.removeprefix(_MARK)
            start = 0 if text.startswith(b">") else _next_start(text, 0)
            before = text if start < 0 else text[:start]
            if lines := sum(bool(line.strip()) for line in before.decode().split("\n")):
                fault = "text_before_first_header", f"lines: {lines}"
                yield batch_of(0, [""], [""], [""], faults={0: fault})
            text = text[len(before) :]
        for batch in _records(text, number):
            number += batch.count
            yield batch


def _with_newlines(block: bytes) -> bytes:
    """Return text as UTF-8 whose lines end with LF."""
    text = as_utf8(block)
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in text else text


def _left_out(record: TooLarge, number: int) -> Batch:
    """Return the record of this number without its residues."""
    line, end, _ = _with_newlines(record.head).decode().partition("\n")
    header = line[1:].rstrip()
    detail = f"{record.size:,} bytes, more than {LARGEST_RECORD:,}"
    detail += "" if end else "; the header is cut"
    id = (header.split(None, 1) or [""])[0]
    return batch_of(number, [id], [header], [""], faults={0: ("too_large", detail)})


def _records(text: bytes, number: int) -> Iterator[Batch]:
    """Parse whole records in UTF-8, numbered from `number`, whose lines end with LF."""
    text = text if text.endswith(b"\n") else text + b"\n"
    codes = np.frombuffer(text, np.uint8)
    line_ends = np.flatnonzero(codes == _NEWLINE)
    line_starts = np.concatenate([[0], line_ends[:-1] + 1])
    is_header = codes[line_starts] == _GREATER
    header_lines = np.flatnonzero(is_header)
    headers = pc.utf8_rtrim_whitespace(
        _between(text, line_starts[header_lines] + 1, line_ends[header_lines])
    )
    words = pc.utf8_split_whitespace(pc.utf8_ltrim_whitespace(headers), max_splits=1)
    ids = pc.list_element(words, 0)
    residues, _ = text_and_ends(_between(text, line_starts[~is_header], line_ends[~is_header]))
    # residues up to the end of each line, and of each record
    lengths = np.cumsum(np.where(is_header, 0, line_ends - line_starts))
    ends = lengths[np.append(header_lines[1:], len(lengths)) - 1]
    for start in range(0, len(header_lines), MOST_RECORDS):
        part, begin = slice(start, start + MOST_RECORDS), ends[start - 1] if start else 0
        yield Batch(
            number + start,
            ids[part],
            headers[part],
            residues[begin : ends[part][-1]],
            ends[part] - begin,
        )


def _between(text: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> pa.StringArray:
    """Return the pieces of `text` from `starts` to `ends` (n,), which follow one another."""
    pieces = strings(text, np.stack([starts, ends], axis=1).ravel())
    return pieces.take(pa.array(np.arange(1, len(pieces), 2)))
