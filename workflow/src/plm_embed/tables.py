"""Parquet files read in bounded pieces, with the checksums of their pages, and a number for every input record."""

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from plm_embed.deduplicated import SUMMARY, make_again, read_summary, verified
from plm_embed.errors import UserError

_ROWS = 1 << 16


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (OSError, pa.ArrowException, KeyError) as error:
        raise UserError(f"{path}: not a whole Parquet file with the expected columns ({error})") from None


def parquet_file(source: Any, **options: Any) -> pq.ParquetFile:
    """A Parquet file whose pages are read with their checksums, if it has them; a damaged page is an OSError."""
    return pq.ParquetFile(source, page_checksum_verification=True, **options)


def record_batches(path: Path, columns: list[str] | None, rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file in order, at most `rows` at a time. UserError when it is missing or damaged."""
    with _reading(path):
        file = parquet_file(path)
    with file:
        batches = file.iter_batches(rows, columns=columns)
        while True:
            with _reading(path):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


def read_batches(path: Path, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """The rows of a Parquet file in order, 65,536 at a time, so that equal numbers of rows are cut equally.

    UserError when the file is missing or damaged.
    """
    rows: pa.Table | None = None
    for batch in record_batches(path, columns, _ROWS):
        more = pa.Table.from_batches([batch])
        rows = pa.concat_tables([rows, more]) if rows is not None else more
        if rows.num_rows >= _ROWS:
            yield rows.slice(0, _ROWS)
            rows = rows.slice(_ROWS)
    if rows is not None and rows.num_rows:
        yield rows


def read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """A whole Parquet file, or some of its columns. UserError when it is missing or damaged."""
    with _reading(path), parquet_file(path) as file:  # pq.read_table would import pandas
        return file.read(columns)


def read_schema(path: Path) -> pa.Schema:
    """Column names and types of a Parquet file. UserError when it is missing or damaged."""
    with _reading(path):
        return pq.read_schema(path)


def bucket_table(path: Path, columns: list[str]) -> pa.Table:
    """Columns of a bucket file, `key` among them. UserError unless each key is the SHA-256 of its `sequence`.

    A bucket in the folder of deduplicate must be the file that the summary names.
    """
    sequences = path.parent.parent
    if (sequences / SUMMARY).is_file():
        verified(sequences, f"{path.parent.name}/{path.name}")
    table = read_table(path, columns)
    if "sequence" in columns:
        check_keys(path, table)
    return table


def check_keys(path: Path, table: pa.Table) -> None:
    """UserError unless each `key` of a table from the bucket file `path` is the SHA-256 of its `sequence`."""
    for key, sequence in zip(table["key"].to_pylist(), table["sequence"].to_pylist(), strict=True):
        if sequence is None or hashlib.sha256(sequence.encode()).hexdigest() != key:
            raise UserError(f"{path}: {key} is not the SHA-256 of its sequence; {make_again(path.parent.parent)}")


class RecordNumbers:
    """A place for every input record, in input order, from its file and its number in that file.

    Numbers count from 1; what stands before the first record of a file is number 0. sources: records by file as
    deduplicate counted them; places: of all files together, some of them unused.
    """

    def __init__(self, sequences: Path) -> None:
        self.summary = read_summary(sequences)
        self.sources: dict[str, int] = {entry["path"]: entry["records"] for entry in self.summary["inputs"]}
        if len(self.sources) < len(self.summary["inputs"]):
            raise UserError(f"{sequences / SUMMARY}: an input file is named twice; name it once and run again")
        self._first: dict[str, int] = {}
        self.places = 0
        for source, count in self.sources.items():
            self._first[source] = self.places
            self.places += count + 1

    def of(self, table: pa.Table) -> NDArray[np.int64]:
        """Places of the records that the columns `source` and `number` name. UserError for an unknown one."""
        source = pc.dictionary_encode(table["source"].combine_chunks())
        paths: list[str] = source.dictionary.to_pylist()
        spans = np.array([(self._first.get(path, 0), self.sources.get(path, -1)) for path in paths], dtype=np.int64)
        first, count = spans.reshape(-1, 2)[source.indices.to_numpy(zero_copy_only=False)].T
        number = table["number"].to_numpy()
        unknown = (number < 0) | (number > count)
        if unknown.any():
            at = int(np.flatnonzero(unknown)[0])
            raise UserError(f"{table['source'][at]}, record {number[at]}: no input has this record")
        places: NDArray[np.int64] = first + number
        return places


class RecordTable:
    """Fixed-size values for every record, zero at first, in a temporary file, so that memory stays bounded."""

    def __init__(self, folder: Path, places: int, dtype: Any) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self.values: np.ndarray = np.memmap(self._file, dtype=dtype, shape=(max(places, 1),), mode="w+")

    def close(self) -> None:
        del self.values
        self._file.close()
