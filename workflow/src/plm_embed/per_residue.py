"""The size of per-residue output: told before it is computed, and stopped when nobody has agreed to it."""

import logging
from collections.abc import Mapping
from pathlib import Path

from plm_embed.deduplicated import SUMMARY, read_summary
from plm_embed.errors import UserError
from plm_embed.fingerprint import LongSequences
from plm_embed.manifest import read_manifest
from plm_embed.settings import Settings

log = logging.getLogger(__name__)


def per_residue_bytes(lengths: Mapping[int, int], dim: int, settings: Settings) -> int:
    """Bytes that the per-residue vectors of a campaign take in the master, and once more in the store.

    `lengths`: how many unique sequences have each length; `dim`: D.
    """
    if "per_residue" not in settings.pooling:
        return 0
    residues = sum(_stored(length, settings.long_sequences) * count for length, count in lengths.items())
    return residues * dim * len(settings.layers) * (4 if settings.storage_dtype == "float32" else 2)


def _stored(length: int, long: LongSequences) -> int:
    """Residues of a sequence that get a vector."""
    if length <= long.max_residues or long.policy in ("whole", "window"):
        return length
    return long.max_residues if long.policy == "crop" else 0


def announce(bucket: Path, weights: Path, settings: Settings, limit_gb: float) -> None:
    """Log how much per-residue output the campaign of a bucket file makes; UserError when it exceeds the limit.

    Says nothing when there is none, or when the bucket is not in a folder made by deduplicate.
    """
    summary = bucket.parent.parent / SUMMARY
    if "per_residue" not in settings.pooling or not summary.is_file():
        return
    counted = read_summary(summary.parent)["lengths"]
    dim = read_manifest(weights).dim
    size = per_residue_bytes({int(length): count for length, count in counted.items()}, dim, settings) / 1e9
    log.info("per-residue output: %.3g GB in the master, and as much in the store", size)
    if size > limit_gb:
        agreed = -(-size // 1)
        raise UserError(
            f"embedding.pooling: per_residue makes {size:,.4g} GB, twice: in the master and in the store. "
            f"To agree, write `per_residue_limit_gb: {agreed:.0f}` below `embedding:` in the config (now {limit_gb:g})"
        )
