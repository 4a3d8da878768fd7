"""The heartbeat of a job: a small file beside the completion records for each start on a node.

It tells every few seconds what the workers do, for `plm-embed watch`; at the end what was done, for
the node that writes the completion record. No vector depends on it: where it cannot be written the
job goes on.
"""

import logging
import os
import socket
from collections.abc import Container
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from plm_embed.accuracy import SelfTest
from plm_embed.io.files import whole_files
from plm_embed.jobs.completion_record import FOLDER as RECORDS
from plm_embed.jobs.completion_record import WorkerInfo

log = logging.getLogger(__name__)
SECONDS_BETWEEN_BEATS = 10.0
SILENT_SECONDS = 120.0
"""A job that has not written its heartbeat for longer is taken for dead or cut off."""
FOLDER = "jobs"
"""Folder beside the completion records."""


def job_id() -> str:
    """Return the number of the SLURM or PBS job that this process is in; '' outside of jobs."""
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("PBS_JOBID") or ""


def moment() -> str:
    """Return the time to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(kw_only=True)
class Heartbeat:
    """Progress of one node of a job. Times are ISO 8601, with their zone.

    node: 0 writes the completion record; job: the scheduler's id, or ''. tokens: of all passes that
    are done; tokens_total: None until it is known; both include what the store had. skipped:
    reasons by key; self_test: the first that a worker passed. ended: '' while it runs, and for ever
    after a kill; reason: why it failed.
    """

    schema_version: Literal[1] = 1
    bucket: str
    node: int = 0
    host: str = field(default_factory=socket.gethostname)
    job: str = field(default_factory=job_id)
    started: str = field(default_factory=moment)
    updated: str = ""
    tokens: int = 0
    tokens_total: int | None = None
    eta_seconds: float | None = None
    workers: tuple[WorkerInfo, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)
    self_test: SelfTest | None = None
    ended: str = ""
    outcome: Literal["complete", "failed", "no end"] = "no end"
    reason: str = ""

    @property
    def fraction(self) -> float:
        """Return the share of the tokens that is done, 0 to 1."""
        return self.tokens / self.tokens_total if self.tokens_total else 0.0

    @property
    def age(self) -> float:
        """Return the seconds since the last sign of life."""
        updated = datetime.fromisoformat(self.updated)
        return max(0.0, (datetime.now(UTC) - updated).total_seconds())


def heartbeat_path(records: Path, bucket: str) -> Path:
    """Return the path of a new heartbeat of this process. Names sort by time.

    records: the folder of the completion records.
    """
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{bucket}-{socket.gethostname()}-{os.getpid()}.json"
    return records / FOLDER / name


def write_heartbeat(path: Path, beat: Heartbeat) -> None:
    """Replace the file at once."""
    beat.updated = moment()
    temporary = path.with_name(f".tmp-{path.name}")  # not synced: a lost one does no harm
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.encode(beat))
        temporary.replace(path)
    except OSError as error:
        log.debug("no heartbeat: %s", error)


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Read a heartbeat; None when the file is gone or is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Heartbeat)
    except (OSError, ValueError):
        return None


def heartbeats(model_folder: Path, without: Container[str] = ()) -> list[Heartbeat]:
    """Read the heartbeats of a model's jobs, in the order of their starts, but of some buckets."""
    paths = whole_files(model_folder / RECORDS / FOLDER, "*.json")
    left = [path for path in paths if path.name.partition("-")[2].partition("-")[0] not in without]
    beats = [beat for path in left if (beat := read_heartbeat(path))]
    return sorted(beats, key=lambda beat: beat.started)
