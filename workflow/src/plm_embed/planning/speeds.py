"""How fast each device is for one model, by the best that is known, and how long that takes."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from plm_embed.jobs.gpus import visible_gpus
from plm_embed.models.registry import Model
from plm_embed.planning import costs
from plm_embed.planning.costs import Speed, Work
from plm_embed.planning.forecast import Forecast
from plm_embed.planning.this_machine import devices_here
from plm_embed.workflow.config import Config


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
    mine = () if at_a_site else devices_here(model, work, dtype, workers_here(config))
    for speed in mine:
        known = found.pop(speed.device, speed)
        if not known.here:  # from records: jobs as many as now may have been at work
            known = replace(known, here=True, workers=speed.workers)
        found = {speed.device: known} | found
    for folder in elsewhere:
        for speed in costs.measured(model.name, dtype, folder, "measured elsewhere"):
            found.setdefault(speed.device, speed)
    for speed in costs.estimates(model, work, dtype):
        found.setdefault(speed.device, speed)
    return list(found.values())


def jobs_of(config: Config) -> int:
    """Embed jobs of one model."""
    jobs: int = -(-config["buckets"] // (config["speed"]["buckets_per_submission"] or 1))
    return jobs


def workers_here(config: Config) -> int:
    """Embed jobs that `snakemake --cores ...` runs here at a time: one per GPU, else one per core;
    never idle ones.
    """
    gpus = len(visible_gpus()) if config["speed"]["device"] != "cpu" else 0
    return min(gpus or cores(), jobs_of(config))


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
