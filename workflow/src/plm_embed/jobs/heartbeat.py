"""The heartbeat of a job: a small file below the store for each start on a node.

It tells every few seconds what the workers do, for `plm-embed watch`; at the end what was done, for
the node that writes the completion record, and for the report. No vector depends on it: where it
cannot be written the job goes on.
"""

import logging
import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from plm_embed.accuracy import SelfTest
from plm_embed.errors import PlmEmbedError
from plm_embed.io.files import whole_files
from plm_embed.jobs.completion_record import FOLDER as RECORDS
from plm_embed.jobs.completion_record import WorkerInfo, read_completion

log = logging.getLogger(__name__)
SECONDS_BETWEEN_BEATS = 10.0
FOLDER = "jobs"
"""Folder in that of the store, for jobs at work, or killed. Those that ended are in `ended`."""


@dataclass(kw_only=True)
class Heartbeat:
    """Progress of one node of a job. Times are ISO 8601, with their zone.

    records: the folder of the completion record, relative to the store, which several campaigns may
    share; node: 0 writes the completion record; job: the scheduler's id, or ''. residues: done so
    far; residues_total: None until it is known. skipped: reasons by key; self_test: the first that
    a worker passed. ended: '' while it runs, and for ever after a kill; reason: why it failed.
    """

    schema_version: Literal[1] = 1
    bucket: str
    records: str
    node: int
    host: str
    job: str
    started: str
    updated: str
    residues: int = 0
    residues_total: int | None = None
    eta_seconds: float | None = None
    workers: tuple[WorkerInfo, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)
    self_test: SelfTest | None = None
    ended: str = ""
    outcome: Literal["complete", "failed", "no end"] = "no end"
    reason: str = ""

    @property
    def fraction(self) -> float:
        """Return the share of the residues that is done, 0 to 1."""
        return self.residues / self.residues_total if self.residues_total else 0.0

    @property
    def seconds(self) -> float:
        """Return how long it ran; 0 when that is not known."""
        if not self.ended:
            return 0.0
        ended, started = map(datetime.fromisoformat, (self.ended, self.started))
        return (ended - started).total_seconds()

    @property
    def device_seconds(self) -> float:
        """Return `seconds` of all workers together."""
        return self.seconds * len(self.workers)

    @property
    def joules(self) -> float | None:
        """Return the energy that the GPUs took; None where that is not known."""
        known = [worker.joules for worker in self.workers if worker.joules is not None]
        return sum(known) if known else None


def new_heartbeat(bucket: str, records: Path, store: Path, node: int) -> Heartbeat:
    """Make the heartbeat of a job that begins now on this host."""
    began = moment()
    return Heartbeat(
        bucket=bucket,
        records=os.path.relpath(records.absolute(), store.absolute()),
        node=node,
        host=socket.gethostname(),
        job=job_id(),
        started=began,
        updated=began,
    )


def job_id() -> str:
    """Return the number of the SLURM or PBS job that this process is in; '' outside of jobs."""
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("PBS_JOBID") or ""


def moment() -> str:
    """Return the time to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def heartbeat_path(store: Path, bucket: str) -> Path:
    """Return the path of a new heartbeat of this process. Names sort by time."""
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{bucket}-{socket.gethostname()}-{os.getpid()}.json"
    return store / FOLDER / name


def ended_path(path: Path) -> Path:
    """Return where a heartbeat lies when its job has ended."""
    return path.parent / "ended" / path.name


def write_heartbeat(path: Path, beat: Heartbeat) -> None:
    """Replace the file at once. A look at jobs at work reads none that ended."""
    beat.updated = moment()
    final = ended_path(path) if beat.ended else path
    temporary = final.with_name(f".tmp-{final.name}")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.encode(beat))
        temporary.replace(final)
        if beat.ended:
            path.unlink(missing_ok=True)
    except OSError as error:
        log.debug("no heartbeat: %s", error)


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Read a heartbeat; None when the file is gone or is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Heartbeat)
    except (OSError, ValueError):
        return None


def heartbeats(model_folder: Path) -> list[Heartbeat]:
    """Read all heartbeats of the jobs of a model's folder, in the order of their starts."""
    store = store_of(model_folder)
    folders = (store / FOLDER / "ended", store / FOLDER)
    beats = [read_heartbeat(path) for folder in folders for path in whole_files(folder, "*.json")]
    return sorted(
        (beat for beat in beats if beat and is_of(beat, store, model_folder)),
        key=lambda beat: beat.started,
    )


def is_of(beat: Heartbeat, store: Path, model_folder: Path) -> bool:
    """Tell whether a heartbeat in a store is of a job of this model's folder."""
    records = (model_folder / RECORDS).absolute()
    return beat.records == os.path.relpath(records, store.absolute())


def store_of(model_folder: Path) -> Path:
    """Return the store of a model's folder as its completion records name it: without any, the one
    in the folder.
    """
    for path in whole_files(model_folder / RECORDS, "*.json")[:1]:
        with suppress(PlmEmbedError):
            return model_folder / (read_completion(path).store or "store")
    return model_folder / "store"
