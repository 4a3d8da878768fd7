"""Parquet files with checksums of their pages: read in bounded pieces, and written piece by piece.

The bytes that are written do not depend on how the rows were cut into pieces.
"""

import hashlib
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError, StoreError, limit_reached
from plm_embed.io.files import atomic_path

_GROUP_BYTES = 1 << 23
_ROWS = 1 << 16  # read at a time
_CELL_BYTES = 8  # what a cell counts for besides its text
# random digits: compressing them would take longer than all else together
_KEYS = frozenset({"key", "cache_key"})
_LONG = _KEYS | {"sequence", "id", "header"}  # seldom repeated: no dictionary
_COUNTED = frozenset({"number", "row"})  # mostly one more than the row before
_BOUNDED = _KEYS | _COUNTED | {"length"}  # the least and the largest of a group tell where to look


class _File(io.BufferedWriter):
    """A new file that hashes what is written to it, in the thread that writes."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self.hash = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return super().write(data)


class RowGroupWriter:
    """Collects rows and writes a row group for every 8 MiB; a row belongs to the group in which it
    starts.

    `sha256` is known once the file is whole, if it is hashed.
    """

    def __init__(self, writer: pq.ParquetWriter) -> None:
        self.sha256 = ""
        self._writer = writer
        self._pending: list[pa.RecordBatch] = []
        self._group = 0
        self._end = 0  # of the last row, in bytes

    def write(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        costs = np.full(rows.num_rows, _CELL_BYTES * rows.num_columns, dtype=np.int64)
        for column in rows.columns:
            if pa.types.is_string(column.type):
                costs += pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        ends = self._end + np.cumsum(costs)
        groups = (ends - costs) // _GROUP_BYTES
        self._end = int(ends[-1])
        first = 0
        for cut in np.flatnonzero(np.diff(groups, prepend=self._group)).tolist():
            self._pending.append(rows.slice(first, cut - first))
            self.flush()
            first = cut
        self._pending.append(rows.slice(first))
        self._group = int(groups[-1])

    def flush(self) -> None:
        # the writer would cut pages where the pieces end
        table = pa.Table.from_batches(self._pending, self._writer.schema).combine_chunks()
        if table.num_rows:
            self._writer.write_table(table, row_group_size=table.num_rows)
        self._pending = []


@contextmanager
def row_group_writer(
    final: Path, schema: pa.Schema, *, hashed: bool = True
) -> Iterator[RowGroupWriter]:
    """Yield a writer of `final`, which appears whole when the block succeeds and not at all when it
    fails.
    """
    columns = schema.names
    with (
        atomic_path(final) as temporary,
        _File(temporary) if hashed else temporary.open("wb") as file,
    ):
        with pq.ParquetWriter(
            file,
            schema,
            compression={name: "none" if name in _KEYS else "zstd" for name in columns},
            compression_level={name: 1 for name in columns if name not in _KEYS},
            use_dictionary=[name for name in columns if name not in _LONG | _COUNTED],
            column_encoding={name: "DELTA_BINARY_PACKED" for name in columns if name in _COUNTED}
            or None,
            write_statistics=[name for name in columns if name in _BOUNDED],
            write_page_checksum=True,
        ) as writer:
            rows = RowGroupWriter(writer)
            yield rows
            rows.flush()
        if isinstance(file, _File):
            rows.sha256 = file.hash.hexdigest()


@contextmanager
def open_parquet(
    path: Path, columns: Sequence[str] | None = None, remedy: str = "", **options: Any
) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file, whose pages are read with their checksums, if it has any. StoreError,
    also for what the block raises, when the file is missing or damaged or lacks a column, which
    Arrow would leave out.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True, **options) as file:
            for name in columns or ():
                if name not in file.schema_arrow.names:
                    raise LookupError(f"no column {name!r}")
            yield file
    except FileNotFoundError:
        raise StoreError(f"{path}: there is no such file", path=path, remedy=remedy) from None
    except (OSError, pa.ArrowException, LookupError, ValueError) as error:
        if limit := limit_reached(error):
            raise PlmEmbedError(limit) from None
        problem = f"not a whole Parquet file with the expected columns ({str(error).strip()})"
        raise StoreError(f"{path}: {problem}", path=path, remedy=remedy) from None


def record_batches(
    path: Path, columns: list[str] | None, rows: int, remedy: str = ""
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file in order, at most `rows` at a time. StoreError, with the
    remedy, when it is missing or damaged; so do the other readers.
    """
    # without pre-buffering: else all of it would be in memory at once
    with open_parquet(path, columns, remedy, pre_buffer=False) as file:
        yield from file.iter_batches(rows, columns=columns)


def read_batches(
    path: Path, columns: list[str] | None = None, remedy: str = ""
) -> Iterator[pa.Table]:
    """Yield the rows of a Parquet file in order, as tables of at most 65,536."""
    for batch in record_batches(path, columns, _ROWS, remedy):
        yield pa.Table.from_batches([batch])


def read_groups(path: Path, columns: list[str]) -> Iterator[pa.Table]:
    """Yield the rows of a Parquet file in order, a row group at a time, decoded in the caller's
    thread: less work and memory than `read_batches` for a thread that works beside others.
    """
    with open_parquet(path, columns, pre_buffer=False) as file:
        for number in range(file.num_row_groups):
            yield file.read_row_group(number, columns, use_threads=False)


def read_table(path: Path, columns: list[str] | None = None, remedy: str = "") -> pa.Table:
    """Return a whole Parquet file, or some of its columns."""
    with open_parquet(path, columns, remedy) as file:  # pq.read_table would import pandas
        return file.read(columns)


def read_matching(path: Path, column: str, values: NDArray[np.int64], remedy: str = "") -> pa.Table:
    """Return the rows of a Parquet file whose `column` of whole numbers has one of `values`
    (increasing), in order. Row groups that by their statistics have none are not read.
    """
    with open_parquet(path, [column], remedy) as file:
        tables = [file.schema_arrow.empty_table()]
        place = file.schema_arrow.names.index(column)
        for number in range(file.num_row_groups):
            bounds = file.metadata.row_group(number).column(place).statistics
            if bounds is not None and bounds.has_min_max:
                first, last = np.searchsorted(values, [bounds.min, bounds.max + 1])
                if first == last:
                    continue
            for batch in file.iter_batches(_ROWS, row_groups=[number]):
                rows = pa.Table.from_batches([batch])
                tables.append(rows.filter(pa.array(np.isin(rows[column].to_numpy(), values))))
        return pa.concat_tables(tables)


def read_schema(path: Path, remedy: str = "") -> pa.Schema:
    """Return column names and types of a Parquet file."""
    with open_parquet(path, remedy=remedy) as file:
        return file.schema_arrow
