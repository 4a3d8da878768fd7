"""From settings and weights to a fingerprint and a tested engine on a device.

Every job compares its own device, kernel and dtype with the golden vectors of its weights before it
computes anything that is kept.
"""

import hashlib
import io
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from plm_embed.accuracy import SelfTest, bound, check_dtype, fits, remark
from plm_embed.errors import DeviceError, WeightsError, out_of_memory
from plm_embed.fingerprint import ComputeDtype, Fingerprint
from plm_embed.inference.batches import Room, room_for
from plm_embed.inference.golden import PROBES
from plm_embed.inference.pooling import pool_batch
from plm_embed.inference.settings import Settings, resolved
from plm_embed.kernels import devices
from plm_embed.kernels.devices import device_name
from plm_embed.models import engine, weights
from plm_embed.models.engine import Engine
from plm_embed.models.tokens import Ids
from plm_embed.models.weights import SELF_TEST, Manifest, weights_again

log = logging.getLogger(__name__)
PAIR_TOKENS = 600
"""Tokens of each of two long sequences: a kernel that shares out its work by what else is in the
call shows it with these.
"""
PAIR_LAYERS = 2
"""Layers that the pair is taken through: every layer runs the same kernels, and on a CPU 600 tokens
take their time.
"""


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
) -> tuple[Engine, Room, SelfTest]:
    """Load the model of a weights folder, measure the room for batches (`layers`: those to compute,
    default the last; `budget`: tokens per batch), and compare it with its golden vectors.

    DeviceError when the device lacks the memory, fails, or computes wrongly.
    """
    try:
        model = Engine(*weights.load(folder), device, dtype, weights.load_head(folder))
        room = room_for(model, layers or [model.manifest.layers], budget)
        return model, room, self_test(model, folder, room.budget)
    except RuntimeError as error:
        if out_of_memory(error):
            raise devices.too_small(device) from error
        if lost := devices.failure(error, device):
            raise lost from error
        raise


def self_test(engine: Engine, folder: Path, budget: int = 0) -> SelfTest:
    """Compare the engine with the golden vectors, in several places of a batch, and the bits of
    sequences in company with those of the same alone.

    A batch has two slices, or one where a `budget` of tokens allows no more.
    Raises DeviceError where the engine is farther off than the rounding of its dtype explains.
    """
    manifest, dtype, device = engine.manifest, engine.precision, device_name(engine.device)
    path = folder / SELF_TEST
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != manifest.self_test_sha256:
        raise WeightsError(
            f"{path} is missing, damaged or of other weights",
            remedy=weights_again(folder),
            path=path,
        )
    with np.load(io.BytesIO(content)) as stored:
        golden = {name: torch.from_numpy(stored[name]) for name in stored.files}
    probes = [engine.tokenize(probe) for probe in PROBES[manifest.family.alphabet.name]]
    slices = 2 if not budget or budget >= 2 * engine.rows else 1
    longest = max(range(len(probes)), key=lambda number: len(probes[number]))
    numbers, means, invariant = _in_places(engine, probes, slices, manifest.layers, [longest])
    means, scores = means[:, : manifest.dim], means[:, manifest.dim :].double()
    expected = golden["mean"][numbers]
    cosine = float(torch.cosine_similarity(means, expected, dim=1).min())
    error = float(((means - expected).norm(dim=1) / expected.norm(dim=1)).max())
    score_error = None
    if "scores" in golden and engine.head:
        score_error = float((scores - golden["scores"][numbers]).abs().max())
    for kind, distance, unit, limit in (
        ("vectors", error, "", bound(dtype, manifest.roundings)),
        ("scores", score_error or 0.0, " nats", bound(dtype, manifest.roundings, "score")),
    ):
        if not distance <= limit:  # NaN compares false
            raise DeviceError(
                f"self-test failed on {device}: {kind} of {manifest.model} in {dtype} differ from "
                f"the reference by {distance:.1e}{unit}; rounding alone would explain {limit:.1e}\n"
                "nothing was computed; exclude this node or device, or report this line"
            )
    long = np.resize(np.concatenate(probes[:2]), PAIR_TOKENS)
    slices = max(slices, -(-2 * PAIR_TOKENS // engine.rows))
    layers = min(PAIR_LAYERS, manifest.layers)
    invariant = invariant and _in_places(engine, [long, long[::-1]], slices, layers, [0, 1])[2]
    if not invariant:
        log.warning("%s: the last bits of a vector depend on its batch here", device)
    if note := remark(dtype, manifest.roundings):
        log.warning("%s: %s", manifest.model, note)
    return SelfTest(
        relative_error=error,
        cosine=cosine,
        batch_invariant=invariant,
        attention=engine.attention.name,
        elementwise=engine.elementwise.name,
        rounding=note,
        score_error=score_error,
    )


def _in_places(
    engine: Engine, sequences: Sequence[Ids], slices: int, layer: int, alone: Sequence[int]
) -> tuple[list[int], Tensor, bool]:
    """Compute sequences in the first rows of a batch and again in its last, and the shortest across
    the edge of the first two slices; other tokens lie between them. Some are computed `alone`, too.

    Returns the number of the sequence in each place, the means there (places, D), and whether all
    states and means of a sequence have equal bits.
    """
    tokens = np.concatenate(sequences)
    everyone = list(range(len(sequences)))
    shortest = min(everyone, key=lambda number: len(sequences[number]))
    last = slices * engine.rows - len(tokens)
    pieces: list[Ids] = []
    places: list[tuple[int, int]] = []  # in the batch, and the number of the sequence
    row = 0
    for start, numbers in (
        (0, everyone),
        (engine.rows - len(sequences[shortest]) // 2, [shortest]),
        (last, everyone),
    ):
        end = start + sum(len(sequences[number]) for number in numbers)
        if start != last and not row <= start <= end <= last:  # no room for this one
            continue
        parts = -(-(start - row) // PAIR_TOKENS)
        pieces += np.array_split(np.resize(tokens, start - row), parts) if parts else []
        places += [(len(pieces) + i, number) for i, number in enumerate(numbers)]
        pieces += [sequences[number] for number in numbers]
        row = end
    states, means = _run(engine, pieces, layer)
    first = {number: (states[place], means[place]) for place, number in reversed(places)}
    for number in alone:
        (state,), (mean,) = _run(engine, [sequences[number]], layer)
        first[number] = state, mean
    equal = all(
        torch.equal(states[place], first[number][0]) and torch.equal(means[place], first[number][1])
        for place, number in places
    )
    return [number for _, number in places], means[[place for place, _ in places]].cpu(), equal


def _run(
    engine: Engine, pieces: Sequence[Ids], layer: int, exact: bool = False
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return the states (tokens, D) of each sequence, and the means (n, D), pooled as a job does
    it; as there, what float16 cannot hold is computed in float32. With a head, what comes out of
    the last layer is followed by TOKEN_SCORES: (tokens, D + 2), (n, D + 2).
    """
    batch = engine.pack(pieces).to(engine.device)
    hidden = engine.forward(batch, [layer], exact)[layer]
    if engine.head and layer == engine.manifest.layers:
        hidden = torch.cat([hidden, engine.token_scores(hidden, batch.tokens)], dim=1)
    states, means = batch.split(hidden), pool_batch("mean", hidden, batch)
    finite = means.isfinite().all(dim=1)
    if engine.precision == "float16" and not exact and not finite.all():
        singles, single_means = _run(engine, pieces, layer, exact=True)
        pairs = zip(finite.tolist(), states, singles, strict=True)
        states = tuple(half if good else single for good, half, single in pairs)
        means = torch.where(finite[:, None], means, single_means)
    return states, means
