"""Sequence files to batches of records: FASTA, CSV, TSV and Parquet, plain or compressed, streamed.

Records are numbered from 1: FASTA records, or table rows without the header line and blank lines.
Text before the first '>' of a FASTA file is one record with the number 0 and a fault.
"""

import _csv
import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from plm_embed.errors import InputError
from plm_embed.io.files import sha256_file
from plm_embed.io.parquet import parquet_file
from plm_embed.io.threads import ahead
from plm_embed.sequences.fasta import CleanBatch, TooLarge, parse_clean, record_blocks
from plm_embed.sequences.formats import check_columns, sniff
from plm_embed.sequences.streams import LARGEST_RECORD, Stream, as_text, named_errors, so_far

BATCH_RECORDS = 8_192
BATCH_CHARACTERS = 1 << 22
_BLOCKS_AHEAD = 2
_PARQUET_ROWS = 2_048
_MISSING = frozenset({"NaN", "nan", "N/A", "None", "null", "NULL", "<NA>"})
_BLANK = "\ud800"  # a lone surrogate: no decoder gives one, and no parser takes it for white space
_NO_VALUE = ("missing_value", None)  # NA is a peptide


@dataclass(frozen=True)
class Table:
    """The columns of CSV, TSV and Parquet inputs: the id, the residues, and those to keep. FASTA
    ignores it.
    """

    id: str = "id"
    sequence: str = "sequence"
    keep: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.id, self.sequence, *self.keep)))


@dataclass
class Batch:
    """Consecutive records of one file, numbered from `first`; lists of equal length.

    `headers` hold the line after '>' without trailing blanks, or the id cell; `residues` are as
    given, white space included but for line ends. `kept` has one list per kept column, or none at
    all for FASTA. `faults` says by place in the batch why a record cannot be used: a word to group
    by, and the particulars.
    """

    first: int
    ids: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    residues: list[str] = field(default_factory=list)
    kept: list[list[str | None]] = field(default_factory=list)
    faults: dict[int, tuple[str, str | None]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.ids)


