"""Protein sequences to ESM-2 embeddings at scale. `plm_embed.open(path)` reads what the workflow made."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plm_embed.reader import Embeddings
    from plm_embed.store_reader import StoreVectors

__all__ = ["__version__", "open"]
__version__ = "0.1.0"


def open(path: str | Path) -> "Embeddings | StoreVectors":
    """Open embeddings for reading.

    `path` is a master .h5, its .parquet index, or the folder that holds them: vectors by id, key and row. Or it is a
    store: vectors by key and row.
    """
    from plm_embed.reader import open_vectors

    return open_vectors(Path(path))
