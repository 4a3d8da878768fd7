"""What `plm_embed.open` returns, by what lies at a path."""

from pathlib import Path

from plm_embed.reading.master import Embeddings
from plm_embed.reading.store_vectors import StoreVectors, is_store
from plm_embed.reading.vectors import Embedder


def open_vectors(path: Path, embedder: Embedder | None = None) -> Embeddings | StoreVectors:
    """A master (its .h5, its index, or their folder) or a store. StoreError for anything else."""
    return StoreVectors(path, embedder) if is_store(path) else Embeddings(path, embedder)
