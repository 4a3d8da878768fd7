"""How fast each device is for one model, by the best that is known, and how long that takes: this
machine's GPUs by their data sheets, a core of its CPU by matrix products that are tried.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from plm_embed.fingerprint import ComputeDtype
from plm_embed.io.threads import cores
from plm_embed.jobs.gpus import gpu_names, visible_gpus
from plm_embed.kernels.cpu import cpu_name
from plm_embed.models.registry import Model
from plm_embed.planning import costs
from plm_embed.planning.costs import Speed, Work, device_label
from plm_embed.planning.forecast import Forecast
from plm_embed.workflow.config import Config

_SIDE = 64
"""Of the matrices that are multiplied: so small that BLAS takes one core, and that on a busy
machine one product of many is not disturbed.
"""
_SECONDS = 0.04


@dataclass(frozen=True)
class Trial:
    """A measurement that is asked for: of these deduplicated sequences, by so many workers at a
    time with so many CPU threads each.
    """

    sequences: Path
    threads: int
    workers: int


def best_speeds(
    config: Config,
    model: Model,
    work: Work,
    trial: Trial | None,
    elsewhere: Iterable[Path],
    *,
    at_a_site: bool,
) -> list[Speed]:
    """The best-founded speed of each device: measured here, else measured elsewhere, else estimated
    for `work`. This machine comes first, unless it is only the place to submit from; the GPUs of
    gpus.yaml come last.
    """
    found: dict[str, Speed] = {}
    dtype = config["embedding"]["compute_dtype"]
    if trial:
        from plm_embed.planning.measure import measure

        speed = measure(config, trial.sequences, trial.threads, trial.workers)
        found[speed.device] = replace(speed, here=True)
    for speed in costs.measured(
        model.name, dtype, Path(config["results"]) / model.name / "embedded", "measured here"
    ):
        found.setdefault(speed.device, speed)
    for folder in elsewhere:
        for speed in costs.measured(model.name, dtype, folder, "measured elsewhere"):
            found.setdefault(speed.device, speed)
    mine = () if at_a_site else _devices_here(model, work, dtype, workers_here(config))
    for speed in mine:
        known = found.pop(speed.device, speed)
        if not known.here:  # from records: jobs as many as now may have been at work
            known = replace(known, here=True, workers=speed.workers)
        found = {speed.device: known} | found
    for speed in costs.estimates(model, work, dtype):
        found.setdefault(speed.device, speed)
    return list(found.values())


def _devices_here(
    model: Model, todo: Work, dtype: ComputeDtype | Literal["auto"], workers: int
) -> Iterator[Speed]:
    """The kinds of GPUs of this machine, else its CPU. workers: embed jobs that run here at a
    time.
    """
    labels = list(dict.fromkeys(map(device_label, gpu_names()))) if visible_gpus() else []
    for label in labels:
        yield replace(costs.estimate(label, model, todo, dtype), workers=workers, here=True)
    if not labels:
        yield _cpu(todo, dtype, workers)


def _cpu(todo: Work, dtype: ComputeDtype | Literal["auto"], workers: int) -> Speed:
    label = device_label(cpu_name(), 1)
    if dtype not in ("auto", "float32"):
        return Speed(label, None, "not known", f"in {dtype}: try --measure", here=True)
    if not todo.flops:
        return Speed(label, None, "not known", "there is nothing to compute", here=True)
    table = costs.gpu_table()["cpu"]
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


@cache
def _matrix_rate() -> float:
    """Floating-point operations per second of one core, in products of float32: tried once, for all
    models.
    """
    matrix = np.ones((_SIDE, _SIDE), dtype=np.float32)
    best, until = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < until or best == float("inf"):
        began = time.perf_counter()
        matrix @ matrix
        best = min(best, time.perf_counter() - began)
    return 2 * _SIDE**3 / best


def workers_here(config: Config) -> int:
    """Workers that compute here at a time: one per GPU, else one per core; never idle ones."""
    return min(len(visible_gpus()) or cores(), int(config["buckets"]))


def device_hours(todo: Work, speed: Speed, jobs: int) -> float | None:
    """Of one device: every job starts once, then all tokens. None when its speed is not known."""
    if speed.tokens_per_second is None:
        return None
    jobs = min(jobs, todo.sequences)
    return (
        (speed.startup * jobs + todo.tokens / speed.tokens_per_second) / 3600
        if todo.tokens
        else 0.0
    )


def local_hours(forecast: Forecast, jobs: int) -> float:
    """On this machine. Buckets are equal but for chance, so the last round of jobs counts as a
    whole one.
    """
    workers = min(forecast.speed.workers, jobs)
    return (forecast.hours or 0.0) / jobs * -(-jobs // workers)