class Reader:
    """One input file; iterate it once for its batches.

    Made, it has looked at the start of the file only, and raises what `sniff` raises. Iterated, it
    raises InputError for data that are damaged or cut short (naming the number of complete records
    before), and for a table without rows. `records` and `bytes_read` (of `bytes`) grow meanwhile;
    `sha256` of the file is known after the last batch. A FASTA record of more than `LARGEST_RECORD`
    bytes is a fault, a table row of as many characters an error.
    """

    def __init__(self, path: Path, table: Table) -> None:
        kind = sniff(path, table.columns)
        self.path, self.table = path, table
        self.format, self.compression, self._delimiter = (
            kind.format,
            kind.compression,
            kind.delimiter,
        )
        self.bytes = path.stat().st_size
        self.bytes_read = 0
        self.records = 0
        self.sha256 = ""
        self._row = 0  # characters so far of the table row that is being read
        if self.format == "parquet":
            self._parquet_columns()

    def __iter__(self) -> Iterator[Batch | CleanBatch]:
        yield from self._parquet() if self.format == "parquet" else self._text()
        if not self.records:
            raise InputError(
                f"{self.path}: the table has a header and no rows: no record 1",
                path=self.path,
                record=1,
            )

    def _complete(self) -> int:
        return self.records

    def _so_far(self) -> str:
        return so_far(self.records)

    def _text(self) -> Iterator[Batch | CleanBatch]:
        with Stream(self.path) as stream:
            batches: Iterator[Batch | CleanBatch]
            if self.format == "fasta":
                batches = self._fasta(stream)
            else:
                text = stream.text(newline="")  # closes the stream when it is forgotten
                batches = self._delimited(text)
            while True:
                with named_errors(self.path, self._complete):
                    batch = next(batches, None)
                self.bytes_read = stream.bytes_read
                if batch is None:
                    break
                yield batch
            with named_errors(self.path, self._complete):
                self.sha256 = stream.finish()
            self.bytes_read = stream.bytes_read

    def _fasta(self, stream: Stream) -> Iterator[Batch | CleanBatch]:
        # one thread reads, another one parses
        blocks = ahead(record_blocks(stream.read1, BATCH_CHARACTERS), _BLOCKS_AHEAD)
        for batch in ahead(self._fasta_batches(blocks), _BLOCKS_AHEAD):
            self.records += batch.count
            yield batch

    def _fasta_batches(self, blocks: Iterator[bytes | TooLarge]) -> Iterator[Batch | CleanBatch]:
        number = 1
        for block in blocks:
            if isinstance(block, TooLarge):
                found: Iterable[Batch | CleanBatch] = [_left_out(block, number)]
            else:
                clean = parse_clean(block, number)
                found = [clean] if clean else self._by_line(block, number)
            for batch in found:
                number += batch.count if batch.first else 0
                yield batch

    def _by_line(self, block: bytes, number: int) -> Iterator[Batch]:
        """The records of a block, numbered from `number`, whatever it holds."""
        from Bio.SeqIO.FastaIO import (
            SimpleFastaParser,
        )  # takes long to load, and seldom is it needed

        text = as_text(io.BytesIO(block), newline=None)
        header, strays = "", 0
        for header in text:
            if header.startswith(">"):
                break
            strays += bool(header.strip())
        if strays:
            yield Batch(
                0, [""], [""], [""], faults={0: ("text_before_first_header", f"lines: {strays}")}
            )
        if not header.startswith(">"):
            return
        batch, characters = Batch(number), 0
        for title, residues in SimpleFastaParser(_keep_blanks(chain([header], text))):  # type: ignore[no-untyped-call]
            name = title.split(None, 1)
            batch.ids.append(name[0] if name else "")
            batch.headers.append(title)
            batch.residues.append(residues.replace(_BLANK, " "))
            characters += len(title) + len(residues)
            if characters > BATCH_CHARACTERS or len(batch.ids) == BATCH_RECORDS:
                yield batch
                batch, characters = Batch(batch.first + len(batch.ids)), 0
        if batch.ids:
            yield batch

    def _delimited(self, text: io.TextIOWrapper) -> Iterator[Batch]:
        rows = csv.reader(self._lines(text), delimiter=self._delimiter, strict=True)
        try:
            yield from self._rows(rows, [name.strip() for name in next(row for row in rows if row)])
        except csv.Error as error:
            raise InputError(
                f"{self.path}, line {rows.line_num}{self._so_far()}: {error}; is there a quote "
                "that is never closed?",
                path=self.path,
                record=self.records + 1,
                line=rows.line_num,
            ) from None

    def _lines(self, text: io.TextIOWrapper) -> Iterator[str]:
        """The lines of a table. InputError when those of one row are longer than a record may
        be.
        """
        for number in count(1):
            if not (line := text.readline(LARGEST_RECORD)):
                return
            self._row += len(line)
            if self._row >= LARGEST_RECORD:
                raise InputError(
                    f"{self.path}, line {number}{self._so_far()}: a row of more than "
                    f"{LARGEST_RECORD:,} characters; "
                    "is there a quote that is never closed?",
                    path=self.path,
                    record=self.records + 1,
                    line=number,
                )
            yield line

    def _rows(self, rows: "_csv.Reader", names: list[str]) -> Iterator[Batch]:
        id_place, residues_place = names.index(self.table.id), names.index(self.table.sequence)
        kept_places = [names.index(name) for name in self.table.keep]
        batch, characters = Batch(1, kept=[[] for _ in kept_places]), 0
        line, self._row = rows.line_num, 0
        for row in rows:
            line, start, self._row = rows.line_num, line + 1, 0
            if not row:
                continue
            self.records += 1
            if len(row) == len(names):
                residues = row[residues_place]
                if residues.strip() in _MISSING:
                    batch.faults[len(batch.ids)] = _NO_VALUE
            else:
                residues = ""
                where = f"line {line}" if line == start else f"lines {start} to {line}"
                batch.faults[len(batch.ids)] = (
                    "ragged_row",
                    f"{where}: {len(row)} fields instead of {len(names)}",
                )
                row.extend([""] * (len(names) - len(row)))
            batch.ids.append(row[id_place])
            batch.residues.append(residues)
            for values, place in zip(batch.kept, kept_places, strict=True):
                values.append(row[place])
            characters += sum(map(len, row))
            if characters > BATCH_CHARACTERS or len(batch.ids) == BATCH_RECORDS:
                batch.headers = batch.ids
                yield batch
                batch, characters = (
                    Batch(batch.first + len(batch.ids), kept=[[] for _ in kept_places]),
                    0,
                )
        if batch.ids:
            batch.headers = batch.ids
            yield batch

    def _parquet_columns(self) -> dict[str, str]:
        """Each wanted column's name as the file writes it."""
        try:
            written = pq.read_schema(self.path).names
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{self.path}: the Parquet file is damaged or cut short: {_first_line(error)}",
                path=self.path,
            ) from None
        names = [name.strip() for name in written]
        check_columns(self.path, names, self.table.columns)
        return {name: written[names.index(name)] for name in self.table.columns}

    def _parquet(self) -> Iterator[Batch]:
        written = self._parquet_columns()
        # without pre-buffering and with a small buffer, memory does not grow with the size of a row
        # group
        with parquet_file(self.path, pre_buffer=False, buffer_size=1 << 20) as file:
            parts = file.iter_batches(
                _rows_at_once(file.metadata), columns=list(written.values()), use_threads=False
            )
            while True:
                try:
                    part = next(parts, None)
                    if part is None:
                        break
                    cells = {name: _texts(part.column(column)) for name, column in written.items()}
                except (pa.ArrowException, OSError) as error:
                    raise InputError(
                        f"{self.path}: a wanted column cannot be read as text{self._so_far()}: "
                        f"{_first_line(error)}",
                        path=self.path,
                        record=self.records + 1,
                    ) from None
                batch = Batch(self.records + 1, kept=[cells[name] for name in self.table.keep])
                batch.ids = batch.headers = [value or "" for value in cells[self.table.id]]
                batch.residues = [value or "" for value in cells[self.table.sequence]]
                for place, value in enumerate(cells[self.table.sequence]):
                    if value is None or value.strip() in _MISSING:
                        batch.faults[place] = _NO_VALUE
                    elif len(value) > LARGEST_RECORD:
                        size = f"{len(value):,} characters, more than {LARGEST_RECORD:,}"
                        batch.residues[place], batch.faults[place] = "", ("too_large", size)
                self.records += part.num_rows
                self.bytes_read = self.bytes * self.records // file.metadata.num_rows
                yield batch
        self.sha256 = sha256_file(self.path)


