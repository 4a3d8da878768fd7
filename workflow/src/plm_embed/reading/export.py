"""A master in the shapes that other tools load: streamed, in the order of the index, and whole or
absent.
"""

import csv
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plm_embed.errors import PlmEmbedError, extra
from plm_embed.fingerprint import is_per_residue, pooling_and_layer
from plm_embed.io.files import atomic_path
from plm_embed.io.parquet import record_batches
from plm_embed.io.progress import Meter, progress
from plm_embed.reading.as_anndata import make_anndata
from plm_embed.reading.file_names import FileNames
from plm_embed.reading.find import MAKE_AGAIN
from plm_embed.reading.master import Embeddings
from plm_embed.store.hdf5 import CHUNK_ROWS, connect

Format = Literal["uniprot-h5", "npy", "anndata", "pt", "pt-dict"]
_RECORDS_AT_ONCE = 4096
_NAMES = ("name", "id", "source", "number")


@dataclass(frozen=True)
class _Batch:
    """Some records of the index: its columns, and the place of the first."""

    columns: pa.RecordBatch
    start: int

    def __getitem__(self, name: str) -> Any:
        return self.columns[name].to_pylist()


def export(master: Path, to: Format, output: Path, representation: str = "emb") -> None:
    """Write one record after the other of a master to `output`.

    uniprot-h5: one dataset per id, (D,) or (L, D), as UniProt's per-protein.h5 and per-residue.h5.
    npy: (records, D), and beside it OUTPUT.ids.tsv: id and cache_key of each row. anndata: an
    .h5ad, an observation per record; a column without a value is empty text there. pt: a folder
    with fair-esm's file for each id: label, and float32 tensors of all representations by layer.
    pt-dict: one .pt file with a float32 tensor by id, (D,) or (L, D); all of them are held in
    memory. Where an id cannot be a name, or records share it, OUTPUT.names.tsv tells which name
    stands for which id. PlmEmbedError when one of these files exists, or the representation is not
    there or not of the kind that is needed.
    """
    for path in (output, _beside(output, "ids" if to == "npy" else "names")):
        if path.exists() or path.is_symlink():
            raise PlmEmbedError(f"{path}: exists; remove it, or choose another name", path=path)
    with Embeddings(master) as embeddings:
        name = representation
        if name != "emb" and name not in embeddings.names:
            raise PlmEmbedError(
                f"{master}: has no representation {name}; it has {', '.join(embeddings.names)}",
                path=master,
            )
        if name == "emb":  # `emb` is the first pooled one in the order asked for
            name = min(embeddings.fingerprint.representations, key=is_per_residue)
        if is_per_residue(name) and to in ("npy", "anndata"):
            raise PlmEmbedError(
                f"{name} has a matrix per record, which {to} has no place for: export uniprot-h5 "
                "or pt"
            )
        embeddings.check_index()
        total = pq.read_metadata(embeddings.index).num_rows
        with progress("export", total, "records") as meter:
            _EXPORTERS[to](embeddings, name, output, meter)


def _batches(embeddings: Embeddings, meter: Meter) -> Iterator[_Batch]:
    start = 0
    for columns in record_batches(embeddings.index, None, _RECORDS_AT_ONCE, MAKE_AGAIN):
        yield _Batch(columns, start)
        start += columns.num_rows
        meter.advance(columns.num_rows)


def _beside(output: Path, what: str) -> Path:
    return output.with_name(f"{output.name}.{what}.tsv")


