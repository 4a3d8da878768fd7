"""From settings and weights to a fingerprint and a tested engine on a device."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from plm_embed.accuracy import SelfTest, check_dtype, fits
from plm_embed.errors import out_of_memory
from plm_embed.fingerprint import ComputeDtype, Fingerprint
from plm_embed.inference.batches import Room, room_for
from plm_embed.inference.self_test import self_test
from plm_embed.inference.settings import Settings, resolved
from plm_embed.kernels import devices
from plm_embed.models import engine, weights
from plm_embed.models.engine import Engine
from plm_embed.models.weights import Manifest


def compute_dtype(
    setting: ComputeDtype | Literal["auto"], manifest: Manifest, device: torch.device
) -> ComputeDtype:
    """Return the dtype to compute in; `auto` is the device's, or the next one that is near enough
    with these weights.

    ConfigError for a dtype that the device lacks, or that is too coarse for the weights.
    """
    dtype = devices.choose_dtype(setting, device)
    if setting != "auto":
        check_dtype(dtype, manifest.roundings, manifest.model)
    elif not fits(dtype, manifest.roundings):
        fine = dtype == "bfloat16" and fits("tfloat32", manifest.roundings)
        return "tfloat32" if fine else "float32"
    return dtype


def fingerprint_of(manifest: Manifest, settings: Settings, device: torch.device) -> Fingerprint:
    """Return the fingerprint of vectors that are made with these settings on a device. ConfigError
    when the model or the device cannot do what they ask for.
    """
    settings = resolved(settings, manifest, manifest.model)
    dtype = compute_dtype(settings.compute_dtype, manifest, device)
    return Fingerprint(
        model=manifest.model,
        weights_sha256=manifest.weights_sha256,
        engine=engine.name(manifest, device, dtype),
        head_sha256=(manifest.head_sha256 or "") if settings.scores else "",
        **settings.recipe | {"compute_dtype": dtype},
    )


def load(
    folder: Path,
    device: torch.device,
    dtype: ComputeDtype,
    layers: Sequence[int] | None = None,
    budget: int = 0,
) -> tuple[Room, SelfTest]:
    """Load the model of a weights folder, measure the room for batches (`layers`: those to compute,
    default the last; `budget`: tokens per batch), and compare it with its golden vectors.

    DeviceError when the device lacks the memory, fails, or computes wrongly.
    """
    try:
        model = Engine(*weights.load(folder), device, dtype, weights.load_head(folder))
        room = room_for(model, layers or [model.manifest.layers], budget)
        return room, self_test(model, folder, room.budget)
    except RuntimeError as error:
        if out_of_memory(error):
            raise devices.too_small(device) from error
        if lost := devices.failure(error, device):
            raise lost from error
        raise
