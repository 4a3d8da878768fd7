"""What an input file is, told by its first bytes: FASTA, a table, Parquet, or nothing that can be
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

from plm_embed.errors import InputError, PlmEmbedError
from plm_embed.io.streams import Stream, as_text, named_errors
from plm_embed.wording import did_you_mean

Format = Literal["fasta", "csv", "tsv", "parquet"]
LARGEST_RECORD = 1 << 24
"""Bytes of a FASTA record, characters of a table row: more is not taken into memory. No protein has
a hundredth; the chromosome of a bacterium fits, that of an animal does not.
"""
_DELIMITERS = ",\t;"
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

_JSON = re.compile(r'\s*(\[\s*)*([{\[]\s*"|\{\s*\})')
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

    InputError: the file is missing, empty, blank, an HTML page, FASTQ, otherwise not a format that
    is read, or a table without one of the columns.
    """
    if "\0" in str(path):
        raise InputError(f"{str(path)!r}: a path cannot hold a NUL character", path=path)
    with named_errors(path):
        a_folder, other = path.is_dir(), path.exists() and not path.is_file()
    if a_folder:
        raise InputError(f"{path}: is a folder", path=path, remedy="name the files in it")
    if other:
        # a pipe gives its bytes once, and inputs are read twice: to know them, then to account for
        # them
        raise InputError(
            f"{path}: is no regular file",
            path=path,
            remedy="save what comes out of the pipe or device, and name that file",
        )
    with named_errors(path), Stream(path) as stream:
        head, damage = stream.head(_HEAD_BYTES)
        compression = stream.compression
    try:
        return _kind(path, columns, head, compression)
    except PlmEmbedError:
        with named_errors(path, lambda: 0):
            if damage:  # what can be read of such a file says little about it
                raise damage from None
        raise


def _kind(path: Path, columns: Sequence[str], head: bytes, compression: str) -> Kind:
    packed = "" if compression == "none" else f" ({compression} compressed)"
    if not head:
        raise InputError(
            f"{path}: the file is empty{packed}: no record 1; leave it out", path=path, record=1
        )
    if head.startswith(b"PAR1"):
        if packed:
            raise InputError(
                f"{path}: a Parquet file{packed} as a whole cannot be read in pieces",
                path=path,
                remedy="decompress it first",
            )
        return Kind("parquet", compression)
    if _UNMARKED_UTF_16.match(head):
        raise InputError(f"{path}: this is {_UTF_16}", path=path)
    text = as_text(io.BytesIO(head), newline="").read()
    if not text.strip():
        raise InputError(
            f"{path}: holds nothing but white space{packed}: no record 1; leave it out",
            path=path,
            record=1,
        )
    fasta = _HEADER_LINE.search(text)
    if fasta and not text[: fasta.start()].strip():
        return Kind("fasta", compression)
    delimiter, header = _header(text)
    if set(columns) <= set(header):
        check_columns(path, header, columns)
        return Kind("tsv" if delimiter == "\t" else "csv", compression, delimiter)
    _refuse_foreign(path, head, text[: fasta.start()] if fasta else text)
    if fasta:
        return Kind("fasta", compression)
    if len(header) > 1:
        check_columns(path, header, columns)
    raise InputError(
        f"{path}: neither FASTA (no line starts with '>') nor a table: line 1 does not name the "
        "columns " + ", ".join(map(repr, columns)),
        path=path,
        line=1,
    )


def _refuse_foreign(path: Path, head: bytes, text: str) -> None:
    """InputError for what is known to be something else; `text` ends where a line starts with
    '>'.
    """
    start = text.lstrip()[:1]
    if _JSON.match(text):
        raise InputError(
            f"{path}, line 1: this is JSON, which is not read: convert it to FASTA, or to a table "
            "(CSV, TSV, Parquet)",
            path=path,
            line=1,
        )
    if start == "<":
        raise InputError(
            f"{path}, line 1: this is an HTML or XML page, not sequences: was the download "
            "refused?",
            path=path,
            line=1,
        )
    if start == "@":
        raise InputError(
            f"{path}, line 1: starts with '@' like FASTQ or SAM, which are not read: convert it "
            "to FASTA",
            path=path,
            line=1,
        )
    if text.startswith("sep="):
        raise InputError(
            f"{path}, line 1: {text.splitlines()[0]!r} is for Excel alone: remove this line",
            path=path,
            line=1,
        )
    binary = next((name for magic, name in _BINARY.items() if head.startswith(magic)), "")
    if not binary and "\0" in text:
        binary = "a tar archive: unpack it" if head[257:262] == b"ustar" else "a binary file"
    if binary:
        raise InputError(
            f"{path}: this is {binary} (read are FASTA, CSV, TSV and Parquet)", path=path
        )


def check_columns(path: Path, present: Sequence[str], wanted: Sequence[str]) -> None:
    """InputError unless each of `wanted` occurs once in `present`; it lists the columns and the
    nearest name.
    """
    listed = ", ".join(map(repr, present[:30])) + (
        f" and {len(present) - 30} more" if len(present) > 30 else ""
    )
    for name in wanted:
        if name not in present:
            folded = {_fold(column): repr(column) for column in present}
            hint = did_you_mean(_fold(name), folded, called=folded.__getitem__)
            raise NoColumnError(
                f"{path}: no column {name!r}; the columns are {listed}{hint}",
                path=path,
                remedy="name yours: `table` in a configuration, --id, --sequence and --keep of "
                "`plm-embed run`, --id-column, --sequence-column and --keep of single steps",
            )
        if present.count(name) > 1:
            raise InputError(
                f"{path}: {present.count(name)} columns are named {name!r}",
                path=path,
                remedy="rename all but one",
            )


def _fold(name: str) -> str:
    return name.casefold().replace(" ", "_")


def _header(text: str) -> tuple[str, list[str]]:
    """The delimiter that cuts the first line into the most fields, and those fields."""
    best = (",", [""])
    for delimiter in _DELIMITERS:
        try:
            rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
            row = next((row for row in rows if row), [""])
        except csv.Error:
            continue
        if len(row) > len(best[1]) or best[1] == [""]:
            best = (delimiter, [name.strip() for name in row])
    return best


csv.field_size_limit(LARGEST_RECORD)
