"""From settings to a fingerprint: layer -1, dtype `auto` and length limits become what they stand
for.
"""

from typing import get_args

import torch

from plm_embed.errors import ConfigError, whole_number
from plm_embed.fingerprint import Fingerprint, LongPolicy, LongSequences
from plm_embed.inference.settings import Settings, known
from plm_embed.kernels import devices
from plm_embed.models.family import pooling_problems
from plm_embed.models.manifest import Manifest
from plm_embed.sequences.settings import ONE_STRAND


def fingerprint_of(manifest: Manifest, settings: Settings, device: torch.device) -> Fingerprint:
    """Resolve layer -1 and dtype `auto`; raise ConfigError when the model cannot do what is
    asked.
    """
    count = manifest.layers + 1
    layers = tuple(layer + count if layer < 0 else layer for layer in settings.layers)
    if not set(layers) <= set(range(count)) or len(set(layers)) < len(layers):
        raise ConfigError(
            f"embedding.layers: {list(settings.layers)}: {manifest.model} has layers 0 to "
            f"{manifest.layers}, "
            "-1 is the last\nname existing layers, each once",
            key="embedding.layers",
        )
    for problem in pooling_problems(settings.pooling, manifest.family, manifest.model):
        raise ConfigError(problem, key="embedding.pooling")
    if settings.strand == "canonical" and not manifest.family.alphabet.complements:
        raise ConfigError(ONE_STRAND, key="residues.strand")
    dtype = devices.choose_dtype(settings.compute_dtype, device)
    return Fingerprint(
        model=manifest.model,
        weights_sha256=manifest.weights_sha256,
        layers=layers,
        pooling=settings.pooling,
        long_sequences=_within_limit(settings.long_sequences, manifest),
        compute_dtype=dtype,
        storage_dtype=settings.storage_dtype,
        engine=manifest.family.engine_name(manifest, device, dtype),
        strand=settings.strand,
    )


def _within_limit(long: LongSequences, manifest: Manifest) -> LongSequences:
    """Models with learned positions have a hard limit: `whole` then means that longer sequences are
    skipped.
    """
    limit = manifest.max_residues
    known("embedding.long_sequences.policy", long.policy, get_args(LongPolicy))
    for name in ("max_residues", "overlap"):
        whole_number(f"embedding.long_sequences.{name}", getattr(long, name))
    if long.policy != "whole" and not 0 <= long.overlap < long.max_residues:
        raise ConfigError(
            f"embedding.long_sequences: policy {long.policy} needs max_residues above 0 and an "
            "overlap below it "
            f"(max_residues {long.max_residues}, overlap {long.overlap})",
            key="embedding.long_sequences",
        )
    if limit is None or (long.policy != "whole" and 0 < long.max_residues <= limit):
        return long
    if long == LongSequences("whole"):
        return LongSequences("skip", limit)
    raise ConfigError(
        f"embedding.long_sequences: {manifest.model} takes at most {limit} residues\n"
        f"set max_residues to {limit} or less, with policy window, crop or skip",
        key="embedding.long_sequences",
    )
