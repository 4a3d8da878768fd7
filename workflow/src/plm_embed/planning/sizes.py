"""The bytes that a campaign will write, by what they are; per-residue output is stopped when nobody
has agreed to its size.
"""

import logging
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from plm_embed.errors import ConfigError
from plm_embed.fingerprint import MATRICES, LongSequences, storage_bytes
from plm_embed.inference.settings import Settings
from plm_embed.io.files import size
from plm_embed.io.parquet import record_batches
from plm_embed.models.manifest import TENSORS, read_manifest
from plm_embed.models.registry import Model
from plm_embed.planning import costs
from plm_embed.sequence_windows import stored_residues
from plm_embed.sequences.summary import SUMMARY, read_summary
from plm_embed.store import checksums
from plm_embed.store.hdf5 import CHUNK_ROWS
from plm_embed.store.write_parts import BYTES_PER_PART
from plm_embed.workflow.config import Config

log = logging.getLogger(__name__)
BYTES_PER_SEQUENCE, BYTES_PER_RESIDUE = 70, 0.54
"""Of a bucket's file: the key, and residues as Parquet packs those of proteins."""
BYTES_PER_RECORD = 80
"""Of a record in each of members, index and records.parquet: key, id, a line of header."""
FILES_PER_BUCKET = 8
"""Besides its parts: two of its sequences, completion record, notes of its submission and of an
attempt, log, benchmark, what Snakemake notes of its job. (docs/scale.md)
"""
_PIECE, _PIECES, _ENOUGH = 2_000, 8, 1 << 20
"""Letters of a piece, pieces of a sequence, and letters from which on the rest is like them."""
FILE_BYTES, DATASET_BYTES = 8_000, 3_000
"""What a file has besides its datasets (attributes; the completion record of a bucket), and HDF5
adds to each.
"""


def vector_bytes(config: Config, model: Model, lengths: Mapping[int, int]) -> dict[str, int]:
    """Bytes of the store and of the master for sequences given by their number by length."""
    asked = config["embedding"]
    item, layers = storage_bytes(asked["storage_dtype"]), len(asked["layers"])
    policy = LongSequences(**asked["long_sequences"])
    rows = costs.work(model, lengths, policy).sequences
    residues = _residues(lengths, policy) // model.family.letters_per_token
    pooled = sum(pooling not in MATRICES for pooling in asked["pooling"]) * layers
    flat = sum(pooling in MATRICES for pooling in asked["pooling"]) * layers

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


def table_bytes(sequences: Path, accepted: int) -> dict[str, int]:
    """Bytes of everything that is not vectors, from deduplicated sequences."""
    files = {name: size(sequences / name) for name in ("records.parquet", "buckets", "members")}
    return {
        "sequences": sum(files.values()),
        "index": files["members"] + 4 * accepted,
        "records": files["records.parquet"] + 4 * accepted,
    }


def estimated_table_bytes(records: int, unique: int, residues: int) -> dict[str, int]:
    """The same from counts alone, for ids and headers of usual length."""
    buckets = round(BYTES_PER_SEQUENCE * unique + BYTES_PER_RESIDUE * residues)
    return {
        "sequences": buckets + 2 * BYTES_PER_RECORD * records,
        "index": BYTES_PER_RECORD * records,
        "records": BYTES_PER_RECORD * records,
    }


def file_count(store_bytes: int, buckets: int, device_hours: float, config: Config) -> int:
    """Files that a campaign of one model makes, its master and the notes of Snakemake among them.

    A part ends after so many minutes, or when it is full: of vectors as fp32, whatever is stored.
    """
    full = BYTES_PER_PART * storage_bytes(config["embedding"]["storage_dtype"]) / 4
    parts = device_hours * 60 / Settings.flush_minutes, store_bytes / full
    return buckets * (FILES_PER_BUCKET + math.ceil(max(1.0, *(each / buckets for each in parts))))


def _padded(rows: int, chunk: int) -> int:
    """Rows that HDF5 allocates: whole chunks, of at most the rows there are."""
    return math.ceil(rows / min(chunk, rows)) * min(chunk, rows) if rows else 0


def per_residue_bytes(
    lengths: Mapping[int, int], dim: int, settings: Settings, letters: float = 1
) -> int:
    """Bytes that the per-residue or per-token vectors of a campaign take in the master, and once
    more in the store.

    `lengths`: how many unique sequences have each length; `dim`: D; `letters`: of a token.
    """
    if not MATRICES.intersection(settings.pooling):
        return 0
    residues = int(_residues(lengths, settings.long_sequences) / letters)
    return residues * dim * len(settings.layers) * storage_bytes(settings.storage_dtype)


def _residues(lengths: Mapping[int, int], policy: LongSequences) -> int:
    """Rows in a per-residue dataset of sequences given by their number by length."""
    each = np.fromiter(lengths, dtype=np.int64, count=len(lengths))
    counts = np.fromiter(lengths.values(), dtype=np.int64, count=len(lengths))
    return int(stored_residues(each, policy) @ counts)


def letters_per_token(bucket: Path, weights: Path) -> float:
    """How many letters a token has, by the first sequences of a bucket file, which are random ones;
    of long ones by pieces. As a rule 5 or 6, but 1 of unknown letters.
    """
    from plm_embed.models.weights import Tensors  # torch

    family = read_manifest(weights).family
    tokenize = family.tokens_of(Tensors(weights / TENSORS)).tokenize
    letters = tokens = 0
    for rows in record_batches(bucket, ["sequence"], 64):
        for sequence in rows["sequence"].to_pylist():
            step = max(_PIECE, len(sequence) // _PIECES)
            for start in range(0, len(sequence), step):
                piece = sequence[start : start + _PIECE]
                letters += len(piece)
                tokens += len(tokenize(piece)) - family.extra_tokens
        if letters > _ENOUGH:
            break
    return letters / tokens if tokens else family.letters_per_token


def announce(bucket: Path, weights: Path, settings: Settings) -> None:
    """Log how much per-residue output the campaign of a bucket file makes; ConfigError when it
    exceeds the limit.

    Says nothing when there is none, or when the bucket is not in a folder made by deduplicate.
    """
    summary = bucket.parent.parent / SUMMARY
    asked = MATRICES.intersection(settings.pooling)
    if not asked or not summary.is_file():
        return
    lengths, manifest = read_summary(summary.parent).lengths, read_manifest(weights)
    letters = 1 if manifest.family.token_per_letter else letters_per_token(bucket, weights)
    size = per_residue_bytes(lengths, manifest.dim, settings, letters) / 1e9
    log.info("per-residue output: %.3g GB in the master, and as much in the store", size)
    if size > settings.per_residue_limit_gb:
        raise ConfigError(
            f"embedding.pooling: {' and '.join(asked)} makes {size:,.4g} GB, twice: in the master "
            f"and in the store. To agree, write `per_residue_limit_gb: {math.ceil(size)}` below "
            f"`embedding:` in the config (now {settings.per_residue_limit_gb:g})",
            key="embedding.per_residue_limit_gb",
        )
