"""FASTA to batches: cut into blocks of whole records, whose lines are then arrays of places.

Lines end with LF, CR or both.
"""

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plm_embed.io.streams import BOM, as_utf8
from plm_embed.io.threads import ahead
from plm_embed.sequences.batch import (
    BLOCK,
    LARGEST_RECORD,
    MOST_RECORDS,
    Batch,
    Faults,
    strings,
    text_and_ends,
)

_HEAD_BYTES = 1 << 16  # kept of a record that is too large


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
            line, end, _ = text.decode().partition("\n")
            detail = f"{size:,} bytes, more than {LARGEST_RECORD:,}"
            detail += "" if end else "; the header is cut"
            yield _unused(number, line[1:].rstrip(), ("too_large", detail))
            number, text = number + 1, b""
        elif not text.startswith(b">"):  # the first block
            text = text.removeprefix(BOM)
            start = 0 if text.startswith(b">") else _next_start(text, 0)
            before, text = (text, b"") if start < 0 else (text[:start], text[start:])
            if lines := sum(bool(line.strip()) for line in before.decode().split("\n")):
                yield _unused(0, "", ("text_before_first_header", f"lines: {lines}"))
        while text:
            batch, text = _parse(text, number)
            yield batch
            number += len(batch)


def _unused(number: int, header: str, fault: tuple[str, str]) -> Batch:
    """Return a batch of one record without residues."""
    ids = pa.array(header.split()[:1] or [""])
    return Batch(number, ids, pa.array([header]), pa.array([""]), faults={0: fault})


def record_blocks(pieces: Iterator[bytes], size: int) -> Iterator[tuple[bytes, int]]:
    """Cut bytes where records start, into blocks for each of which at least `size` bytes are read.

    A record that is too large is a block of its own: its first bytes, and its size, which is 0 for
    other blocks. When reading fails, the complete records come before the error, as does what
    precedes the first one.
    """
    block, dropped = b"", 0  # what is left of the last block, and bytes left out of its record
    error: Exception | None = None
    ended = False
    while not (ended or error):
        parts, length = [block], 0
        try:
            while length < size and (data := next(pieces, b"")):
                parts.append(data)
                length += len(data)
            ended = length < size
        except Exception as raised:
            error = raised
        last = parts[-1]
        end = max(last.rfind(b"\n>"), last.rfind(b"\r>")) + 1
        small = len(block) + length <= LARGEST_RECORD
        if end and small and not (ended or error or dropped):  # spares a copy of the block
            yield b"".join([*parts[:-1], memoryview(last)[:end]]), 0
            block = last[end:]
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


def _next_start(text: bytes, begin: int) -> int:
    """Return where the first record starts whose line end is at `begin` or later; -1 if none."""
    newline = text.find(b"\n>", begin)
    carriage = text.find(b"\r>", begin, newline + 1 if newline >= 0 else len(text))
    before = newline if carriage < 0 else carriage
    return before + 1 if before >= 0 else -1


def _parse(text: bytes, number: int) -> tuple[Batch, bytes]:
    """Return the records of UTF-8 text, numbered from `number`, whose lines end with LF, and the
    text of those that are too many for a batch.
    """
    text, rest = text if text.endswith(b"\n") else text + b"\n", b""
    codes = np.frombuffer(text, np.uint8)
    line_ends = np.flatnonzero(codes == ord("\n"))
    line_starts = np.concatenate([[0], line_ends[:-1] + 1])
    is_header = codes[line_starts] == ord(">")
    header_lines = np.flatnonzero(is_header)
    if len(header_lines) > MOST_RECORDS:
        stop = header_lines[MOST_RECORDS]
        text, rest = text[: line_starts[stop]], text[line_starts[stop] :]
        line_starts, line_ends, is_header = line_starts[:stop], line_ends[:stop], is_header[:stop]
        header_lines = header_lines[:MOST_RECORDS]
    # at each odd place a line without its '>', before that what precedes it
    edges = np.stack([line_starts + is_header, line_ends], axis=1).ravel()
    pieces = strings(text, edges)
    headers = pc.utf8_rtrim_whitespace(pieces.take(pa.array(2 * header_lines + 1)))
    words = pc.utf8_split_whitespace(pc.utf8_ltrim_whitespace(headers), max_splits=1)
    lines = pieces.take(pa.array(2 * np.flatnonzero(~is_header) + 1))
    residues, ends = text_and_ends(lines)
    stops = np.cumsum(~is_header)[np.append(header_lines[1:], len(line_ends)) - 1]  # of the lines
    fourth = codes[np.minimum(line_starts[header_lines] + 3, len(text) - 1)]
    faults: Faults = {
        place: ("pir_record", "its first line is a title")
        for place in np.flatnonzero(fourth == ord(";")).tolist()
        if re.match("[A-Z][A-Z0-9];", headers[place].as_py())
    }
    batch = Batch(
        number,
        pc.list_element(words, 0),
        headers,
        strings(residues, np.append(0, ends)[stops]),
        faults=faults,
        lines=pa.ListArray.from_arrays(np.append(0, stops).astype(np.int32), lines),
    )
    return batch, rest
