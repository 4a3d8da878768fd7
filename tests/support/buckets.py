"""Buckets as deduplicate writes them."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from plm_embed.keys import key

SEQUENCES = [
    ("LAGVSERTIDPKQNFYMHWCX" * 40)[start : start + length]
    for start, length in enumerate(range(1, 400, 7))
]


def bucket_of(key: str, n: int) -> int:
    """The number, 0 to n - 1, of the bucket that holds `key`."""
    return int(key[:16], 16) * n >> 64


def write_bucket(folder: Path, sequences: Sequence[str], name: str = "0000") -> Path:
    rows = sorted((key(sequence), sequence) for sequence in set(sequences))
    path = folder / f"{name}.parquet"
    columns = {
        "key": pa.array([row[0] for row in rows], pa.string()),
        "sequence": pa.array([row[1] for row in rows], pa.string()),
        "length": pa.array([len(row[1]) for row in rows], pa.int32()),
    }
    pq.write_table(pa.table(columns), path)
    return path
