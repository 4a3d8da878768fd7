"""The workers of a running campaign, by their heartbeats."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from plm_embed.jobs.heartbeats import FOLDER, Beat, read_beat
from plm_embed.reporting.runs import moment
from plm_embed.reporting.screen.small_files import Kept, names

SILENT_AFTER_SECONDS = 120.0
"""A worker that has not written its heartbeat for longer is taken for dead or cut off."""
STUCK_AFTER_SECONDS = 1200.0
"""A worker that writes heartbeats but finishes no batch for longer may sit on a broken device."""


@dataclass(frozen=True)
class WorkerState:
    """One worker: its heartbeat (see `heartbeats`), seconds since its last sign of life, and what
    is wrong or ''.
    """

    beat: Beat
    age: float
    trouble: str


def workers(folder: Path, done: set[str], kept: Kept) -> Iterator[WorkerState]:
    """Yield living workers, and silent ones whose bucket nobody else has finished or taken over."""
    now = time.time()
    newest: dict[str, Beat] = {}
    for name in (one for one in names(folder / FOLDER) if one.endswith(".json")):
        beat = kept.read(folder / FOLDER / name, read_beat)
        if beat and beat.bucket not in done:
            other = newest.get(beat.bucket, beat)
            newest[beat.bucket] = max(other, beat, key=lambda one: (one.started, one.updated))
    for beat in newest.values():
        age = max(0.0, now - moment(beat.updated))
        stuck = beat.progressed is not None and now - moment(beat.progressed) > STUCK_AFTER_SECONDS
        silent = age > SILENT_AFTER_SECONDS
        yield WorkerState(beat, age, "silent" if silent else "stuck" if stuck else "")
