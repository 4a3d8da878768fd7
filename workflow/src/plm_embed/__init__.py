"""Protein sequences to ESM-2 embeddings at scale. `plm_embed.open(path)` reads what the workflow
made.

What is wrong with files, settings or ids is raised as a `PlmEmbedError`; its subclasses say of what
kind it is.
"""

import typing as _typing

from plm_embed._version import __version__
from plm_embed.errors import (
    ConfigError,
    DeviceError,
    InputError,
    PassingError,
    PlmEmbedError,
    StoreError,
    UnknownIdError,
    WeightsError,
)

if _typing.TYPE_CHECKING:
    from pathlib import Path

    from plm_embed.reading.master import Embeddings
    from plm_embed.reading.store import StoreVectors

__all__ = [
    "ConfigError",
    "DeviceError",
    "InputError",
    "PassingError",
    "PlmEmbedError",
    "StoreError",
    "UnknownIdError",
    "WeightsError",
    "__version__",
    "open",
]


def open(path: "str | Path") -> "Embeddings | StoreVectors":
    """Open embeddings for reading.

    `path` is a master .h5, its .parquet index, the folder that holds them, or a results folder with
    one master: vectors by id, key and row. Or it is a store: vectors by key and row. StoreError for
    anything else.
    """
    from pathlib import Path

    from plm_embed.reading.master import open_vectors

    return open_vectors(Path(path))