def _rows_at_once(metadata: pq.FileMetaData) -> int:
    """Rows of a Parquet file for one batch: fewer where they are long."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    longest = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
    return max(1, min(_PARQUET_ROWS, BATCH_CHARACTERS // (longest + 1)))


def _texts(column: pa.Array) -> list[str | None]:
    """A Parquet column as text; like that of other files it need not be UTF-8, whatever the column
    says.
    """
    texts: list[str | None]
    try:
        texts = column.cast(pa.string()).to_pylist()
    except (UnicodeDecodeError, pa.ArrowInvalid):
        values = column.cast(pa.binary()).to_pylist()
        texts = [
            None if value is None else value.decode(errors="plm_embed.latin1") for value in values
        ]
    return texts


def _left_out(record: TooLarge, number: int) -> Batch:
    """The record of this number without its residues."""
    line = as_text(io.BytesIO(record.head), newline=None).readline()
    header = line[1:].rstrip()
    detail = f"{record.size:,} bytes, more than {LARGEST_RECORD:,}" + "; the header is cut" * (
        not line.endswith("\n")
    )
    return Batch(
        number,
        (header.split(None, 1) or [""])[:1],
        [header],
        [""],
        faults={0: ("too_large", detail)},
    )


def _keep_blanks(lines: Iterable[str]) -> Iterator[str]:
    """Residue lines in which the blanks that SimpleFastaParser would drop without a word are
    `_BLANK`.
    """
    for line in lines:
        body = line.removesuffix("\n")
        bare = body.rstrip()
        yield (
            line
            if line[0] == ">"
            else bare.replace(" ", _BLANK) + _BLANK * (len(body) - len(bare)) + "\n"
        )


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
