"""What this machine could embed with, and how fast as far as that can be told in a moment: its GPUs
by their data sheets, a core of its CPU by matrix products that are tried.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from plm_embed.fingerprint import ComputeDtype
from plm_embed.jobs.gpus import gpu_names, visible_gpus
from plm_embed.kernels.cpu import cpu_name
from plm_embed.models.registry import Model
from plm_embed.planning.costs import Speed, Work, device_label, estimates, gpu_table

_SIDE = 64
"""Of the matrices that are multiplied: so small that BLAS takes one core, and that on a busy
machine one product of many is not disturbed.
"""
_SECONDS = 0.2


def devices_here(
    model: Model, todo: Work, dtype: ComputeDtype | Literal["auto"], workers: int
) -> Iterator[Speed]:
    """The kinds of GPUs of this machine, else its CPU. workers: embed jobs that run here at a
    time.
    """
    labels = list(dict.fromkeys(map(device_label, gpu_names()))) if visible_gpus() else []
    known = {speed.device: speed for speed in estimates(model, todo, dtype)}
    for label in labels:
        unknown = Speed(label, None, "not known", "nothing is known of this GPU: try --measure")
        yield replace(known.get(label, unknown), workers=workers, here=True)
    if not labels:
        yield _cpu(todo, dtype, workers)


def _cpu(todo: Work, dtype: ComputeDtype | Literal["auto"], workers: int) -> Speed:
    label = device_label(cpu_name(), 1)
    if dtype not in ("auto", "float32"):
        return Speed(label, None, "not known", f"in {dtype}: try --measure", here=True)
    if not todo.flops:
        return Speed(label, None, "not known", "there is nothing to compute", here=True)
    table = gpu_table()["cpu"]
    rate = _matrix_rate()
    return Speed(
        label,
        rate * table["efficiency"] * todo.tokens / todo.flops,
        "estimated",
        f"{table['efficiency_source']}; --measure tries the model itself",
        workers=workers,
        how=f"{rate / 1e9:,.0f} GFLOP/s (float32, tried just now) x {table['efficiency']:.2f}",
        here=True,
    )


def _matrix_rate() -> float:
    """Floating-point operations per second of one core, in products of float32."""
    matrix = np.ones((_SIDE, _SIDE), dtype=np.float32)
    best, until = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < until or best == float("inf"):
        began = time.perf_counter()
        matrix @ matrix
        best = min(best, time.perf_counter() - began)
    return 2 * _SIDE**3 / best
