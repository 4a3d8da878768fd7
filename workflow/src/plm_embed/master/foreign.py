"""Vectors that another program left, or that `export` wrote, and the names of their rows."""

import csv
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from plm_embed.errors import StoreError
from plm_embed.io.parquet import read_schema, read_table
from plm_embed.sequences.settings import Table
from plm_embed.store.hdf5 import DAMAGES, Array, contained, open_hdf5


@dataclass(frozen=True)
class Files:
    """Files to adopt: vectors, a table with the names of their rows, and the sequences behind them.

    index: None for the usual table beside the vectors; id_column: its column with the ids of the
    records in `sequences`; empty: `id` if there is one.
    """

    vectors: Path
    index: Path | None
    sequences: Sequence[Path]
    table: Table
    id_column: str


Names = list[tuple[int, str]]
"""Rows and their names: keys of sequences, or ids of records. A row may have several."""


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
        with _reading(self.path):
            return np.asarray(self.vectors[start:stop], np.float32)


@contextmanager
def read_foreign(files: Files) -> Iterator[Foreign]:
    """Open vectors. StoreError for a kind of file that is not known, or whose parts do not fit."""
    path, index, stated = files.vectors, files.index, dict[str, Any]()
    vectors: h5py.Dataset | Array
    with ExitStack() as stack:
        with _reading(path):
            if path.suffix == ".npy":
                vectors, names = np.lib.format.open_memmap(path, "r"), Names()
                index = index or path.with_suffix(".npy.ids.tsv")
            elif path.suffix in {".h5", ".hdf5"}:
                file = stack.enter_context(open_hdf5(path))
                stated = dict(file.attrs)
                if "emb" in file and "emb_keys" in file:
                    vectors, names = file["emb"], list(enumerate(file["emb_keys"].asstr()[...]))
                    beside = path.with_suffix(".parquet")
                    index = index or (beside if beside.exists() else None)
                else:
                    (vectors, names), index = _datasets(file), None
            else:
                raise ValueError("convert it to .npy and a list of ids (docs/campaign.md)")
            if len(vectors.shape) != 2 or vectors.dtype.kind != "f":
                kind = f"{vectors.dtype} of shape {vectors.shape}"
                raise ValueError(f"its vectors are not numbers (rows, dimensions), but {kind}")
            count = len(vectors)
            if index:
                names += _names(index, files.id_column, count)
            if not names:
                raise ValueError("its rows have no names; name the column with the ids: --index-id")
            if unknown := [row for row, _ in names if not 0 <= row < count]:
                raise ValueError(f"the index names row {unknown[0]} of {count:,}")
            fingerprint = json.loads(str(stated.get("fingerprint", "{}")))
            if not isinstance(fingerprint, dict):
                raise ValueError("its fingerprint is not a JSON object")
        yield Foreign(path, vectors, names, stated, fingerprint)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
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


def _datasets(file: h5py.File) -> tuple[Array, Names]:
    """Read a file with a dataset (D,) per sequence, as UniProt, ProtTrans, biotrainer and
    bio_embeddings write it, into a temporary file without a name. Where the names of datasets are
    hashes, an attribute has the ids.
    """
    names, shape, dtype = Names(), (0,), np.dtype(np.float32)
    with tempfile.TemporaryFile() as spool:
        for row, name in enumerate(file):
            dataset = contained(file, name)
            if not isinstance(dataset, h5py.Dataset) or dataset.ndim != 1:
                raise ValueError(f"{name} is not a vector; matrices per residue are not imported")
            if not row:
                shape, dtype = dataset.shape, dataset.dtype
            if dataset.shape != shape:
                raise ValueError(f"vectors of {shape[0]} and of {dataset.shape[0]} numbers")
            spool.write(np.ascontiguousarray(dataset[...], dtype).data)
            names += [(row, text) for text in {name, str(dataset.attrs.get("original_id", name))}]
        if not shape[0]:
            raise ValueError("it holds no vectors")
        spool.flush()
        return np.memmap(spool, dtype, "r", shape=(len(file), *shape)), names


def _names(path: Path, id_column: str, count: int) -> Names:
    """Read keys and ids of `count` rows from Parquet, CSV or TSV, or from a list with an id per
    line. The column `row` tells which rows are meant, else their order.
    """
    if not path.exists():
        remedy = "name the table of the rows: --index"
        raise StoreError(f"{path}: there is no such file", path=path, remedy=remedy)
    with _reading(path):
        columns, listed, separator = [id_column or "id"], False, "\t"
        if path.suffix == ".parquet":
            columns = read_schema(path).names
        elif path.suffix in {".csv", ".tsv"}:
            separator = "," if path.suffix == ".csv" else "\t"
            with path.open(encoding="utf-8-sig", newline="") as file:
                columns = next(csv.reader(file, delimiter=separator), [])
        else:
            listed = True
        if id_column and id_column not in columns:
            words = f"no column `{id_column}`; it has {', '.join(columns)}"
            raise ValueError(f"{words}; name the one with the ids: --index-id")
        used = [name for name in ("row", "cache_key", id_column or "id") if name in columns]
        if path.suffix == ".parquet":
            table = read_table(path, used)
        else:
            table = pa.csv.read_csv(
                path,
                pa.csv.ReadOptions(column_names=columns if listed else None),
                pa.csv.ParseOptions(delimiter=separator, newlines_in_values=not listed),
                pa.csv.ConvertOptions(
                    column_types=dict.fromkeys(columns, pa.string()), include_columns=used
                ),
            )
        rows = range(len(table))
        if "row" in used:
            rows = table["row"].cast(pa.int64()).fill_null(-1).to_pylist()
        elif len(table) != count:
            raise ValueError(f"{len(table):,} rows and no column `row`, for {count:,} vectors")
        texts = [zip(rows, table[name].to_pylist(), strict=True) for name in used if name != "row"]
        return [(row, str(text)) for column in texts for row, text in column if text is not None]
