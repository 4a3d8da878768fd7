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
from typing import Any, Literal

import msgspec

from plm_embed.accuracy import SelfTest
from plm_embed.errors import PlmEmbedError
from plm_embed.io.files import whole_files, write_json
from plm_embed.io.json_files import to_plain
from plm_embed.jobs.completion_record import FOLDER as RECORDS
from plm_embed.jobs.completion_record import WorkerInfo, read_completion
from plm_embed.jobs.nodes import job_id
from plm_embed.wording import now

log = logging.getLogger(__name__)
SECONDS_BETWEEN_BEATS = 10.0
FOLDER = "jobs"
"""Folder in that of the store, for jobs at work, or killed. Those that ended are in `ended`."""


@dataclass(kw_only=True)
class WorkerBeat:
    """A worker and its device, as it was seen last."""

    pid: int
    state: Literal["starting", "computing", "idle", "ended"]
    device: str = ""
    """Name of the GPU or of the CPU, '' until it is known."""
    gpu: str | None = None
    """CUDA_VISIBLE_DEVICES; None on a CPU."""
    tokens_per_second: float | None = None
    sequences: int = 0
    """Computed so far."""
    progressed: str | None = None
    """When the last batch was done."""
    memory_bytes: int = 0
    """Peak of the process on its device."""
    utilization: int | None = None
    """Per cent of the time that the GPU is at work."""
    watts: float | None = None


@dataclass(kw_only=True)
class Results:
    """Work that is published for a bucket: of a worker, a node or all. Sums are work together.

    seconds: of all workers, while they had something to compute; skipped: reasons by key; joules:
    taken by the GPUs, None where that is not known.
    """

    computed: int = 0
    tokens: int = 0
    exact: int = 0
    seconds: float = 0.0
    busy_seconds: float = 0.0
    loading_seconds: float = 0.0
    toks_per_batch: int | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    self_test: SelfTest | None = None
    workers: tuple[WorkerInfo, ...] = ()
    joules: float | None = None

    def __add__(self, other: "Results") -> "Results":
        def known(name: str) -> list[Any]:
            return [v for v in (getattr(self, name), getattr(other, name)) if v is not None]

        counts = ("computed", "tokens", "exact", "seconds", "busy_seconds", "loading_seconds")
        counted: dict[str, Any] = {name: sum(known(name)) for name in counts}
        return Results(
            **counted,
            toks_per_batch=min(known("toks_per_batch"), default=None),
            skipped=self.skipped | other.skipped,
            self_test=self.self_test or other.self_test,
            workers=self.workers + other.workers,
            joules=sum(known("joules")) if known("joules") else None,
        )


@dataclass(kw_only=True)
class Heartbeat:
    """Progress of one node of a job. Times are ISO 8601, with their zone."""

    schema_version: Literal[1] = 1
    bucket: str
    records: str
    """The folder of the completion record, relative to the store: several campaigns may share
    one.
    """
    node: int
    """0: the one that writes the completion record."""
    host: str
    job: str
    """The scheduler's id, or ''."""
    started: str
    updated: str
    residues: int = 0
    """Done so far."""
    residues_total: int | None = None
    """Residues to do; None until that is known."""
    eta_seconds: float | None = None
    workers: tuple[WorkerBeat, ...] = ()
    ended: str = ""
    """'' while it runs, and for ever after a kill."""
    outcome: Literal["complete", "failed", "no end"] = "no end"
    reason: str = ""
    """Why it failed, or ''."""
    joules: float | None = None
    """Taken by the GPUs, None where that is not known."""
    results: Results = field(default_factory=Results)

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
    """Replace the file at once. Only the last one is synced to disk."""
    beat.updated = now()
    try:
        if beat.ended:
            write_json(ended_path(path), to_plain(beat))
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".tmp-{path.name}")
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


def heartbeats(model_folder: Path) -> list[Heartbeat]:
    """Read all heartbeats of the jobs of a model's folder, in the order of their starts."""
    store = store_of(model_folder)
    folders = (store / FOLDER / "ended", store / FOLDER)
    paths = [path for folder in folders for path in whole_files(folder, "*.json")]
    beats = [beat for path in paths if (beat := read_heartbeat(path))]
    own = [beat for beat in beats if is_of(beat, store, model_folder)]
    return sorted(own, key=lambda beat: beat.started)


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
