"""Fingerprints from settings: layer -1, dtype `auto` and length limits get their values."""

from dataclasses import replace
from typing import Literal, Protocol

import torch

from plm_embed import accuracy
from plm_embed.errors import ConfigError
from plm_embed.fingerprint import ComputeDtype, Fingerprint
from plm_embed.inference.settings import Settings, within_limit
from plm_embed.kernels import devices
from plm_embed.models import engine
from plm_embed.models.family import Family, pooling_problems
from plm_embed.models.manifest import Manifest
from plm_embed.sequences.settings import ONE_STRAND


class Shape(Protocol):
    """Facts of a model that are known with its weights or without them."""

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
    within = within_limit(settings.long_sequences, name, model.max_residues)
    return replace(settings, layers=layers, long_sequences=within)


def compute_dtype(
    setting: ComputeDtype | Literal["auto"], manifest: Manifest, device: torch.device
) -> ComputeDtype:
    """Return the dtype to compute in: of `auto` the device's, or the next one that is near enough
    with these weights.

    ConfigError for a dtype that the device lacks, or that is too coarse for the weights.
    """
    dtype = devices.choose_dtype(setting, device)
    if setting == "auto" and not accuracy.fits(dtype, manifest.roundings):
        nearer: ComputeDtype = "tfloat32" if dtype == "bfloat16" else "float32"
        dtype = nearer if accuracy.fits(nearer, manifest.roundings) else "float32"
    accuracy.check_dtype(dtype, manifest.roundings, manifest.model)
    return dtype


def fingerprint_of(
    manifest: Manifest,
    settings: Settings,
    device: torch.device,
    dtype: ComputeDtype | None = None,
) -> Fingerprint:
    """Return what vectors depend on that are made by these settings, with layer -1 and dtype `auto`
    as what they stand for; ConfigError when the model or the device cannot do what is asked.

    `dtype`: where it was chosen before, and the settings are resolved.
    """
    if dtype is None:
        settings = resolved(settings, manifest, manifest.model)
        dtype = compute_dtype(settings.compute_dtype, manifest, device)
    return Fingerprint(
        model=manifest.model,
        weights_sha256=manifest.weights_sha256,
        layers=settings.layers,
        pooling=settings.pooling,
        long_sequences=settings.long_sequences,
        compute_dtype=dtype,
        storage_dtype=settings.storage_dtype,
        engine=engine.name(manifest, device, dtype),
        strand=settings.strand,
    )
