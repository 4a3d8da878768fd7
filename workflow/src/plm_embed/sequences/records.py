"""Sequence files to batches of records: FASTA, CSV, TSV and Parquet, plain or compressed, streamed.

The first bytes tell the format, not the name. Records are numbered from 1: FASTA records, or table
rows without the header line and blank lines. Text before the first '>' of a FASTA file is one
record with the number 0 and a fault.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from plm_embed.errors import InputError
from plm_embed.io.streams import BOM, Stream, as_text, named_errors
from plm_embed.io.threads import ahead
from plm_embed.sequences.batch import Batch
from plm_embed.sequences.fasta import read_fasta
from plm_embed.sequences.settings import Table
from plm_embed.sequences.tables import DelimitedText, ParquetTable, check_columns

Format = Literal["fasta", "csv", "tsv", "parquet"]
_HEAD_BYTES = 1 << 20
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
                head, damage = stream.head(_HEAD_BYTES)
            self.bytes = path.stat().st_size
        try:
            self.format, delimiter = self._tell(head)
        except InputError:
            with named_errors(path, lambda: 0):
                if damage:  # what can be read of such a file says little about it
                    raise damage from None
            raise
        self.bytes_read = self.records = 0
        self.sha256 = ""
        self._batches: Callable[[Stream], Iterator[Batch]]
        if self.format == "fasta":
            self._batches = lambda stream: read_fasta(stream.pieces)
        elif self.format == "parquet":
            self._batches = ParquetTable(path, table).batches
        else:
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
                self.records += len(batch)
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
            check_columns(self.path, names, self.table)
            return "tsv" if delimiter == "\t" else "csv", delimiter
        kinds = (_FOREIGN[start] for start in _FOREIGN if re.match(rf"\s*(?:{start})", before))
        if kind := next(kinds, ""):
            raise self._refusal(f", line 1: {kind}", line=1)
        if "\0" in before:
            kind = "a binary file (read are FASTA, CSV, TSV and Parquet)"
            raise self._refusal(f": this is {kind}")
        if fasta:
            return "fasta", ""
        if before.lstrip().startswith(";"):
            words = ", line 1: this is an old form of FASTA, with ';' before headers and comments"
            remedy = "remove the comments, and write '>' before headers"
            raise self._refusal(words, remedy)
        if len(names) > 1:
            check_columns(self.path, names, self.table)
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
