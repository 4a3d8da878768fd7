"""Exports as a table: a line per record with the columns of the index, and its vector."""

from collections.abc import Sized
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from plm_embed.errors import PlmEmbedError, extra
from plm_embed.io.files import atomic_path
from plm_embed.io.progress import Meter
from plm_embed.reading.exports.as_anndata import make_anndata, uniquely_named
from plm_embed.reading.exports.new_hdf5 import new_hdf5
from plm_embed.reading.exports.records import (
    NAMES,
    RECORDS_AT_ONCE,
    Batch,
    Records,
    beside,
    table,
    without_nul,
)
from plm_embed.store.hdf5 import CHUNK_ROWS

VECTOR = "embedding"


def parquet(records: Records, output: Path, meter: Meter) -> None:
    """The index with a column of vectors, a list of D float32, which every reader of Parquet
    knows.
    """
    kind = pa.list_(pa.float32(), records.embeddings.dim)
    if VECTOR in records.schema.names:
        raise PlmEmbedError(
            f"{records.embeddings.index}: has a column {VECTOR!r} of its own, and this file calls "
            "its vectors so",
            path=records.embeddings.index,
            remedy="export to csv, or npy",
        )
    schema = pa.schema([*records.schema.remove_metadata(), pa.field(VECTOR, kind)])
    schema = schema.with_metadata(records.attributes())
    # of the vectors no dictionary: hardly a number comes twice
    with (
        atomic_path(output) as temporary,
        pq.ParquetWriter(temporary, schema, use_dictionary=records.schema.names) as writer,
    ):
        for batch in records.batches(meter):
            flat = pa.array(records.vectors(batch).astype(np.float32).ravel())
            vectors = pa.FixedSizeListArray.from_arrays(flat, type=kind)
            writer.write_batch(pa.record_batch([*batch.columns.columns, vectors], schema=schema))


def comma_separated(records: Records, output: Path, meter: Meter) -> None:
    """A line of text per record: the columns of the index, and e0 to e{D-1}."""
    _text(records, output, meter, ",")


def tab_separated(records: Records, output: Path, meter: Meter) -> None:
    """As above, with tabs."""
    _text(records, output, meter, "\t")


def _text(records: Records, output: Path, meter: Meter, delimiter: str) -> None:
    dimensions = [pa.field(f"e{number}", pa.float32()) for number in range(records.embeddings.dim)]
    schema = pa.schema([*records.schema.remove_metadata(), *dimensions])
    if taken := [field.name for field in dimensions if field.name in records.schema.names]:
        raise PlmEmbedError(
            f"{records.embeddings.index}: has a column {taken[0]!r} of its own, and this file "
            "calls a dimension of its vectors so",
            path=records.embeddings.index,
            remedy="rename it in the input, or export to npy",
        )
    options = csv.WriteOptions(delimiter=delimiter)

    def lines(batch: Batch) -> pa.RecordBatch:
        vectors = np.ascontiguousarray(records.vectors(batch).astype(np.float32).T)
        return pa.record_batch([*batch.columns.columns, *map(pa.array, vectors)], schema=schema)

    with (
        atomic_path(output) as temporary,
        csv.CSVWriter(temporary, schema, write_options=options) as writer,
    ):
        for batch in records.batches(meter):
            writer.write_batch(lines(batch))


def anndata(records: Records, output: Path, meter: Meter) -> None:
    """An .h5ad with an observation per record; a column without a value is empty text there.

    AnnData writes it without observations, then it grows: of all that it holds only the names and a
    batch are in memory.
    """
    with extra():
        import pandas as pd
        from anndata.io import write_elem
    embeddings, schema = records.embeddings, records.schema
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    ids = pc.replace_substring(records.ids(), "\0", without_nul("\0")).to_pandas()
    named = uniquely_named(pd.DataFrame(index=pd.Index(ids, name="id")))
    columns = schema.empty_table().drop_columns("id").to_pandas()
    empty = make_anndata(
        embeddings.rows([], records.name), columns.set_axis(named.index[:0]).join(named[:0])
    )
    growing = {
        "X": {"maxshape": (None, None), "chunks": (CHUNK_ROWS, max(embeddings.dim, 1))},
        "obs": {"maxshape": (None,), "chunks": (RECORDS_AT_ONCE,)},
    }
    with (
        table(beside(output, "names"), *NAMES) as write,
        new_hdf5(output) as (file, check),
    ):
        write_elem(file, "/", empty)
        for element, options in growing.items():
            write_elem(file, element, getattr(empty, element), dataset_kwargs=options)
        observations, start = file["obs"], 0
        for batch in records.batches(meter):
            check()
            _append(file["X"], records.vectors(batch))
            for field in schema.names:
                values = batch[field]
                if field in texts:
                    values = [without_nul(value or "") for value in values]
                _append(observations[field], values)
            names = named.index[start : start + batch.columns.num_rows].tolist()
            start += len(names)
            if (called := observations.attrs["_index"]) != "id":
                _append(observations[called], names)
            columns = (names, batch["id"], batch["source"], batch["number"])
            for name, id, source, number in zip(*columns, strict=True):
                if name != id:
                    write([name, id, source, number])


def _append(dataset: h5py.Dataset, values: Sized) -> None:
    start = len(dataset)
    dataset.resize(start + len(values), axis=0)
    dataset[start:] = values
