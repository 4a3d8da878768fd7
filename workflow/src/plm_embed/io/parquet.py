"""Parquet files with checksums of their pages: read in bounded pieces, and written piece by piece.

The bytes that are written do not depend on how the rows were cut into pieces.
"""

import hashlib
import io
import os
from collections.abc import Iterator
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
_CELL_BYTES = 8  # what a cell counts for besides its text
# random digits: compressing them would take longer than all else together
_KEYS = frozenset({"key", "cache_key"})
_LONG = _KEYS | {"sequence", "id", "header"}  # seldom repeated: no dictionary
_COUNTED = frozenset({"number", "row"})  # mostly one more than the row before
_BOUNDED = _KEYS | _COUNTED | {"length"}  # the least and the largest of a group tell where to look


class _File(io.FileIO):
    """A new file that hashes what is written to it, if asked, in the thread that writes."""

    def __init__(self, path: Path, hashed: bool) -> None:
        super().__init__(path, "wb")
        self.hash = hashlib.sha256() if hashed else None

    def write(self, data: Any) -> int:
        if self.hash:
            self.hash.update(data)
        left = memoryview(data).cast("B")
        while left:  # a large write may be cut short
            left = left[super().write(left) :]
        return memoryview(data).nbytes


class RowGroupWriter:
    """Collects rows and writes a row group for every 8 MiB; a row belongs to the group in which it
    starts.

    `sha256` of a hashed file is known once it is whole.
    """

    def __init__(self, file: _File, writer: pq.ParquetWriter) -> None:
        self.sha256 = ""
        self.schema: pa.Schema = writer.schema
        self._file = file
        self._writer = writer
        self._pending: list[pa.RecordBatch] = []
        self._group = 0
        self._end = 0  # of the last row, in bytes

    def write(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        costs = _row_bytes(rows)
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

    def sync(self) -> None:
        """After the last row: wait for the disk, so that less is left to wait for at the end."""
        self.flush()
        os.fsync(self._file.fileno())


@contextmanager
def row_group_writer(
    final: Path, schema: pa.Schema, *, hashed: bool = True
) -> Iterator[RowGroupWriter]:
    """A writer of `final`, which appears whole when the block succeeds and not at all when it
    fails.
    """
    compressed = [name for name in schema.names if name not in _KEYS]
    with atomic_path(final) as temporary, _File(temporary, hashed) as file:
        with pq.ParquetWriter(
            file,
            schema,
            compression={name: "zstd" if name in compressed else "none" for name in schema.names},
            compression_level=dict.fromkeys(compressed, 1),
            use_dictionary=[name for name in schema.names if name not in _LONG | _COUNTED],
            column_encoding={
                name: "DELTA_BINARY_PACKED" for name in schema.names if name in _COUNTED
            }
            or None,
            write_statistics=[name for name in schema.names if name in _BOUNDED],
            write_page_checksum=True,
        ) as writer:
            rows = RowGroupWriter(file, writer)
            yield rows
            rows.flush()
        if file.hash:
            rows.sha256 = file.hash.hexdigest()


def _row_bytes(rows: pa.RecordBatch) -> NDArray[np.int64]:
    costs = np.full(rows.num_rows, _CELL_BYTES * rows.num_columns, dtype=np.int64)
    for column in rows.columns:
        if pa.types.is_string(column.type):
            costs += pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    return costs


_ROWS = 1 << 16


@contextmanager
def _reading(path: Path, remedy: str = "") -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise StoreError(f"{path}: there is no such file", path=path, remedy=remedy) from None
    except (OSError, pa.ArrowException, LookupError, ValueError) as error:
        if limit := limit_reached(error):
            raise PlmEmbedError(limit) from None
        what = f"not a whole Parquet file with the expected columns ({str(error).strip()})"
        raise StoreError(f"{path}: {what}", path=path, remedy=remedy) from None


def _check_columns(file: pq.ParquetFile, columns: list[str] | None) -> None:
    """Raise LookupError for a column that is not there, where Arrow would leave it out."""
    for name in columns or ():
        if name not in file.schema_arrow.names:
            raise LookupError(f"no column {name!r}")


def parquet_file(source: Any, **options: Any) -> pq.ParquetFile:
    """A Parquet file whose pages are read with their checksums, if it has them; a damaged page is
    an OSError.
    """
    return pq.ParquetFile(source, page_checksum_verification=True, **options)


def record_batches(
    path: Path, columns: list[str] | None, rows: int, remedy: str = ""
) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file in order, at most `rows` at a time. StoreError when it is missing
    or damaged.
    """
    with _reading(path, remedy):
        file = parquet_file(path, pre_buffer=False)  # else all of it would be in memory at once
        _check_columns(file, columns)
    with file:
        batches = file.iter_batches(rows, columns=columns)
        while True:
            with _reading(path, remedy):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


def read_batches(
    path: Path, columns: list[str] | None = None, remedy: str = ""
) -> Iterator[pa.Table]:
    """The rows of a Parquet file in order, 65,536 at a time, so that equal numbers of rows are cut
    equally.

    StoreError, with the remedy, when the file is missing or damaged.
    """
    rows: pa.Table | None = None
    for batch in record_batches(path, columns, _ROWS, remedy):
        more = pa.Table.from_batches([batch])
        rows = pa.concat_tables([rows, more]) if rows is not None else more
        if rows.num_rows >= _ROWS:
            yield rows.slice(0, _ROWS)
            rows = rows.slice(_ROWS)
    if rows is not None and rows.num_rows:
        yield rows


def read_groups(path: Path, columns: list[str]) -> Iterator[pa.Table]:
    """The rows of a Parquet file in order, a row group at a time, decoded in the caller's thread:
    less work and memory than `read_batches` for a thread that works beside others.

    StoreError when the file is missing or damaged.
    """
    with _reading(path), parquet_file(path, pre_buffer=False) as file:
        _check_columns(file, columns)
        for number in range(file.num_row_groups):
            yield file.read_row_group(number, columns, use_threads=False)


def read_table(path: Path, columns: list[str] | None = None, remedy: str = "") -> pa.Table:
    """A whole Parquet file, or some of its columns. StoreError when it is missing or damaged."""
    with _reading(path, remedy), parquet_file(path) as file:  # pq.read_table would import pandas
        _check_columns(file, columns)
        return file.read(columns)


def read_matching(path: Path, column: str, values: NDArray[np.int64], remedy: str = "") -> pa.Table:
    """The rows of a Parquet file whose `column` of whole numbers has one of `values`, in order.

    Row groups that by their statistics have none are not read. StoreError when the file is missing
    or damaged.
    """
    wanted = np.unique(values)
    with _reading(path, remedy), parquet_file(path) as file:
        found = [file.schema_arrow.empty_table()]
        place = file.schema_arrow.names.index(column)
        for number in range(file.num_row_groups):
            bounds = file.metadata.row_group(number).column(place).statistics
            if bounds is not None and bounds.has_min_max:
                first, last = np.searchsorted(wanted, [bounds.min, bounds.max + 1])
                if first == last:
                    continue
            for batch in file.iter_batches(_ROWS, row_groups=[number]):
                rows = pa.Table.from_batches([batch])
                found.append(rows.filter(pa.array(np.isin(rows[column].to_numpy(), wanted))))
        return pa.concat_tables(found)


def read_schema(path: Path, remedy: str = "") -> pa.Schema:
    """Column names and types of a Parquet file. StoreError when it is missing or damaged."""
    with _reading(path, remedy):
        return pq.read_schema(path)


def count_rows(path: Path, remedy: str = "") -> int:
    """Return the number of rows of a Parquet file. StoreError when it is missing or damaged."""
    with _reading(path, remedy):
        return int(pq.read_metadata(path).num_rows)