@contextmanager
def _table(path: Path, *columns: str) -> Iterator[Callable[[Iterable[object]], object]]:
    """A tab-separated file with a header: a function that writes a line to it."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(columns)
        yield writer.writerow


def _without_nul(text: str) -> str:
    """Text as HDF5 can hold it."""
    return text.replace("\0", "%00")


def _named(
    embeddings: Embeddings, output: Path, meter: Meter, longest: int
) -> Iterator[tuple[_Batch, list[tuple[int, str]]]]:
    """Batches, and of each the places of the records to write and their names. The map of the names
    is written too.
    """
    names = FileNames(longest)
    with _table(_beside(output, "names"), *_NAMES) as write:
        for batch in _batches(embeddings, meter):
            chosen = []
            columns = (batch["id"], batch["row"], batch["source"], batch["number"])
            for place, (id, row, source, number) in enumerate(zip(*columns, strict=True)):
                name = names.new(id, row)
                if name is None:
                    continue
                if name != id:
                    write([name, id, source, number])
                chosen.append((place, name))
            yield batch, chosen


def _uniprot(embeddings: Embeddings, name: str, output: Path, meter: Meter) -> None:
    with atomic_path(output) as temporary, connect(temporary, "w") as file:
        file.attrs["model_name"] = embeddings.metadata["model_name"]
        file.attrs["fingerprint"] = embeddings.fingerprint.to_json()
        file.attrs["representation"] = name
        for batch, chosen in _named(embeddings, output, meter, longest=1000):
            rows, ids = batch["row"], batch["id"]
            vectors = None if is_per_residue(name) else embeddings.rows(rows, name)
            for place, written in chosen:
                values = embeddings.matrix(rows[place], name) if vectors is None else vectors[place]
                dataset = file.create_dataset(written, data=values, track_times=False)
                dataset.attrs["original_id"] = _without_nul(ids[place])


def _npy(embeddings: Embeddings, name: str, output: Path, meter: Meter) -> None:
    shape = (pq.read_metadata(embeddings.index).num_rows, embeddings.dim)
    with (
        _table(_beside(output, "ids"), "id", "cache_key") as write,
        atomic_path(output) as temporary,
        temporary.open("wb") as file,
    ):
        dtype = embeddings.rows([], name).dtype
        header = {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": shape,
        }
        np.lib.format.write_array_header_1_0(file, header)
        for batch in _batches(embeddings, meter):
            file.write(embeddings.rows(batch["row"], name).tobytes())
            for line in zip(batch["id"], batch["cache_key"], strict=True):
                write(line)


def _anndata(embeddings: Embeddings, name: str, output: Path, meter: Meter) -> None:
    """AnnData writes an .h5ad without observations, which then grows: of all that it holds only a
    batch is in memory.
    """
    with extra():
        import pandas as pd
        from anndata.io import write_elem
    schema = pq.read_schema(embeddings.index)
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    observations = schema.empty_table().to_pandas().set_index("id")
    empty = make_anndata(embeddings.rows([], name), observations)
    empty.var_names = pd.Index([str(number) for number in range(embeddings.dim)], dtype=object)
    growing = {
        "X": {"maxshape": (None, None), "chunks": (CHUNK_ROWS, max(embeddings.dim, 1))},
        "obs": {"maxshape": (None,), "chunks": (_RECORDS_AT_ONCE,)},
    }
    with (
        _table(_beside(output, "names"), *_NAMES) as write,
        atomic_path(output) as temporary,
        connect(temporary, "w") as file,
    ):
        write_elem(file, "/", empty)
        for element, options in growing.items():
            write_elem(file, element, getattr(empty, element), dataset_kwargs=options)
        for batch in _batches(embeddings, meter):
            _append(file["X"], embeddings.rows(batch["row"], name))
            for field in schema.names:
                values = batch[field]
                if field in texts:
                    values = [_without_nul(value or "") for value in values]
                _append(file["obs"][field], values)
            for id, source, number in zip(
                batch["id"], batch["source"], batch["number"], strict=True
            ):
                if "\0" in id:
                    write([_without_nul(id), id, source, number])


def _append(dataset: h5py.Dataset, values: Sized) -> None:
    start = len(dataset)
    dataset.resize(start + len(values), axis=0)
    dataset[start:] = values


def _pt(embeddings: Embeddings, _: str, output: Path, meter: Meter) -> None:
    with extra():
        import torch
    with _atomic_folder(output) as folder:
        for batch, chosen in _named(embeddings, output, meter, longest=200):
            rows, ids = batch["row"], batch["id"]
            pooled = {
                name: embeddings.rows(rows, name)
                for name in embeddings.names
                if not is_per_residue(name)
            }
            for place, written in chosen:
                record: dict[str, Any] = {"label": ids[place]}
                for name in embeddings.names:
                    kind, layer = pooling_and_layer(name)
                    values = (
                        pooled[name][place]
                        if name in pooled
                        else embeddings.matrix(rows[place], name)
                    )
                    group = "representations" if is_per_residue(name) else f"{kind}_representations"
                    record.setdefault(group, {})[layer] = torch.from_numpy(
                        values.astype(np.float32)
                    )
                with (folder / f"{written}.pt").open("wb") as file:
                    torch.save(record, file)


def _pt_dict(embeddings: Embeddings, name: str, output: Path, meter: Meter) -> None:
    with extra():
        import torch
    tensors = {}
    with atomic_path(output) as temporary:
        for batch, chosen in _named(embeddings, output, meter, longest=1000):
            rows = batch["row"]
            vectors = None if is_per_residue(name) else embeddings.rows(rows, name)
            for place, written in chosen:
                values = embeddings.matrix(rows[place], name) if vectors is None else vectors[place]
                tensors[written] = torch.from_numpy(values.astype(np.float32))
        with temporary.open("wb") as file:  # by a path, torch would name the inside after the file
            torch.save(tensors, file)


@contextmanager
def _atomic_folder(final: Path) -> Iterator[Path]:
    """A folder that is renamed to `final` when the block succeeds and removed when it fails."""
    temporary = final.with_name(f".tmp-{secrets.token_hex(8)}-{final.name}")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        temporary.rename(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


_EXPORTERS: dict[Format, Callable[[Embeddings, str, Path, Meter], None]] = {
    "uniprot-h5": _uniprot,
    "npy": _npy,
    "anndata": _anndata,
    "pt": _pt,
    "pt-dict": _pt_dict,
}
