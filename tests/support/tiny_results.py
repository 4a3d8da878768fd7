"""What a campaign has made, as digests that say whether two results are the same."""

import hashlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq

from plm_embed.store.checksums import SEAL
from support.tiny_steps import INDEX, MASTER, RECORDS


def results(folder: Path, *, inputs: bool = True) -> dict[str, Any]:
    """Digests of what master, index and records hold, but commit and seal; `inputs` False: nor what
    the inputs were.
    """
    found: dict[str, Any] = {}
    with h5py.File(folder / MASTER) as master:
        master.visititems(
            lambda name, item: (
                found.update({name: digest(item[...])}) if isinstance(item, h5py.Dataset) else None
            )
        )
        for name, value in master.attrs.items():
            if name not in ("workflow_commit", SEAL) and (inputs or name != "inputs"):
                found[f"attribute {name}"] = str(
                    value.tolist() if isinstance(value, np.ndarray) else value
                )
    for path in (INDEX, RECORDS):
        found[path] = hashlib.sha256(
            repr(pq.read_table(folder / path).to_pylist()).encode()
        ).hexdigest()
    return found


def digest(values: Any) -> str:
    """Of an array: its numbers, dtype and shape."""
    return hashlib.sha256(
        f"{values.dtype} {values.shape} ".encode() + np.ascontiguousarray(values).tobytes()
    ).hexdigest()
