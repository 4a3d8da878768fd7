"""The workers of a running campaign, by the heartbeats of its jobs."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from plm_embed.jobs.heartbeat import (
    FOLDER,
    Heartbeat,
    WorkerBeat,
    is_of,
    read_heartbeat,
    store_of,
)
from plm_embed.reporting.charts import seconds as moment
from plm_embed.reporting.screen.small_files import Kept, names

SILENT_AFTER_SECONDS = 120.0
"""A job that has not written its heartbeat for longer is taken for dead or cut off."""
STUCK_AFTER_SECONDS = 1200.0
"""A worker that finishes no batch for longer, in a job that writes heartbeats, may sit on a broken
device.
"""


@dataclass(frozen=True)
class WorkerState:
    """A worker, its job, seconds since their last sign of life, and what is wrong or ''."""

    job: Heartbeat
    worker: WorkerBeat
    age: float
    trouble: str


def workers(folder: Path, done: set[str], kept: Kept) -> Iterator[WorkerState]:
    """Yield the living workers of a model's folder, and silent ones whose bucket is not done and
    was not begun again.
    """
    time_now = time.time()
    for beat in _newest(folder, done, kept):
        age = max(0.0, time_now - moment(beat.updated))
        silent = age > SILENT_AFTER_SECONDS
        for worker in beat.workers:
            computes = worker.state == "computing" and worker.progressed is not None
            idle = time_now - moment(worker.progressed or beat.updated)
            stuck = computes and idle > STUCK_AFTER_SECONDS
            yield WorkerState(beat, worker, age, "silent" if silent else "stuck" if stuck else "")


def _newest(folder: Path, done: set[str], kept: Kept) -> Iterator[Heartbeat]:
    """Yield the heartbeats of the last start of each job that has not ended."""
    store = store_of(folder)
    beats = [kept.read(store / FOLDER / name, read_heartbeat) for name in names(store / FOLDER)]
    own = [
        beat for beat in beats if beat and beat.bucket not in done and is_of(beat, store, folder)
    ]
    last: dict[str, str] = {}
    for beat in own:
        if beat.node == 0:  # the others of its job started later
            last[beat.bucket] = max(last.get(beat.bucket, ""), beat.started)
    yield from (beat for beat in own if beat.started >= last.get(beat.bucket, ""))
