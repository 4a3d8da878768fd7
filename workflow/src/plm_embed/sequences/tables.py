"""Tables to batches of records: CSV and TSV text, and Parquet files, a part of either at a time."""

import _csv
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from plm_embed.errors import InputError
from plm_embed.io.parquet import parquet_file
from plm_embed.io.streams import Stream, so_far
from plm_embed.sequences.fasta import BATCH_CHARACTERS, BATCH_RECORDS, Batch
from plm_embed.sequences.formats import LARGEST_RECORD, check_columns

_PARQUET_ROWS = 2_048
_MISSING = frozenset({"NaN", "nan", "N/A", "None", "null", "NULL", "<NA>"})
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


class DelimitedText:
    """The rows of CSV or TSV text whose header has the columns of `table`; read once.

    `records` counts the rows read so far. InputError for a quote that is never closed, and for a
    row of `LARGEST_RECORD` characters.
    """

    def __init__(self, path: Path, delimiter: str, table: Table) -> None:
        self._path, self._delimiter, self._table = path, delimiter, table
        self.records = 0
        self._row = 0  # characters so far of the row that is being read

    def batches(self, stream: Stream) -> Iterator[Batch]:
        text = stream.text(newline="")
        rows = csv.reader(self._lines(text), delimiter=self._delimiter, strict=True)
        try:
            yield from self._rows(rows, [name.strip() for name in next(row for row in rows if row)])
        except csv.Error as error:
            raise InputError(
                f"{self._path}, line {rows.line_num}{so_far(self.records)}: {error}; is there "
                "a quote that is never closed?",
                path=self._path,
                record=self.records + 1,
                line=rows.line_num,
            ) from None
        text.detach()  # forgotten, it would close the stream, which is not at its end

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
                    f"{self._path}, line {number}{so_far(self.records)}: a row of more than "
                    f"{LARGEST_RECORD:,} characters; "
                    "is there a quote that is never closed?",
                    path=self._path,
                    record=self.records + 1,
                    line=number,
                )
            yield line

    def _rows(self, rows: "_csv.Reader", names: list[str]) -> Iterator[Batch]:
        id_place, residues_place = names.index(self._table.id), names.index(self._table.sequence)
        kept_places = [names.index(name) for name in self._table.keep]
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


class ParquetTable:
    """The rows of a Parquet file; read once.

    Made, it has looked at the file's columns. `records` counts the rows read so far, of `rows`.
    InputError for a damaged file, for missing columns, and for those that are no text.
    """

    def __init__(self, path: Path, table: Table) -> None:
        self._path, self._table = path, table
        self.records = self.rows = 0
        self._columns()

    def _columns(self) -> dict[str, str]:
        """Each wanted column's name as the file writes it."""
        try:
            written = pq.read_schema(self._path).names
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{self._path}: the Parquet file is damaged or cut short: {_first_line(error)}",
                path=self._path,
            ) from None
        names = [name.strip() for name in written]
        check_columns(self._path, names, self._table.columns)
        return {name: written[names.index(name)] for name in self._table.columns}

    def batches(self) -> Iterator[Batch]:
        written = self._columns()
        # without pre-buffering and with a small buffer, memory does not grow with the size of a row
        # group
        with parquet_file(self._path, pre_buffer=False, buffer_size=1 << 20) as file:
            self.rows = file.metadata.num_rows
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
                        f"{self._path}: a wanted column cannot be read as text"
                        f"{so_far(self.records)}: {_first_line(error)}",
                        path=self._path,
                        record=self.records + 1,
                    ) from None
                batch = Batch(self.records + 1, kept=[cells[name] for name in self._table.keep])
                batch.ids = batch.headers = [value or "" for value in cells[self._table.id]]
                batch.residues = [value or "" for value in cells[self._table.sequence]]
                for place, value in enumerate(cells[self._table.sequence]):
                    if value is None or value.strip() in _MISSING:
                        batch.faults[place] = _NO_VALUE
                    elif len(value) > LARGEST_RECORD:
                        size = f"{len(value):,} characters, more than {LARGEST_RECORD:,}"
                        batch.residues[place], batch.faults[place] = "", ("too_large", size)
                self.records += part.num_rows
                yield batch


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


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
