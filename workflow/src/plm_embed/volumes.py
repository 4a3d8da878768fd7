"""The bytes that a campaign will write, by what they are."""

import math
from pathlib import Path

from plm_embed import checksums, costs
from plm_embed.config import Config
from plm_embed.files import size
from plm_embed.fingerprint import LongSequences
from plm_embed.hdf5 import CHUNK_ROWS
from plm_embed.models import Model

FILE_BYTES, DATASET_BYTES = 8_000, 3_000
"""What a file has besides its data sets (attributes; the completion record of a bucket), and HDF5 adds to each."""
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


def vectors(config: Config, model: Model, lengths: dict[int, int]) -> dict[str, int]:
    """Bytes of the store and of the master for sequences given by their number by length."""
    asked = config["embedding"]
    item, layers = ITEM_BYTES[asked["storage_dtype"]], len(asked["layers"])
    policy = LongSequences(**asked["long_sequences"])
    rows = costs.work(model, lengths, policy).sequences
    kept = policy.max_residues if policy.policy == "crop" else max(lengths, default=0)
    residues = sum(min(length, kept) * count for length, count in lengths.items())
    pooled = sum(pooling != "per_residue" for pooling in asked["pooling"]) * layers
    flat = ("per_residue" in asked["pooling"]) * layers

    checks = [8] * (len(checksums.COLUMNS) + pooled + flat)
    widths: list[int] = [64, 4, 4, *([8] if flat else []), *checks]

    overhead: int = FILE_BYTES + DATASET_BYTES * (len(widths) + pooled + flat)

    def one_file(rows: int, residues: int) -> int:
        columns: int = sum(_padded(rows, 128 * CHUNK_ROWS) * width for width in widths)
        numbers: int = _padded(rows, CHUNK_ROWS) * pooled + _padded(residues, CHUNK_ROWS) * flat
        return columns + numbers * model.dim * item + overhead

    parts = max(1, min(config["buckets"], rows))
    return {
        "store": parts * one_file(math.ceil(rows / parts), math.ceil(residues / parts)),
        "master": one_file(rows, residues),
    }


def tables(sequences: Path, accepted: int) -> dict[str, int]:
    """Bytes of everything that is not vectors, from deduplicated sequences."""
    files = {name: size(sequences / name) for name in ("records.parquet", "buckets", "members")}
    return {
        "sequences": sum(files.values()),
        "index": files["members"] + 4 * accepted,
        "records": files["records.parquet"] + 4 * accepted,
    }


def _padded(rows: int, chunk: int) -> int:
    """Rows that HDF5 allocates: whole chunks, of at most the rows there are."""
    return math.ceil(rows / min(chunk, rows)) * min(chunk, rows) if rows else 0
