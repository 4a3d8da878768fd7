"""A master file: where it is found, and what it must hold before it is read."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from plm_embed.errors import PlmEmbedError, StoreError, delete
from plm_embed.fingerprint import Fingerprint, columns, has_matrix, master_name
from plm_embed.store.hdf5 import DAMAGES, storage_dtype

MASTERS = f"{master_name('*')}.h5"
"""What masters are called: each family of models has its own name."""


def masters(folder: Path) -> list[Path]:
    """The masters in a folder, of whatever family, by name."""
    return sorted(folder.glob(MASTERS))


def find_master(path: Path) -> Path:
    """The master .h5 that a path means: itself, the one beside an index, in a folder, or in its one
    folder that has one, as in a results folder. StoreError when there is none, or there are
    several.
    """
    if path.is_dir():
        found = masters(path) or sorted(path.glob(f"*/{MASTERS}"))
        if len(found) > 1:
            raise StoreError(
                f"{path}: holds {len(found)} masters",
                path=path,
                remedy=f"name one of them: {', '.join(map(str, found))}",
            )
        path = found[0] if found else path / MASTERS
    elif path.suffix == ".parquet":
        path = path.with_suffix(".h5")
    if not path.is_file():
        raise StoreError(
            f"{path}: there is no such file",
            path=path,
            remedy="give a master .h5, its .parquet, the folder that holds them, or a store",
        )
    # a damaged master is still called like one, and is to be made again
    if not path.match(MASTERS) and os.access(path, os.R_OK) and not h5py.is_hdf5(path):
        raise StoreError(
            f"{path}: not an HDF5 file, so not a master; those are called {MASTERS}", path=path
        )
    return path


@contextmanager
def reading(path: Path, file: h5py.File | None = None) -> Iterator[None]:
    """StoreError for what HDF5 and h5py raise when what they read is damaged; PlmEmbedError when
    the reader has closed its file.
    """
    if file is not None:
        need_open(path, file)
    try:
        yield
    except (*DAMAGES, AttributeError) as error:
        raise damaged(path, str(error)) from error


def need_open(path: Path, file: h5py.HLObject) -> None:
    """PlmEmbedError when the reader has closed its file, of which this is a part."""
    if not file:
        raise PlmEmbedError(
            f"{path}: was closed", path=path, remedy="open it again: plm_embed.open"
        )


def held_open(path: Path, file: h5py.File) -> Path:
    """A path to the very file that is open, though another one may have taken its place since."""
    held = Path(f"/proc/self/fd/{file.id.get_vfd_handle()}")
    return held if held.exists() else path


def gather_again(path: Path) -> str:
    """What to do about a damaged master, index or list of records."""
    return delete(path)


def damaged(path: Path, what: str) -> StoreError:
    return StoreError(f"{path}: damaged: {what}", remedy=gather_again(path), path=path)


def representations(file: h5py.File, path: Path) -> dict[str, h5py.Dataset]:
    """The representations of an open master by name, and `emb` where one is pooled.

    StoreError unless all datasets are there, of one height, and of the types that the fingerprint
    names: what is read past its end, or as another type, would be other numbers.
    """
    with reading(path):
        if "emb_keys" not in file or "representations" not in file:
            raise StoreError(
                f"{path}: an HDF5 file, but no master of embeddings (no emb_keys)", path=path
            )
        fingerprint = Fingerprint.from_json(file.attrs["fingerprint"])
        names = fingerprint.representations
        found = {name: file["representations"][name] for name in sorted(names)}
        if not all(map(has_matrix, names)):
            found["emb"] = file["emb"]
        keys, lengths = file["emb_keys"], file["length"]
        if (
            keys.dtype != "S64"
            or lengths.dtype.kind != "i"
            or not keys.shape == lengths.shape == (len(keys),)
        ):
            raise ValueError("emb_keys and length are no columns of keys and numbers")
        residues = int(file["offset"][-1]) if any(map(has_matrix, names)) else 0
        for name, dataset in found.items():
            if storage_dtype(dataset) != fingerprint.storage_dtype:
                raise ValueError(
                    f"{name} is stored as {dataset.dtype}, not as {fingerprint.storage_dtype}"
                )
            rows = residues if has_matrix(name) else len(keys)
            if dataset.shape != (rows, columns(name, found[names[0]].shape[1])):
                raise ValueError(
                    f"{name} has the shape {dataset.shape}, but there are {rows} rows for it"
                )
    return found
