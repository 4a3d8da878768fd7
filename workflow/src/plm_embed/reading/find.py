"""Places of masters and stores."""

from pathlib import Path

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
    choices, kind = [path.with_suffix(".h5") if path.suffix == ".parquet" else path], "masters"
    if path.is_dir():
        if choices := fingerprint_folders(path):
            kind = "stores of different settings"
        else:
            choices = masters(path) or sorted(path.glob(f"*/{MASTERS}"))
    if len(choices) > 1:
        remedy = f"open one of them: {', '.join(map(str, choices))}"
        raise StoreError(f"{path}: holds {len(choices)} {kind}", path=path, remedy=remedy)
    place = choices[0] if choices else path
    if not choices or not place.exists():
        words = f"{place}: there is no such file, or no master in it"
        remedy = "give a master .h5, its .parquet, the folder that holds them, or a store"
        raise StoreError(words, path=place, remedy=remedy)
    return place
