"""Places of masters and stores."""

import os
from pathlib import Path

import h5py

from plm_embed.errors import StoreError
from plm_embed.fingerprint import master_name
from plm_embed.store.store import fingerprint_folders

MASTERS = f"{master_name('*')}.h5"
"""The names of masters: each family of models has its own."""


def masters(folder: Path) -> list[Path]:
    """Return the masters in a folder, of whatever family, by name."""
    return sorted(folder.glob(MASTERS))


def find_embeddings(path: Path) -> Path:
    """Return the master .h5, or the folder of a store, that a path means: itself, the master beside
    an index, in a folder, or in its one folder that has one. StoreError for none, or several.
    """
    choices = [path.with_suffix(".h5") if path.suffix == ".parquet" else path]
    kind = "masters"
    if path.is_dir():
        if choices := fingerprint_folders(path):
            kind = "stores of different settings"
        else:
            choices = masters(path) or sorted(path.glob(f"*/{MASTERS}"))
    if len(choices) > 1:
        raise StoreError(
            f"{path}: holds {len(choices)} {kind}",
            path=path,
            remedy=f"open one of them: {', '.join(map(str, choices))}",
        )
    if not choices or not choices[0].exists():
        raise StoreError(
            f"{choices[0] if choices else path}: there is no such file, or no master in it",
            path=choices[0] if choices else path,
            remedy="give a master .h5, its .parquet, the folder that holds them, or a store",
        )
    file = choices[0]
    # a damaged master still has its name, and its own message
    unnamed = file.is_file() and not file.match(MASTERS)
    if unnamed and os.access(file, os.R_OK) and not h5py.is_hdf5(file):
        message = f"{file}: not an HDF5 file, so not a master; those are called {MASTERS}"
        raise StoreError(message, path=file)
    return file
