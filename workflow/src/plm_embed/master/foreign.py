"""Vectors that another program left, or that `export` wrote, and the names of their rows."""

import csv
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from plm_embed.errors import StoreError
from plm_embed.io.parquet import read_batches, read_schema
from plm_embed.sequences.settings import Table
from plm_embed.store.hdf5 import DAMAGES, Array, contained, open_hdf5

_HDF5, _TABLES = (".h5", ".hdf5", ".h5ad"), (".parquet", ".csv", ".tsv")
_NUMBER = re.compile(r"e\d+")
"""Name of a column of numbers, as `export` writes text."""


@dataclass(frozen=True)
class Files:
    """Files to adopt: vectors, a table with the names of their rows, and the sequences behind them.

    index: None where the vectors' own file has the names, or for the usual table beside it;
    id_column: its column with the ids of the records in `sequences`; empty: `id` if there is one.
    """

    vectors: Path
    index: Path | None
    sequences: Sequence[Path]
    table: Table
    id_column: str


Names = list[tuple[int, str]]
"""Rows and their names: keys of sequences, or ids of records. A row may have several."""
Rows = Iterable[tuple[Names, Array]]
"""Rows that follow each other: their names, which count from the first of them, and vectors."""


class Foreign(NamedTuple):
    """Vectors (n, D); the names of their rows; and the statements of the program about them, in its
    own words. fingerprint: its fields, in a master or export of this package.
    """

    path: Path
    vectors: h5py.Dataset | Array
    names: Names
    stated: Mapping[str, Any]
    fingerprint: Mapping[str, Any]

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return some rows. StoreError when the file is damaged there."""
        with reading(self.path):
            return np.asarray(self.vectors[start:stop], np.float32)


@contextmanager
def read_foreign(files: Files) -> Iterator[Foreign]:
    """Open vectors. StoreError for a kind of file that is not known, or whose parts do not fit."""
    path, names, stated = files.vectors, Names(), dict[str, Any]()
    vectors: h5py.Dataset | Array
    beside: Path | None = None  # a table with names of the rows
    with ExitStack() as stack:
        with reading(path):
            if path.suffix in _HDF5:
                file = stack.enter_context(open_hdf5(path))
                stated = dict(file.attrs)
                if "emb" in file and "emb_keys" in file:
                    names, beside = _texts(file["emb_keys"]), path.with_suffix(".parquet")
                    vectors = _checked(file["emb"], len(names))
                elif "X" in file and "obs" in file:
                    lines = contained(file, "obs")
                    id = files.id_column or ("id" if "id" in lines else str(lines.attrs["_index"]))
                    columns = [id, *({"cache_key"} & {*lines})]
                    names = [pair for name in columns for pair in _texts(contained(lines, name))]
                    vectors = _checked(contained(file, "X"))
                else:
                    vectors, names = _spooled(_rows_of_datasets(file))
            elif path.suffix == ".npy":
                vectors = _checked(np.lib.format.open_memmap(path, "r"))
                beside = path.with_suffix(".npy.ids.tsv")
            elif path.suffix in _TABLES:
                vectors, names = _spooled(_rows_of_table(path, files.id_column))
                if path.suffix == ".parquet":
                    metadata = read_schema(path).metadata or {}
                    stated = {name.decode(): value.decode() for name, value in metadata.items()}
            else:
                kinds = ", ".join((*_HDF5, ".npy", *_TABLES))
                raise ValueError(f"the kinds of files are {kinds}")
            if beside and (files.index or beside.exists() or not names):
                names += _index(files.index or beside, files.id_column, len(vectors))
            if not names:
                raise ValueError("its rows have no names; name the column with the ids: --index-id")
            if unknown := [row for row, _ in names if not 0 <= row < len(vectors)]:
                raise ValueError(f"the index names row {unknown[0]} of {len(vectors):,}")
            fingerprint = json.loads(str(stated.get("fingerprint", "{}")))
            if not isinstance(fingerprint, dict):
                raise ValueError("its fingerprint is not a JSON object")
        yield Foreign(path, vectors, names, stated, fingerprint)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise StoreError where the block reads a file that is damaged or of another kind; errors of
    the system stay what they are.
    """
    try:
        yield
    except (*DAMAGES, EOFError, csv.Error, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        words = str(error).partition("\n")[0].strip() or "it ends too early"
        raise StoreError(f"{path}: cannot be imported: {words}", path=path) from None


def _checked(vectors: Any, keys: int | None = None) -> Any:
    """Return vectors (n, D), n the number of their keys if these are known. ValueError for anything
    else.
    """
    shape = getattr(vectors, "shape", ())  # of a sparse matrix, a group, none
    if len(shape) != 2 or vectors.dtype.kind != "f":
        kind = f"{vectors.dtype} of shape {shape}" if shape else vectors
        raise ValueError(f"its vectors are not numbers of shape (rows, dimensions), but {kind}")
    if keys not in (None, len(vectors)):
        raise ValueError(f"{len(vectors):,} vectors for {keys:,} keys")
    return vectors


def _texts(item: h5py.Dataset | h5py.Group) -> Names:
    """Return the texts of a column, each with its row; of a group the categories of its codes, of
    which -1 is none.
    """
    if isinstance(item, h5py.Group):
        categories = dict(_texts(contained(item, "categories")))
        codes = enumerate(contained(item, "codes")[...].tolist())
        return [(row, categories[code]) for row, code in codes if code >= 0]
    texts = item.asstr()[...] if h5py.check_string_dtype(item.dtype) else item[...]
    return list(enumerate(map(str, texts)))


def _rows_of_datasets(file: h5py.File) -> Rows:
    """Yield the datasets (D,) of a file: UniProt's per-protein.h5, ProtTrans', biotrainer's and
    bio_embeddings'. A name may be a hash; then an attribute has the id.
    """
    for name in file:
        vector = contained(file, name)
        if not isinstance(vector, h5py.Dataset) or vector.ndim != 1:
            raise ValueError(f"{name} is not a vector; matrices per residue are not imported")
        texts = {name, str(vector.attrs.get("original_id", name))}
        yield [(0, text) for text in texts], vector[...][None]


def _rows_of_table(path: Path, id_column: str) -> Rows:
    """Yield the rows of a table with a column of lists of numbers, or the columns e0, e1 ..."""
    for table in _tables(path, id_column):
        numbers = [table[name] for name in table.column_names if _NUMBER.fullmatch(name)]
        lists = [
            field.name
            for field in table.schema
            if pa.types.is_list(field.type) or pa.types.is_fixed_size_list(field.type)
            if pa.types.is_floating(field.type.value_type)
        ]
        if numbers:
            vectors = np.column_stack(numbers)
        elif len(lists) == 1:
            column = table[lists[0]].combine_chunks()
            if column.null_count or len(pc.unique(pc.list_value_length(column))) != 1:
                raise ValueError(f"the vectors in {lists[0]} have different lengths")
            vectors = column.flatten().to_numpy(zero_copy_only=False).reshape(len(table), -1)
        else:
            words = "one column of lists of numbers, or columns e0, e1 ..."
            raise ValueError(f"has columns {', '.join(table.column_names)}; expected {words}")
        yield _names(table, id_column, range(len(table))), vectors


def _spooled(rows: Rows) -> tuple[Array, Names]:
    """Write vectors to a temporary file without a name; return them, and their names."""
    names, count, dim, dtype = Names(), 0, 0, np.dtype(np.float32)
    with tempfile.TemporaryFile() as file:
        for more, vectors in rows:
            if not count:
                dim, dtype = _checked(vectors).shape[1], vectors.dtype
            if vectors.shape[1] != dim:
                raise ValueError(f"vectors of {dim} and of {vectors.shape[1]} numbers")
            file.write(np.ascontiguousarray(vectors, dtype).data)
            names += [(count + row, text) for row, text in more]
            count += len(vectors)
        if not dim:
            raise ValueError("it holds no vectors")
        file.flush()
        return np.memmap(file, dtype, "r", shape=(count, dim)), names


def _index(path: Path, id_column: str, count: int) -> Names:
    """Read the names of `count` rows from the table beside them. The column `row` tells which rows
    are meant, else their order.
    """
    if not path.exists():
        remedy = "name the table of the rows: --index"
        raise StoreError(f"{path}: there is no such file", path=path, remedy=remedy)
    with reading(path):
        table = pa.concat_tables(_tables(path, id_column))
        rows: Iterable[int] = range(count)
        if "row" in table.column_names:
            rows = table["row"].cast(pa.int64()).fill_null(-1).to_pylist()
        elif len(table) != count:
            raise ValueError(f"{len(table):,} rows and no column `row`, for {count:,} vectors")
        return _names(table, id_column, rows)


def _tables(path: Path, id_column: str) -> Iterator[pa.Table]:
    """Yield the rows of a table piece by piece: of Parquet, CSV, else TSV, or a list of ids.

    ValueError where it lacks the column of the ids.
    """
    separator = "," if path.suffix == ".csv" else "\t"
    if path.suffix == ".parquet":
        columns, headed = read_schema(path).names, True
    else:
        with path.open(encoding="utf-8-sig", newline="") as file:
            columns = next(csv.reader(file, delimiter=separator), [])
        headed = len(columns) > 1 or columns in (["id"], ["cache_key"], [id_column])
        columns = columns if headed else ["id"]
    if id_column and id_column not in columns:
        words = f"no column `{id_column}`; it has {', '.join(columns)}"
        raise ValueError(f"{words}; name the one with the ids: --index-id")
    if path.suffix == ".parquet":
        yield from read_batches(path)
        return
    types = {name: pa.float32() if _NUMBER.fullmatch(name) else pa.string() for name in columns}
    read = pa.csv.ReadOptions(column_names=columns, skip_rows=int(headed))
    parse = pa.csv.ParseOptions(delimiter=separator, newlines_in_values=True)
    convert = pa.csv.ConvertOptions(column_types=types)
    with pa.csv.open_csv(path, read, parse, convert) as batches:
        for batch in batches:
            yield pa.Table.from_batches([batch])


def _names(table: pa.Table, id_column: str, rows: Iterable[int]) -> Names:
    """Return the keys and ids of a table, for rows of these numbers."""
    columns = [name for name in ("cache_key", id_column or "id") if name in table.column_names]
    texts = [zip(rows, table[name].to_pylist(), strict=True) for name in columns]
    return [(row, str(text)) for column in texts for row, text in column if text is not None]
