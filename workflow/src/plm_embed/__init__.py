"""Protein sequences to ESM-2 embeddings at scale. `plm_embed.open(path)` reads what the workflow made."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plm_embed.reader import Embeddings

__all__ = ["__version__", "open"]
__version__ = "0.1.0"


def open(path: str | Path) -> "Embeddings":
    """Open embeddings for reading: `path` is a master .h5, its .parquet index, or the folder that holds them."""
    from plm_embed.reader import Embeddings

    return Embeddings(Path(path))
