"""Exports as one array (records, D), with the ids of its rows beside it or in it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from plm_embed.errors import extra
from plm_embed.io.files import atomic_path
from plm_embed.io.progress import Meter
from plm_embed.reading.exports.records import Records, atomic_folder, beside, table
from plm_embed.store.hdf5 import CHUNK_ROWS, Array

_SAFETENSORS = {"<f2": "F16", "<f4": "F32"}


@contextmanager
def _listed(records: Records, output: Path, meter: Meter) -> Iterator[Iterator[Array]]:
    """The vectors of batches; the ids of the rows are written beside the output on the way."""

    def batches() -> Iterator[Array]:
        for batch in records.batches(meter):
            for line in zip(batch["id"], batch["cache_key"], strict=True):
                write(line)
            yield records.vectors(batch)

    with table(beside(output, "ids"), "id", "cache_key") as write:
        yield batches()


def _like(records: Records) -> tuple[tuple[int, int], np.dtype[Any]]:
    """The shape and the type of the whole array."""
    dtype = records.embeddings.rows([], records.name).dtype
    return (records.count, records.embeddings.dim), dtype


def npy(records: Records, output: Path, meter: Meter) -> None:
    """A NumPy array, to be memory-mapped."""
    shape, dtype = _like(records)
    with (
        _listed(records, output, meter) as batches,
        atomic_path(output) as temporary,
        temporary.open("wb") as file,
    ):
        descr = np.lib.format.dtype_to_descr(dtype)
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for vectors in batches:
            file.write(vectors.tobytes())


def safetensors(records: Records, output: Path, meter: Meter) -> None:
    """One tensor, `emb`. The library itself would need all of it in memory: the format is a header
    of JSON, its length before it, and the bytes (https://github.com/huggingface/safetensors).
    """
    shape, dtype = _like(records)
    ends = [0, shape[0] * shape[1] * dtype.itemsize]
    tensor = {"dtype": _SAFETENSORS[dtype.str], "shape": shape, "data_offsets": ends}
    header = json.dumps({"__metadata__": records.attributes(), "emb": tensor}).encode()
    header += b" " * (-len(header) % 8)
    with (
        _listed(records, output, meter) as batches,
        atomic_path(output) as temporary,
        temporary.open("wb") as file,
    ):
        file.write(len(header).to_bytes(8, "little") + header)
        for vectors in batches:
            file.write(vectors.tobytes())


def zarr(records: Records, output: Path, meter: Meter) -> None:
    """A Zarr v3 group with the arrays `emb`, `id` and `cache_key`, whose dimensions are named as
    xarray wants them.
    """
    with extra():
        import zarr as library
    shape, dtype = _like(records)
    with atomic_folder(output) as folder:
        group = library.create_group(folder, zarr_format=3, attributes=records.attributes())
        emb = group.create_array(
            "emb",
            shape=shape,
            dtype=dtype,
            chunks=(CHUNK_ROWS, max(shape[1], 1)),
            dimension_names=("record", "dimension"),
        )
        texts = {
            name: group.create_array(
                name, shape=shape[:1], dtype=str, chunks=(1 << 16,), dimension_names=("record",)
            )
            for name in ("id", "cache_key")
        }
        start = 0
        for batch in records.batches(meter):
            stop = start + batch.columns.num_rows
            emb[start:stop] = records.vectors(batch)
            for name, column in texts.items():
                column[start:stop] = np.array(batch[name], dtype=np.dtypes.StringDType())
            start = stop


def faiss(records: Records, output: Path, meter: Meter) -> None:
    """A flat index of unit vectors, whose inner product is the cosine; held in memory whole."""
    with extra():
        import faiss as library
    index = library.IndexFlatIP(records.embeddings.dim)
    with _listed(records, output, meter) as batches, atomic_path(output) as temporary:
        for vectors in batches:
            unit = np.array(vectors, np.float32, order="C")
            library.normalize_L2(unit)
            index.add(unit)
        with temporary.open("wb") as file:  # by a path, a full disk would be a bug's RuntimeError
            writer = library.PyCallbackIOWriter(file.write)  # type: ignore[attr-defined]
            library.write_index(index, writer)
