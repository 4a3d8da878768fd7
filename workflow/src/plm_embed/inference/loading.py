"""From settings and weights to a fingerprint, and to a tested engine on a device with the room that
batches have there.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from plm_embed.accuracy import REFUSED, SelfTest, check_dtype, rounding_of
from plm_embed.errors import out_of_memory
from plm_embed.fingerprint import ComputeDtype, Fingerprint
from plm_embed.inference.self_test import self_test
from plm_embed.inference.settings import Settings
from plm_embed.kernels import devices
from plm_embed.models import engine, weights
from plm_embed.models.engine import Engine
from plm_embed.models.packed_batch import LEAST_ROWS, TOKENS, pack
from plm_embed.models.weights import Manifest

log = logging.getLogger(__name__)
BATCHES_TO_FORGET = 32
"""Batches in a row that fit before larger ones are tried again; after a shortage that has not
passed, twice as many.
"""
SHARE_OF_FREE_MEMORY = 0.8
"""The share of free memory for batches; the rest is for fragments, and for sequences longer than
those that were measured.
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
    elif dtype == "bfloat16" and rounding_of(dtype, manifest.roundings).cosine < REFUSED:
        fine = rounding_of("tfloat32", manifest.roundings).cosine >= REFUSED
        return "tfloat32" if fine else "float32"
    return dtype


def fingerprint_of(manifest: Manifest, settings: Settings, device: torch.device) -> Fingerprint:
    """Return the fingerprint of vectors that are made with settings, as `resolved` returns them, on
    a device. ConfigError when the device cannot do what they ask for.
    """
    dtype = compute_dtype(settings.compute_dtype, manifest, device)
    label = engine.kernel(manifest.as_model, device, dtype).label
    return Fingerprint(
        model=manifest.model,
        weights_sha256=manifest.weights_sha256,
        engine="-".join(filter(None, (engine.ARITHMETIC[device.type], label))),
        head_sha256=(manifest.head_sha256 or "") if settings.scores else "",
        **settings.recipe | {"compute_dtype": dtype},
    )


class Room:
    """Size of batches by what memory was seen to hold: `budget` tokens, in products of the engine's
    number of rows.

    Batches are padded to whole products, so once they are no larger than one, products shrink.
    """

    def __init__(self, engine: Engine, budget: int) -> None:
        self.engine = engine
        self.budget = self._full_budget = budget
        self._full_rows = engine.rows
        self._successes, self._patience = 0, BATCHES_TO_FORGET
        self._grown = False

    def shrink(self, costs: Sequence[int]) -> bool:
        """Make batches smaller after one of sequences of so many tokens did not fit; return False
        where it was one sequence, which needs more than a product. DeviceError where even the
        smallest batch did not: no sequence is to blame.
        """
        engine = self.engine
        if engine.device.type == "cuda":
            torch.cuda.empty_cache()
        self._successes = 0
        self._patience *= 1 + self._grown
        self._grown = False
        if sum(costs) > engine.rows:
            if len(costs) == 1:
                return False
            self.budget = max(self.budget // 2, engine.rows)
            log.warning("out of memory: token budget lowered to %d", self.budget)
        elif engine.rows > LEAST_ROWS[engine.device.type]:
            engine.rows //= 2
            self.budget = min(self.budget, engine.rows)
            log.warning(
                "out of memory: products of %d rows; the last bits of vectors may differ from "
                "those of other batches",
                engine.rows,
            )
        else:
            raise devices.too_small(engine.device)
        return True

    def grow(self) -> None:
        """Count a batch that fit; make batches larger again after enough of them."""
        if self.budget == self._full_budget and self.engine.rows == self._full_rows:
            return
        self._successes += 1
        if self._successes == self._patience:
            self._successes, self._grown = 0, True
            self.engine.rows = min(2 * self.engine.rows, self._full_rows)
            self.budget = min(2 * self.budget, self._full_budget)


def load(
    folder: Path,
    device: torch.device,
    dtype: ComputeDtype,
    layers: Sequence[int] | None = None,
    budget: int = 0,
    *,
    scores: bool = False,
) -> tuple[Room, SelfTest]:
    """Load the model of a weights folder, with the head of the language model if it has to give
    `scores`; measure the room for batches (`layers`: those to compute, default the last; `budget`:
    tokens per batch), and compare it with its golden vectors.

    DeviceError when the device lacks the memory, fails, or computes wrongly.
    """
    try:
        manifest, tensors, head = weights.load(folder)
        model = Engine(manifest.as_model, tensors, device, dtype, head if scores else None)
        largest = TOKENS["cpu"]
        if device.type == "cuda":
            largest = largest_budget(model, layers or [manifest.layers])
        room = Room(model, budget or largest)
        return room, self_test(model, manifest, room.budget)
    except RuntimeError as error:
        raise_others(error, device)
        raise devices.too_small(device) from error


def raise_others(error: Exception, device: torch.device) -> None:
    """Raise an error again unless it is about memory; DeviceError where the device failed."""
    if lost := devices.failure(error, device):
        raise lost from error
    if not out_of_memory(error):
        raise error


def largest_budget(engine: Engine, layers: Sequence[int]) -> int:
    """Return the tokens of the largest batches of a model that was just loaded on CUDA, by the
    memory that a batch of one product takes, and by what is then free.

    Where even one product does not fit, the engine's products get fewer rows.
    """
    device = engine.device
    while True:
        try:
            zeros = np.zeros(engine.rows // 32, np.uint16)
            batch = pack([zeros] * 32, engine.model.family, engine.rows)
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            engine.forward(batch, layers)
            torch.cuda.synchronize(device)
            used = max(torch.cuda.max_memory_allocated(device) - before, 1)
            torch.cuda.empty_cache()
            products = int(SHARE_OF_FREE_MEMORY * torch.cuda.mem_get_info(device)[0] / used)
            return max(engine.rows, min(TOKENS["cuda"], products * engine.rows))
        except RuntimeError as error:
            if not out_of_memory(error) or engine.rows <= LEAST_ROWS["cuda"]:
                raise
        torch.cuda.empty_cache()
        engine.rows //= 2
        log.warning(
            "%s has little free memory: products of %d rows; the last bits of vectors may differ "
            "from those of larger products",
            devices.device_name(device),
            engine.rows,
        )
