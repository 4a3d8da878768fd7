"""Parquet files, read a few rows at a time."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from plm_embed.errors import InputError
from plm_embed.io.parquet import parquet_file
from plm_embed.io.streams import Stream, so_far
from plm_embed.io.threads import ahead
from plm_embed.sequences.batch import BATCH_CHARACTERS, BATCH_RECORDS, BLOCKS_AHEAD, Batch
from plm_embed.sequences.formats import check_columns
from plm_embed.sequences.tables import Table
from plm_embed.sequences.tables.cells import in_batches

_PARQUET_ROWS = 2_048
_READ_BYTES = 1 << 20


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

    def batches(self, stream: Stream) -> Iterator[Batch]:
        """The rows; `stream` of the same file follows them, so that it knows the file's SHA-256."""
        number = 1
        for cells in ahead(_larger(self._cells(stream)), BLOCKS_AHEAD):
            yield from in_batches(number, cells, self._table)
            number += cells.num_rows

    def _cells(self, stream: Stream) -> Iterator[pa.RecordBatch]:
        written, size = self._columns(), self._path.stat().st_size
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
                    cells = {name: _text(part.column(column)) for name, column in written.items()}
                except (pa.ArrowException, OSError) as error:
                    raise InputError(
                        f"{self._path}: a wanted column cannot be read as text"
                        f"{so_far(self.records)}: {_first_line(error)}",
                        path=self._path,
                        record=self.records + 1,
                    ) from None
                self.records += part.num_rows
                read = size * self.records // self.rows
                while stream.bytes_read < read and stream.read1(_READ_BYTES):
                    pass
                yield pa.record_batch(cells)


def _larger(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, many at a time where they are short: each part costs some Python calls."""
    waiting: list[pa.RecordBatch] = []
    for part in parts:
        waiting.append(part)
        rows, size = (sum(getattr(each, of) for each in waiting) for of in ("num_rows", "nbytes"))
        if rows >= BATCH_RECORDS or size >= BATCH_CHARACTERS:
            yield pa.concat_batches(waiting)
            waiting = []
    if waiting:
        yield pa.concat_batches(waiting)


def _rows_at_once(metadata: pq.FileMetaData) -> int:
    """Rows of a Parquet file for one batch: fewer where they are long."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    longest = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
    return max(1, min(_PARQUET_ROWS, BATCH_CHARACTERS // (longest + 1)))


def _text(column: pa.Array) -> pa.StringArray:
    """A Parquet column as text; like that of other files it need not be UTF-8, whatever the column
    says.
    """
    try:
        text = column.cast(pa.string())
        text.validate(full=True)
    except pa.ArrowInvalid:
        values = column.cast(pa.binary()).to_pylist()
        text = pa.array(
            [None if each is None else each.decode(errors="plm_embed.latin1") for each in values],
            pa.string(),
        )
    return text


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
