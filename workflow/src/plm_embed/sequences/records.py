"""Sequence files to batches of records, FASTA here and tables in `tables`, plain or compressed,
streamed; and batches of normalized records.

The first bytes tell the format, not the name. Records are numbered from 1: FASTA records, or table
rows without the header line and blank lines. Text before the first '>' of a FASTA file is one
record with the number 0 and a fault.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.errors import InputError
from plm_embed.io.streams import BLOCK, BOM, Stream, as_text, as_utf8, blocks, named_errors
from plm_embed.io.threads import ahead
from plm_embed.sequences.residues import (
    ALPHABETS,
    CODES,
    LEAST_CODES,
    Faults,
    ResiduePolicy,
    Skipped,
    normalize,
)
from plm_embed.sequences.settings import Table

Format = Literal["fasta", "csv", "tsv", "parquet"]
_UTF_16 = re.compile(rb"\xff\xfe|\xfe\xff|(?:[ -~]\0){2}|(?:\0[ -~]){2}")
_FOREIGN = {  # what text of another format begins with, white space aside
    r"(\[\s*)*([{\[]\s*\"|\{\s*\})": "this is JSON, which is not read: convert it to FASTA, or to "
    "a table (CSV, TSV, Parquet)",
    "<": "this is an HTML or XML page, not sequences: was the download refused?",
    "@": "starts with '@' like FASTQ or SAM, which are not read: convert it to FASTA",
    r"\{\\rtf": "this is RTF, as word processors write it: save it as plain text",
    "(ID|LOCUS) {3,}": "this is a flat file (UniProt, EMBL, GenBank), which is not read: download "
    "it as FASTA",
    r"(HEADER|ATOM|REMARK) {2,}|data_\w": "this is a structure (PDB, mmCIF), which is not read: "
    "download its FASTA",
    "sep=": "this line is for Excel alone: remove it",
    "PK\3\4": "this is a zip archive (or an Excel workbook): unpack it, or save the sheet as CSV",
}
_HEADER_LINE = re.compile(r"(?:^|[\r\n])>")
MOST_RECORDS = 1 << 16
"""Records of a batch; a record costs some Python objects for a while."""
LARGEST_RECORD = 1 << 24
"""Bytes of a FASTA record, characters of a table row: more is not taken into memory. No protein has
a hundredth; the chromosome of a bacterium fits, that of an animal does not.
"""
_BIG_ENDIAN = np.array([1 << 16, 1 << 8, 1])  # makes a number of three letters
_CODE_NUMBERS = np.array([[*code.encode()] for code in CODES]) @ _BIG_ENDIAN
_HEAD_BYTES = 1 << 16  # kept of a record that is too large
csv.field_size_limit(LARGEST_RECORD)


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
    lines: pa.ListArray | None = None
    """The lines of residues of each record of FASTA, as arrays of text."""


class Reader:
    """One input file; iterate it once for its batches.

    Made, it has looked at the start of the file only. InputError when that is missing, empty,
    blank, of a format that is not read, or a table without one of the columns. Iterated, it raises
    InputError for data that are damaged or cut short (naming the number of complete records
    before), and for a table without rows. `records` and `bytes_read` (of `bytes`) grow meanwhile;
    `sha256` of the file is known after the last batch. A FASTA record of more than `LARGEST_RECORD`
    bytes is a fault, a table row of as many characters an error.
    """

    def __init__(self, path: Path, table: Table) -> None:
        self.path, self.table = path, table
        self.bytes_read = self.records = 0
        self.sha256 = ""
        if "\0" in str(path):
            raise InputError(f"{str(path)!r}: a path cannot hold a NUL character", path=path)
        with named_errors(path):
            if path.is_dir():
                raise self._refusal(": is a folder", "name the files in it")
            if path.exists() and not path.is_file():  # a pipe gives its bytes once
                remedy = "save what comes out of the pipe or device, and name that file"
                raise self._refusal(": is no regular file", remedy)
            with Stream(path) as stream:
                self.compression = stream.compression
                head, damage = stream.head(1 << 20)
            self.bytes = path.stat().st_size
        try:
            self.format, delimiter = self._tell(head)
        except InputError:
            with named_errors(path, lambda: 0):
                if damage:  # what can be read of such a file says little about it
                    raise damage from None
            raise
        self._batches: Callable[[Stream], Iterator[Batch]] = read_fasta
        if self.format != "fasta":
            # which needs this module, and Arrow's readers
            from plm_embed.sequences.tables import DelimitedText, ParquetTable
        if self.format == "parquet":
            self._batches = ParquetTable(path, table).batches
        elif self.format != "fasta":
            self._batches = DelimitedText(path, delimiter, table).batches

    def __iter__(self) -> Iterator[Batch]:
        with Stream(self.path) as stream:
            batches = ahead(self._batches(stream), 1)
            while True:
                with named_errors(self.path, lambda: self.records):
                    batch = next(batches, None)
                    self.sha256 = "" if batch else stream.finish()
                self.bytes_read = stream.bytes_read
                if batch is None:
                    break
                self.records += len(batch.ids)
                yield batch
        if not self.records:
            raise self._refusal(": the table has a header and no rows: no record 1", record=1)

    def _tell(self, head: bytes) -> tuple[Format, str]:
        """Return the format of a file that begins with `head`, and the delimiter of text."""
        packed = "" if self.compression == "none" else f" ({self.compression} compressed)"
        if not head:
            raise self._refusal(f": the file is empty{packed}: no record 1; leave it out", record=1)
        if head.startswith(b"PAR1"):
            if packed:
                words = f": a Parquet file{packed} as a whole cannot be read in pieces"
                raise self._refusal(words, "decompress it first")
            return "parquet", ""
        if _UTF_16.match(head):
            raise self._refusal(": this is text in UTF-16: save it as UTF-8")
        text = as_text(head.removeprefix(BOM))
        if not text.strip():
            words = f": holds nothing but white space{packed}: no record 1; leave it out"
            raise self._refusal(words, record=1)
        fasta = _HEADER_LINE.search(text)
        before = text[: fasta.start()] if fasta else text
        if fasta and not before.strip():
            return "fasta", ""
        rows = ((delimiter, _first_row(text, delimiter)) for delimiter in ",\t;")
        delimiter, names = max(rows, key=lambda row: len(row[1]))
        columns = self.table.columns
        if columns.keys() <= {*names}:
            self.table.check(self.path, names)
            return "tsv" if delimiter == "\t" else "csv", delimiter
        kinds = (_FOREIGN[start] for start in _FOREIGN if re.match(rf"\s*(?:{start})", before))
        if kind := next(kinds, ""):
            raise self._refusal(f", line 1: {kind}", line=1)
        if "\0" in before:
            words = ": this is a binary file (read are FASTA, CSV, TSV and Parquet)"
            raise self._refusal(words)
        if fasta:
            return "fasta", ""
        if before.lstrip().startswith(";"):
            words = ", line 1: this is an old form of FASTA, with ';' before headers and comments"
            remedy = "remove the comments, and write '>' before headers"
            raise self._refusal(words, remedy)
        if len(names) > 1:
            self.table.check(self.path, names)
        words = "neither FASTA (no line starts with '>') nor a table: line 1 does not name the"
        raise self._refusal(f": {words} columns {', '.join(map(repr, columns))}", line=1)

    def _refusal(self, words: str, remedy: str = "", **place: int) -> InputError:
        return InputError(f"{self.path}{words}", path=self.path, remedy=remedy, **place)


def _first_row(text: str, delimiter: str) -> list[str]:
    """Return the fields of the first row that is not empty, or one empty field."""
    try:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        return [name.strip() for name in next(filter(None, rows), [""])]
    except csv.Error:
        return [""]


def read_fasta(stream: Stream) -> Iterator[Batch]:
    """Yield the records of FASTA, whose lines end with LF, CR or both. Text before the first '>' is
    a batch of one record with the number 0 and a fault.

    Records of PIR, whose first line is a title, and those of more than `LARGEST_RECORD` bytes are
    faults too.
    """
    number, large, size = 1, b"", 0  # of a record that is too large, its start and bytes so far
    # one thread reads, another parses
    for block, whole in ahead(blocks(stream.pieces, BLOCK, _last_record, LARGEST_RECORD), 1):
        end = _next_record(block, 0 if size else 1) if whole else len(block)
        if not whole or size + end > LARGEST_RECORD:  # only the first record of a block can be
            large, size, text = large or block[:_HEAD_BYTES], size + end, block[end:]
            if not whole:
                continue
            line, line_end, _ = _with_lf(large).decode().partition("\n")
            detail = f"{size:,} bytes, more than {LARGEST_RECORD:,}"
            detail += "" if line_end else "; the header is cut"
            yield _unused(number, line[1:].rstrip(), ("too_large", detail))
            number, large, size = number + 1, b"", 0
        elif block.startswith(b">"):
            text = block
        else:  # the first one
            text = block.removeprefix(BOM)
            start = 0 if text.startswith(b">") else _next_record(text, 0)
            before, text = _with_lf(text[:start]).decode().split("\n"), text[start:]
            if lines := sum(bool(line.strip()) for line in before):
                yield _unused(0, "", ("text_before_first_header", f"lines: {lines}"))
        for batch in _parse(_with_lf(text), number) if text else ():
            yield batch
            number += len(batch.ids)


def _last_record(text: bytes) -> int:
    """Return where the last record starts, but for one at the start of the text."""
    newline = text.rfind(b"\n>")
    return max(newline, text.rfind(b"\r>", newline + 1)) + 1


def _next_record(text: bytes, begin: int) -> int:
    """Return where the first record starts whose line end is at `begin` or later, or the end."""
    newline = text.find(b"\n>", begin)
    carriage = text.find(b"\r>", begin, newline + 1 if newline >= 0 else len(text))
    before = newline if carriage < 0 else carriage
    return before + 1 if before >= 0 else len(text)


def _with_lf(text: bytes) -> bytes:
    """Return text as UTF-8 whose lines end with LF."""
    text = as_utf8(text)
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in text else text


def _unused(number: int, header: str, fault: tuple[str, str]) -> Batch:
    """Return a batch of one record without residues."""
    ids = pa.array(header.split()[:1] or [""])
    return Batch(number, ids, pa.array([header]), pa.array([""]), faults={0: fault})


def _parse(text: bytes, number: int) -> Iterator[Batch]:
    """Yield the records, numbered from `number`, of text that starts with one."""
    text = text if text.endswith(b"\n") else text + b"\n"
    codes = np.frombuffer(text, np.uint8)
    line_ends = np.flatnonzero(codes == ord("\n"))
    line_starts = np.concatenate([[0], line_ends[:-1] + 1])
    is_header = codes[line_starts] == ord(">")
    # at each odd place a line without its '>', before that what precedes it
    pieces = strings(text, np.stack([line_starts + is_header, line_ends], axis=1).ravel())
    starts = np.append(np.flatnonzero(is_header), len(line_ends))  # of records, in lines
    for first in range(0, len(starts) - 1, MOST_RECORDS):
        bounds = starts[first : first + MOST_RECORDS + 1]
        inner = bounds[0] + np.flatnonzero(~is_header[bounds[0] : bounds[-1]])
        headers = pc.utf8_rtrim_whitespace(pieces.take(pa.array(2 * bounds[:-1] + 1)))
        words = pc.utf8_split_whitespace(pc.utf8_ltrim_whitespace(headers), max_splits=1)
        lines = pieces.take(pa.array(2 * inner + 1))
        residues, ends = text_and_ends(lines)
        stops = np.searchsorted(inner, bounds)  # of the lines of each record
        is_pir = np.flatnonzero(pc.match_substring_regex(headers, "^[A-Z][A-Z0-9];"))
        faults: Faults = dict.fromkeys(is_pir.tolist(), ("pir_record", "its first line is a title"))
        yield Batch(
            number + first,
            pc.list_element(words, 0),
            headers,
            strings(residues, np.append(0, ends)[stops[1:]]),
            faults=faults,
            lines=pa.ListArray.from_arrays(stops.astype(np.int32), lines),
        )


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


class NormalizedBatch(NamedTuple):
    """The sequences of the accepted records of a batch; and of all records the events, and the
    reasons and details of those that are skipped, else null.
    """

    sequences: pa.StringArray
    events: pa.StringArray
    reasons: pa.StringArray
    details: pa.StringArray


def normalize_batch(batch: Batch, policy: ResiduePolicy) -> NormalizedBatch:
    """Normalize each record of a batch, by `normalize` where there is anything to do."""
    residues, faults = batch.residues, batch.faults
    size, odd = len(residues), _odd(batch, policy)
    if not len(odd):
        none = pa.nulls(size, pa.string())
        return NormalizedBatch(residues, pa.repeat(pa.scalar(""), size), none, none)
    events = [""] * size
    reasons: list[str | None] = [None] * size
    details: list[str | None] = [None] * size
    changed: list[str] = []
    places = np.arange(size)  # of the sequences among those of the file and then the changed ones
    for place in odd.tolist():
        fault = faults.get(place)
        outcome = Skipped(*fault) if fault else normalize(residues[place].as_py(), policy)
        if isinstance(outcome, Skipped):
            reasons[place], details[place] = outcome
            places[place] = -1
        else:
            places[place] = size + len(changed)
            changed.append(outcome.sequence)
            events[place] = ";".join(f"{name}={many}" for name, many in outcome.events.items())
    both = pa.concat_arrays([residues, pa.array(changed, pa.string())])
    columns = [pa.array(values, pa.string()) for values in (events, reasons, details)]
    return NormalizedBatch(both.take(pa.array(places[places >= 0])), *columns)


def _odd(batch: Batch, policy: ResiduePolicy) -> NDArray[np.int64]:
    """Return the places of records with a fault, or to which `normalize` may have something to
    do.
    """
    alphabet = ALPHABETS[policy.alphabet]
    if policy.strand == "canonical" or alphabet.states or alphabet.pairs:
        return np.arange(len(batch.residues))
    text, ends = text_and_ends(batch.residues)
    codes, starts = np.frombuffer(text, np.uint8), np.concatenate([[0], ends[:-1]])
    lengths = ends - starts
    odd = lengths == 0
    # bounds and the few codes between them that are no letters: faster than a table of all codes
    low, *letters, high = sorted(alphabet.letters.encode())
    no_letters = set(range(low, high)).difference([low, *letters])
    within = not len(codes) or (codes.min() >= low and codes.max() <= high)
    if not within or any((codes == code).any() for code in no_letters):
        unknown = (codes < low) | (codes > high) | np.isin(codes, [*no_letters])
        odd[~odd] = np.logical_or.reduceat(unknown, starts[~odd])
    odd[list(batch.faults)] = True
    if policy.alphabet == "protein":
        places = np.flatnonzero((lengths >= 3 * LEAST_CODES) & (lengths % 3 == 0))
        for offset in range(0, 3 * LEAST_CODES, 3):
            triplets = codes[(starts[places] + offset)[:, None] + np.arange(3)]
            places = places[np.isin(triplets @ _BIG_ENDIAN, _CODE_NUMBERS)]
        odd[places] = True
    return np.flatnonzero(odd)
