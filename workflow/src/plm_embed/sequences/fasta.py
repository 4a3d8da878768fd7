"""FASTA to batches: cut into blocks of whole records, whose lines are then arrays of places.

Lines end with LF, CR or both.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.io.streams import BOM, as_utf8
from plm_embed.io.threads import ahead
from plm_embed.sequences.batch import (
    BLOCK,
    LARGEST_RECORD,
    MOST_RECORDS,
    Batch,
    Faults,
    Lines,
    batch_of,
    strings,
    text_and_ends,
)

_HEAD_BYTES = 1 << 16  # kept of a record that is too large
_PIR = r"^[A-Z][A-Z0-9];"
_BLANK, _DELETE = b" \x7f"


def read_fasta(pieces: Iterator[bytes]) -> Iterator[Batch]:
    """Yield the records of FASTA. Text before the first '>' is a batch of one record with the
    number 0 and a fault.

    Records of PIR, whose first line is a title, and those of more than `LARGEST_RECORD` bytes are
    faults too.
    """
    number = 1
    for block, size in ahead(record_blocks(pieces, BLOCK), 1):  # one thread reads, another parses
        text = as_utf8(block)
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if size:
            yield _left_out(text, number, size)
            number += 1
            continue
        if not text.startswith(b">"):  # the first block
            text = text.removeprefix(BOM)
            start = 0 if text.startswith(b">") else _next_start(text, 0)
            before, text = (text, b"") if start < 0 else (text[:start], text[start:])
            if lines := sum(bool(line.strip()) for line in before.decode().split("\n")):
                fault = "text_before_first_header", f"lines: {lines}"
                yield batch_of(0, [""], [""], [""], faults={0: fault})
        for batch in _parse(text, number) if text else ():
            yield batch
            number += len(batch)


def record_blocks(pieces: Iterator[bytes], size: int) -> Iterator[tuple[bytes, int]]:
    """Cut bytes where records start, into blocks for each of which at least `size` bytes are read.

    A record that is too large is a block of its own: its first bytes, and its size, which is 0 for
    other blocks. When reading fails, the complete records come before the error, as does what
    precedes the first one.
    """
    block, dropped = b"", 0  # what is left of the last block, and bytes left out of its record
    error: Exception | None = None
    while True:
        parts, length = [block], 0
        try:
            while length < size and (data := next(pieces, b"")):
                parts.append(data)
                length += len(data)
        except Exception as raised:
            error = raised
        ended = length < size and not error
        end = max(parts[-1].rfind(b"\n>"), parts[-1].rfind(b"\r>")) + 1
        small = len(block) + length <= LARGEST_RECORD
        if end and small and not (error or ended or dropped):  # spares a copy of the block
            last = memoryview(parts[-1])
            yield b"".join([*parts[:-1], last[:end]]), 0
            block = bytes(last[end:])
            continue
        block = b"".join(parts)
        if dropped + len(block) > LARGEST_RECORD:  # only the first record can be too large
            end = _next_start(block, _HEAD_BYTES if dropped else 1)
            if end < 0 and not ended:  # keep the last byte, too: it may end a line
                dropped += len(block) - _HEAD_BYTES - 1
                block = block[:_HEAD_BYTES] + block[-1:]
            elif (end := end if end >= 0 else len(block)) + dropped > LARGEST_RECORD:
                yield block[:_HEAD_BYTES], dropped + end
                block, dropped = block[end:], 0
        newline = block.rfind(b"\n>")
        end = len(block) if ended else max(newline, block.rfind(b"\r>", newline + 1)) + 1
        if end and not dropped:
            yield block[:end], 0
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


def _left_out(head: bytes, number: int, size: int) -> Batch:
    """Return a record of which only the first bytes are known."""
    line, end, _ = head.decode().partition("\n")
    header = line[1:].rstrip()
    detail = f"{size:,} bytes, more than {LARGEST_RECORD:,}"
    detail += "" if end else "; the header is cut"
    id = (header.split(None, 1) or [""])[0]
    return batch_of(number, [id], [header], [""], faults={0: ("too_large", detail)})


def _parse(text: bytes, number: int) -> Iterator[Batch]:
    """Yield the whole records of UTF-8 text, numbered from `number`, whose lines end with LF."""
    text = text if text.endswith(b"\n") else text + b"\n"
    codes = np.frombuffer(text, np.uint8)
    line_ends = np.flatnonzero(codes == ord("\n"))
    line_starts = np.concatenate([[0], line_ends[:-1] + 1])
    is_header = codes[line_starts] == ord(">")
    header_lines = np.flatnonzero(is_header)
    starts, stops = line_starts[header_lines] + 1, line_ends[header_lines]
    headers = pc.utf8_rtrim_whitespace(_between(text, starts, stops))
    ids = _first_words(headers)
    text_of_residues, residue_line_ends = text_and_ends(
        _between(text, line_starts[~is_header], line_ends[~is_header])
    )
    line_lengths = np.diff(residue_line_ends, prepend=0)
    line_counts = np.diff(header_lines, append=len(line_ends)) - 1
    line_stops = np.cumsum(line_counts)
    residues = strings(text_of_residues, np.append(0, residue_line_ends)[line_stops])
    pir = np.flatnonzero(codes[np.minimum(starts + 2, len(codes) - 1)] == ord(";"))
    pir = pir[pc.match_substring_regex(headers.take(pa.array(pir)), _PIR).to_numpy(False)]
    for start in range(0, len(ids), MOST_RECORDS):
        part = slice(start, start + MOST_RECORDS)
        counts = line_counts[part]
        stop = line_stops[part][-1]
        lines = Lines(line_lengths[stop - counts.sum() : stop], counts)
        faults: Faults = {
            place - start: ("pir_record", "its first line is a title")
            for place in pir[(pir >= start) & (pir < part.stop)].tolist()
        }
        yield Batch(number + start, ids[part], headers[part], residues[part], (), faults, lines)


def _first_words(headers: pa.StringArray) -> pa.StringArray:
    """Return the text of each header before the first white space that is not at its start."""
    text, ends = text_and_ends(headers)
    codes, starts = np.frombuffer(text, np.uint8), np.concatenate([[0], ends[:-1]])
    blanks = np.flatnonzero(codes <= _BLANK)
    plain = len(codes) and codes.max() < _DELETE and (codes[blanks] == _BLANK).all()
    if plain and (starts < ends).all() and (codes[starts] != _BLANK).all():  # twice as fast
        stops = np.append(blanks, len(codes))[np.searchsorted(blanks, starts)]
        return _between(text, starts, np.minimum(stops, ends))
    words = pc.utf8_split_whitespace(pc.utf8_ltrim_whitespace(headers), max_splits=1)
    return pc.list_element(words, 0)


def _between(
    text: bytes | memoryview, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> pa.StringArray:
    """Return the pieces of `text` from `starts` to `ends` (n,), which follow one another."""
    pieces = strings(text, np.stack([starts, ends], axis=1).ravel())
    return pieces.take(pa.array(np.arange(1, len(pieces), 2)))
