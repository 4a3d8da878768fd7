"""A master in the formats that other tools load: streamed, in the order of the index, and whole or
absent.
"""

import csv
import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from plm_embed.errors import PlmEmbedError, extra
from plm_embed.fingerprint import has_matrix
from plm_embed.io.files import atomic_path, refuse_existing
from plm_embed.io.terminal import Meter, progress
from plm_embed.reading.open import Embeddings
from plm_embed.store.hdf5 import Array, connect
from plm_embed.wording import did_you_mean

if TYPE_CHECKING:
    import anndata

Format = Literal["parquet", "csv", "tsv", "npy", "uniprot-h5", "anndata"]
BATCH_ROWS = 4096
LONGEST_NAME = 1000
"""Bytes of the name of a dataset."""


class Records:
    """Records of a master of these ids (None: all) whose columns have these values, as text, in the
    order of the index, with a representation.

    name: the representation; index: the schema of the index; attributes: what the vectors are, for
    formats that have room for it. PlmEmbedError for a column of `where` or `columns` that the index
    lacks, and for a representation that is not there.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        representation: str,
        ids: Iterable[str] | None = None,
        where: Mapping[str, Any] | None = None,
        columns: Iterable[str] = (),
    ) -> None:
        self.embeddings, self._where = embeddings, where or {}
        self._ids = None if ids is None else frozenset(ids)
        self.name, self.index = embeddings.resolved(representation), embeddings.records.schema
        kind = embeddings.fingerprint
        self.attributes = {"model_name": kind.model, "fingerprint": kind.to_json()}
        self.attributes["representation"] = self.name
        names, path = self.index.names, embeddings.index
        for column in (*self._where, *columns):
            if column not in names:
                words = f"{path}: no column {column!r}{did_you_mean(column, names)}"
                raise PlmEmbedError(words, path=path, remedy=f"the columns are {', '.join(names)}")

    def of(self, lines: pa.RecordBatch) -> pa.RecordBatch:
        """Return the lines of selected records."""
        if self._ids is not None:
            lines = lines.filter(pc.is_in(lines["id"], pa.array(self._ids, pa.string())))
        for name, value in self._where.items():
            lines = lines.filter(pc.equal(lines[name].cast(pa.string()), str(value)))
        return lines

    @cached_property
    def count(self) -> int:
        """The number of selected records; the whole index is read, and checked. UnknownIdError for
        ids that are not there; PlmEmbedError when nothing is selected.
        """
        count, absent = 0, set(self._ids or ())
        for lines in self.embeddings.records.lines(list({"id", *self._where})):
            count += self.of(lines).num_rows
            absent.difference_update(lines["id"].to_pylist() if absent else ())
        if absent:
            self.embeddings.records.rows(sorted(absent))  # raises UnknownIdError with a hint
        if not count and (self._ids is not None or self._where):
            values = " and ".join(f"{column}={value}" for column, value in self._where.items())
            words = f"{self.embeddings.index}: no record has {values or 'one of these ids'}"
            remedy = "a value must match exactly"
            raise PlmEmbedError(words, path=self.embeddings.index, remedy=remedy)
        return count

    def batches(self, meter: Meter) -> Iterator[pa.RecordBatch]:
        """Yield the lines of the index."""
        for lines in self.embeddings.records.lines(rows=BATCH_ROWS):
            selected = self.of(lines)
            if selected.num_rows:
                yield selected
            meter.advance(selected.num_rows)

    def vectors(self, lines: pa.RecordBatch | pa.Table) -> Array:
        """Return the vectors of some lines (k, D)."""
        return self.embeddings.rows(lines["row"].to_numpy(), self.name)

    def arrays(self, lines: pa.RecordBatch | pa.Table) -> Iterable[Array]:
        """Return the vector (D,) or the matrix (L, D) of each line."""
        if not has_matrix(self.name):
            return self.vectors(lines)
        return (self.embeddings.matrix(row, self.name) for row in lines["row"].to_pylist())

    def schema(self, more: Mapping[str, pa.DataType]) -> pa.Schema:
        """Return the columns of the index, and more. PlmEmbedError where two have one name."""
        if reserved := [name for name in more if name in self.index.names]:
            path, remedy = self.embeddings.index, "rename it in the input, or export to npy"
            words = f"{path}: has a column {reserved[0]!r} of its own, which this format needs"
            raise PlmEmbedError(words, path=path, remedy=remedy)
        return pa.schema([*self.index, *more.items()])


def export(
    master: Path,
    to: Format,
    output: Path,
    representation: str = "emb",
    *,
    ids: Iterable[str] | None = None,
    where: Mapping[str, str] | None = None,
) -> tuple[int, list[Path]]:
    """Write the records of a master to `output`; return how many, and the files.

    ids, where: only these records, and only those whose columns of the index have these values.

    Beside an array OUTPUT.ids.tsv has the id and the cache_key of each row. Where an id cannot be a
    name, or records share it, OUTPUT.names.tsv has the id of each name. PlmEmbedError
    when one of these files exists, when no record is chosen, or when the representation is not
    there or not of the kind that is needed; UnknownIdError for ids that are not there.
    """
    files = [output.with_name(f"{output.name}{end}") for end in ("", ".ids.tsv", ".names.tsv")]
    refuse_existing(*files)
    with Embeddings(master) as embeddings:
        records = Records(embeddings, representation, ids, where)
        if has_matrix(records.name) and to != "uniprot-h5":
            raise PlmEmbedError(f"{to} cannot hold matrices ({records.name}): export to uniprot-h5")
        try:
            with progress("export", records.count, "records") as meter:
                _EXPORTERS[to](records, output, meter)
        except BaseException:
            for path in files:  # one alone may be whole, and in the way of the next call
                path.unlink(missing_ok=True)
            raise
    return records.count, [path for path in files if path.exists()]


def _parquet(records: Records, output: Path, meter: Meter) -> None:
    """Write the index with a column `embedding`, a list of D float32."""
    kind = pa.list_(pa.float32(), records.embeddings.dim)
    schema = records.schema({"embedding": kind}).with_metadata(records.attributes)
    texts = schema.names[:-1]  # of the vectors no dictionary: hardly a number comes twice
    with (
        atomic_path(output) as temporary,
        pq.ParquetWriter(temporary, schema, use_dictionary=texts) as writer,
    ):
        for lines in records.batches(meter):
            flat = pa.array(records.vectors(lines).astype(np.float32).ravel())
            column = pa.FixedSizeListArray.from_arrays(flat, type=kind)
            writer.write_batch(pa.record_batch([*lines.columns, column], schema=schema))


def _csv(records: Records, output: Path, meter: Meter, separator: str = ",") -> None:
    """Write a line of text per record: the columns of the index, and e0 to e{D-1}."""
    more = {f"e{number}": pa.float32() for number in range(records.embeddings.dim)}
    schema, options = records.schema(more), pa.csv.WriteOptions(delimiter=separator)
    with (
        atomic_path(output) as temporary,
        pa.csv.CSVWriter(temporary, schema, write_options=options) as writer,
    ):
        for lines in records.batches(meter):
            numbers = np.ascontiguousarray(records.vectors(lines).astype(np.float32).T)
            columns = [*lines.columns, *map(pa.array, numbers)]
            writer.write_batch(pa.record_batch(columns, schema=schema))


def _npy(records: Records, output: Path, meter: Meter) -> None:
    """Write an array (records, D), to be memory-mapped."""
    header = np.lib.format.header_data_from_array_1_0(records.embeddings.rows([], records.name))
    header["shape"] = records.count, records.embeddings.dim
    with (
        _table(output.with_name(f"{output.name}.ids.tsv"), "id", "cache_key") as ids,
        atomic_path(output) as temporary,
        temporary.open("wb") as file,
    ):
        np.lib.format.write_array_header_1_0(file, header)
        for lines in records.batches(meter):
            file.write(records.vectors(lines).tobytes())
            ids.writerows(zip(lines["id"].to_pylist(), lines["cache_key"].to_pylist(), strict=True))


def _uniprot(records: Records, output: Path, meter: Meter) -> None:
    """Write UniProt's per-protein.h5 (per-residue.h5): a dataset (D,), or (L, D), per name. An id
    with the same vector again is left out; with others it gets .2, .3 ..., but in the record that
    comes first in the input.
    """
    owners: dict[str, tuple[str, int]] = {}  # the id and row of each name
    first, renamed = _first_rows(records), list[tuple[str, str, str, int]]()
    with _new_hdf5(output) as file:
        file.attrs.update(records.attributes)
        for lines in records.batches(meter):
            for line, values in zip(lines.to_pylist(), records.arrays(lines), strict=True):
                id, row = line["id"], line["row"]
                called = id or f"{Path(line['source']).name}:{line['number']}"
                safe, start = safe_name(called), 1 if not id or first[id] == row else 2
                numbered = (f"{safe}.{number}" if number > 1 else safe for number in count(start))
                name = next(n for n in numbered if owners.get(n) in (None, (called, row)))
                if name in owners:
                    continue
                owners[name] = called, row
                if name != id:
                    renamed.append((name, id, line["source"], line["number"]))
                dataset = file.create_dataset(name, data=values, track_times=False)
                dataset.attrs["original_id"] = _without_nul(id)
    if renamed:
        names = output.with_name(f"{output.name}.names.tsv")
        with _table(names, "name", "id", "source", "number") as table:
            table.writerows(renamed)


def _first_rows(records: Records) -> dict[str, int]:
    """Return the row of each id, of several that of its first record in the input."""
    inputs = records.embeddings.metadata.get("inputs", {}).get("inputs", [])
    paths = pa.array([entry["path"] for entry in inputs], pa.string())
    schema = pa.schema([records.index.field(name) for name in ("id", "source", "number", "row")])
    batches = map(records.of, records.embeddings.records.lines())
    lines = pa.Table.from_batches((batch.select(schema.names) for batch in batches), schema)
    lines = lines.append_column("input", pc.index_in(lines["source"], paths))
    lines = lines.sort_by([(name, "descending") for name in ("input", "number", "row")])
    return dict(zip(lines["id"].to_pylist(), lines["row"].to_pylist(), strict=True))


def safe_name(id: str) -> str:
    """Return an id as the name of a dataset, with space for a count: slashes, backslashes, control
    characters and '%' become %2F and the like; what is too long keeps its beginning and ends in a
    hash.
    """
    name = re.sub(r"[/\\%\x00-\x1f\x7f]", lambda letter: f"%{ord(letter[0]):02X}", id)
    name = f"%{name}" if name in (".", "..") else name
    if len(name.encode()) > LONGEST_NAME - 8:
        digest = hashlib.sha256(id.encode()).hexdigest()[:16]
        name = f"{name.encode()[: LONGEST_NAME - 25].decode(errors='ignore')}-{digest}"
    return name


def _anndata(records: Records, output: Path, meter: Meter) -> None:
    """Write an .h5ad with an observation per record, all in memory before."""
    lines = pa.Table.from_batches(records.batches(meter), records.index)
    data = make_anndata(records.vectors(lines), lines)
    from anndata.io import write_elem

    with _new_hdf5(output) as file:
        write_elem(file, "/", data)


def make_anndata(vectors: Array, lines: pa.Table) -> "anndata.AnnData":
    """Return an AnnData of vectors (n, D) and n lines with their ids, which h5ad and zarr can hold.
    Where ids repeat, names become x, x-1, x-2, and a column keeps the ids.
    """
    with extra():
        import anndata
        import pandas as pd
    observations: pd.DataFrame = lines.to_pandas().set_index("id")
    ids = observations.index
    if not ids.is_unique:
        # AnnData would only warn, and what its own remedy makes it cannot write with pandas 3
        observations["id"] = ids.to_numpy()
        observations.index = anndata.utils.make_index_unique(ids).rename(None)
    for column in observations.columns[observations.dtypes == "str"]:
        # pandas keeps text in Arrow's arrays, for which AnnData 0.12.6 has no writer
        codes, values = pd.factorize(observations[column].map(_without_nul, na_action="ignore"))
        observations[column] = pd.Categorical.from_codes(codes, pd.Index(values, dtype=object))
    data = anndata.AnnData(X=vectors, obs=observations)
    data.obs_names = data.obs_names.map(_without_nul).astype(object)
    data.var_names = data.var_names.astype(object)
    return data


@contextmanager
def _new_hdf5(final: Path) -> Iterator[h5py.File]:
    """Open a new HDF5 file, which appears whole when the block succeeds."""
    with atomic_path(final) as temporary, _File(temporary, "w+b") as written:
        with connect(written, "w") as file:
            yield file
        if written.error:
            raise written.error


class _File(io.FileIO):
    """A file that keeps the error of a failed write from HDF5, which would crash in the end."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        try:
            while left and not self.error:
                left = left[super().write(left) :]
        except OSError as error:
            self.error = error
        return len(data)


@contextmanager
def _table(path: Path, *columns: str) -> Iterator[Any]:
    """Open a tab-separated table beside an export, with a header, as a writer of `csv`."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(columns)
        yield writer


def _without_nul(text: str) -> str:
    """Return a text as HDF5 can hold it."""
    return text.replace("\0", "%00")


_EXPORTERS: dict[Format, Callable[[Records, Path, Meter], None]] = {
    "parquet": _parquet,
    "csv": _csv,
    "tsv": partial(_csv, separator="\t"),
    "npy": _npy,
    "uniprot-h5": _uniprot,
    "anndata": _anndata,
}
