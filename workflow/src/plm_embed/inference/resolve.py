"""From settings to a fingerprint: layer -1, dtype `auto` and length limits become what they stand
for.
"""

from dataclasses import replace
from typing import Protocol, get_args

import torch

from plm_embed.errors import ConfigError, whole_number
from plm_embed.fingerprint import Fingerprint, LongPolicy, LongSequences
from plm_embed.inference.settings import Settings, known
from plm_embed.kernels import devices
from plm_embed.models.family import Family, pooling_problems
from plm_embed.models.manifest import Manifest
from plm_embed.sequences.settings import ONE_STRAND


class Shape(Protocol):
    """What is known of a model with its weights or without them."""

    @property
    def layers(self) -> int: ...

    @property
    def max_residues(self) -> int | None: ...

    @property
    def family(self) -> Family: ...


def resolved(settings: Settings, model: Shape, name: str) -> Settings:
    """Settings with layer -1 and the limits of lengths as what they stand for. ConfigError when the
    model of this name cannot do what is asked.
    """
    count = model.layers + 1
    layers = tuple(layer + count if layer < 0 else layer for layer in settings.layers)
    if not set(layers) <= set(range(count)) or len(set(layers)) < len(layers):
        raise ConfigError(
            f"embedding.layers: {list(settings.layers)}: {name} has layers 0 to {model.layers}, "
            "-1 is the last\nname existing layers, each once",
            key="embedding.layers",
        )
    for problem in pooling_problems(settings.pooling, model.family, name):
        raise ConfigError(problem, key="embedding.pooling")
    if settings.strand == "canonical" and not model.family.alphabet.complements:
        raise ConfigError(ONE_STRAND, key="residues.strand")
    within = _within_limit(settings.long_sequences, model.max_residues, name)
    return replace(settings, layers=layers, long_sequences=within)


def fingerprint_of(manifest: Manifest, settings: Settings, device: torch.device) -> Fingerprint:
    """Resolve the settings and dtype `auto`; ConfigError when the model or the device cannot do
    what is asked.
    """
    settings = resolved(settings, manifest, manifest.model)
    dtype = devices.choose_dtype(settings.compute_dtype, device)
    return Fingerprint(
        model=manifest.model,
        weights_sha256=manifest.weights_sha256,
        layers=settings.layers,
        pooling=settings.pooling,
        long_sequences=settings.long_sequences,
        compute_dtype=dtype,
        storage_dtype=settings.storage_dtype,
        engine=manifest.family.engine_name(manifest, device, dtype),
        strand=settings.strand,
    )


def _within_limit(long: LongSequences, limit: int | None, name: str) -> LongSequences:
    """Models with learned positions have a hard limit: `whole` then means that longer sequences are
    skipped.
    """
    known("embedding.long_sequences.policy", long.policy, get_args(LongPolicy))
    for number in ("max_residues", "overlap"):
        whole_number(f"embedding.long_sequences.{number}", getattr(long, number))
    for number, policies in (
        ("max_residues", ("window", "crop", "skip")),
        ("overlap", ("window",)),
    ):
        if getattr(long, number) and long.policy not in policies:
            raise ConfigError(
                f"embedding.long_sequences.{number}: {getattr(long, number)}: means nothing with "
                f"policy {long.policy}",
                key=f"embedding.long_sequences.{number}",
                remedy=f"choose {' or '.join(policies)}, or 0",
            )
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
        f"embedding.long_sequences: {name} takes at most {limit} residues\n"
        f"set max_residues to {limit} or less, with policy window, crop or skip",
        key="embedding.long_sequences",
    )
