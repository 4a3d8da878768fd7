"""Kinds of input files, told by their first bytes: FASTA, a table, Parquet, or nothing that can be
read.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from plm_embed.errors import InputError
from plm_embed.io.streams import BOM, Stream, as_text, named_errors
from plm_embed.wording import did_you_mean

Format = Literal["fasta", "csv", "tsv", "parquet"]
_HEAD_BYTES = 1 << 20
_UTF_16 = "text in UTF-16: save it as UTF-8"
_BINARY = {
    b"PK\x03\x04": "a zip archive (or an Excel workbook): unpack it, or save the sheet as CSV",
    b"\x89HDF": "an HDF5 file",
    b"ARROW1": "an Arrow file: save it as Parquet",
    b"%PDF": "a PDF document",
    b"\xff\xfe": _UTF_16,
    b"\xfe\xff": _UTF_16,
}
_UNMARKED_UTF_16 = re.compile(rb"(?:[ -~]\0){2}|(?:\0[ -~]){2}")
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
}
_HEADER_LINE = re.compile(r"(?:^|[\r\n])>")


@dataclass(frozen=True)
class Kind:
    """A file's format and compression, and its delimiter if it is a delimited text table."""

    format: Format
    compression: str
    delimiter: str = ""


class NoColumnError(InputError):
    """A column that a table lacks. Its remedy is that of a campaign."""


@contextmanager
def columns_named(remedy: str) -> Iterator[None]:
    """Around reading for anything else: what to do there about a column that a table lacks."""
    try:
        yield
    except NoColumnError as error:
        error.remedy = remedy
        raise


def sniff(path: Path, columns: Sequence[str]) -> Kind:
    """Tell what `path` is; `columns` are those that a table must have.

    InputError: the file is missing, empty, blank, of a format that is not read, or a table without
    one of the columns.
    """
    if "\0" in str(path):
        raise InputError(f"{str(path)!r}: a path cannot hold a NUL character", path=path)
    with named_errors(path):
        if path.is_dir():
            raise InputError(f"{path}: is a folder", path=path, remedy="name the files in it")
        if path.exists() and not path.is_file():  # a pipe gives its bytes once
            remedy = "save what comes out of the pipe or device, and name that file"
            raise InputError(f"{path}: is no regular file", path=path, remedy=remedy)
        with Stream(path) as stream:
            head, damage = stream.head(_HEAD_BYTES)
    try:
        return _kind(path, columns, head[:_HEAD_BYTES], stream.compression)
    except InputError:
        with named_errors(path, lambda: 0):
            if damage:  # what can be read of such a file says little about it
                raise damage from None
        raise


def _kind(path: Path, columns: Sequence[str], head: bytes, compression: str) -> Kind:
    def refusal(words: str, remedy: str = "", **place: int | None) -> InputError:
        return InputError(f"{path}{words}", path=path, remedy=remedy, **place)

    packed = "" if compression == "none" else f" ({compression} compressed)"
    if not head:
        raise refusal(f": the file is empty{packed}: no record 1; leave it out", record=1)
    if head.startswith(b"PAR1"):
        if packed:
            words = f": a Parquet file{packed} as a whole cannot be read in pieces"
            raise refusal(words, "decompress it first")
        return Kind("parquet", compression)
    if _UNMARKED_UTF_16.match(head):
        raise refusal(f": this is {_UTF_16}")
    text = as_text(head.removeprefix(BOM))
    if not text.strip():
        words = f": holds nothing but white space{packed}: no record 1; leave it out"
        raise refusal(words, record=1)
    fasta = _HEADER_LINE.search(text)
    before = text[: fasta.start()] if fasta else text
    if fasta and not before.strip():
        return Kind("fasta", compression)
    delimiter, names = max(
        ((delimiter, _first_row(text, delimiter)) for delimiter in ",\t;"),
        key=lambda row: len(row[1]),
    )
    if set(columns) <= set(names):
        check_columns(path, names, columns)
        return Kind("tsv" if delimiter == "\t" else "csv", compression, delimiter)
    if words := _foreign(head, before):
        raise refusal(words, line=1 if words.startswith(",") else None)
    if fasta:
        return Kind("fasta", compression)
    if before.lstrip().startswith(";"):
        words = "this is an old form of FASTA, with ';' before headers and comments"
        raise refusal(f", line 1: {words}", "remove the comments, and write '>' before headers")
    if len(names) > 1:
        check_columns(path, names, columns)
    listed = ", ".join(map(repr, columns))
    raise refusal(
        ": neither FASTA (no line starts with '>') nor a table: line 1 does not name the columns "
        f"{listed}",
        line=1,
    )


def _foreign(head: bytes, text: str) -> str:
    """Return what a file is that is known to be something else; `text` ends where a line starts
    with '>'.
    """
    for start, words in _FOREIGN.items():
        if re.match(rf"\s*{start}", text):
            return f", line 1: {words}"
    if text.startswith("sep="):
        return f", line 1: {text.splitlines()[0]!r} is for Excel alone: remove this line"
    binary = next((name for magic, name in _BINARY.items() if head.startswith(magic)), "")
    if not binary and "\0" in text:
        binary = "a tar archive: unpack it" if head[257:262] == b"ustar" else "a binary file"
    return f": this is {binary} (read are FASTA, CSV, TSV and Parquet)" if binary else ""


def _first_row(text: str, delimiter: str) -> list[str]:
    """Return the fields of the first row that is not empty, or one empty field."""
    try:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        return [name.strip() for name in next((row for row in rows if row), [""])]
    except csv.Error:
        return [""]


def check_columns(path: Path, present: Sequence[str], wanted: Sequence[str]) -> None:
    """InputError unless each of `wanted` occurs once in `present`; it lists the columns and the
    nearest name.
    """
    for name in wanted:
        if (count := present.count(name)) > 1:
            words = f"{path}: {count} columns are named {name!r}"
            raise InputError(words, path=path, remedy="rename all but one")
        if not count:
            folded = {_fold(column): repr(column) for column in present}
            hint = did_you_mean(_fold(name), folded, called=folded.__getitem__)
            more = f" and {len(present) - 30} more" if len(present) > 30 else ""
            listed = ", ".join(map(repr, present[:30])) + more
            raise NoColumnError(
                f"{path}: no column {name!r}; the columns are {listed}{hint}",
                path=path,
                remedy="name yours: `table` in a configuration, --id, --sequence and --keep of "
                "`plm-embed run`, --id-column, --sequence-column and --keep of single steps",
            )


def _fold(name: str) -> str:
    return name.casefold().replace(" ", "_")
