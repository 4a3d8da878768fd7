"""The size of per-residue output, and the limit that a user agrees to."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from plm_embed.errors import ConfigError
from plm_embed.fingerprint import MATRICES, storage_bytes
from plm_embed.inference.settings import Settings
from plm_embed.models.family import Family
from plm_embed.models.weights import read_manifest
from plm_embed.sequence_windows import stored_residues
from plm_embed.sequences.summary import known_summary

log = logging.getLogger(__name__)


def per_residue_bytes(
    settings: Settings, dim: int, family: Family, lengths: Mapping[int, int]
) -> int:
    """Return the bytes of the per-residue or per-token vectors alone, 0 where none are stored.

    lengths: the number of sequences by length.
    """
    if not MATRICES.intersection(settings.pooling):
        return 0
    rows = stored_residues(np.array([*lengths], dtype=np.int64), settings.long_sequences)
    residues = int(rows @ np.array([*lengths.values()], dtype=np.int64))
    numbers = residues // family.letters_per_token * dim * len(settings.layers)
    return numbers * storage_bytes(settings.storage_dtype)


def check_per_residue(bucket: Path, weights: Path, settings: Settings) -> None:
    """Log how much per-residue output the campaign of a bucket file makes; ConfigError when it
    exceeds the limit. A bucket that lies in no folder made by deduplicate has none.
    """
    matrices = MATRICES.intersection(settings.pooling)
    if matrices and (summary := known_summary(bucket.parent.parent)):
        model = read_manifest(weights).as_model
        size = per_residue_bytes(settings, model.dim, model.family, summary.lengths) / 1e9
        log.info("per-residue output: %.3g GB in the master, and as much in the store", size)
        if size > settings.per_residue_limit_gb:
            raise ConfigError(
                f"embedding.pooling: per-residue output takes {size:,.4g} GB, twice: in the master "
                f"and in the store. To agree, write `per_residue_limit_gb: {math.ceil(size)}` "
                f"below `embedding:` in the config (now {settings.per_residue_limit_gb:g})",
                key="embedding.per_residue_limit_gb",
            )
