"""What was computed when, and by which worker, from completion records and heartbeats."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from plm_embed.jobs.completion_record import Completion
from plm_embed.jobs.heartbeat import Heartbeat
from plm_embed.planning.costs import device_label


@dataclass(frozen=True)
class Run:
    """One bucket's computation, from its completion record. seconds: of the whole job;
    tokens_per_second: of one worker.

    place: host and job, as attempts know them; worker: the same with the GPU. Of several workers at
    a place that have no GPU to tell them apart, each has a number.
    """

    bucket: str
    place: str
    worker: str
    device: str
    started: str
    ended: str
    seconds: float
    tokens: int
    tokens_per_second: float
    busy: float
    unique: int
    computed: int
    found: int
    skipped: int
    on_gpu: bool = False
    workers: int = 1

    @property
    def device_seconds(self) -> float:
        """Of all workers of the job."""
        return self.seconds * self.workers

    @property
    def token_seconds(self) -> float:
        """Time in which its tokens were computed; 0 where there were none."""
        return self.tokens / self.tokens_per_second if self.tokens_per_second else 0.0


def place(host: str, job: str | None) -> str:
    """'x3001, job 17', or the host alone outside of a scheduler."""
    return f"{host}, job {job}" if job else host


def runs_of(records: Iterable[Completion]) -> list[Run]:
    """A run per completion record."""
    return _apart([_run(record) for record in records])


def _run(record: Completion) -> Run:
    worker = record.worker
    several = len(record.workers)
    gpu = f" GPU {worker.gpu}" if worker.gpu else ""
    if several > 1:
        gpu = f", {several} workers"
    return Run(
        bucket=record.bucket,
        place=place(worker.host, worker.job),
        worker=place(f"{worker.host}{gpu}", worker.job),
        device=device_label(worker.device, worker.threads),
        started=record.started,
        ended=record.ended,
        seconds=record.seconds,
        tokens=record.tokens,
        tokens_per_second=record.tokens_per_second or 0.0,
        busy=record.busy or 0.0,
        unique=record.unique,
        computed=record.computed,
        found=record.found + record.reused,
        skipped=len(record.skipped),
        on_gpu=worker.capability is not None,
        workers=several,
    )


def _apart(runs: Sequence[Run]) -> list[Run]:
    """The runs, with a number for each of the workers that have one name and worked at the same
    time.

    On CPUs each job is a process of its own: those that came one after the other count as one
    worker.
    """
    ends: dict[str, list[float]] = {}
    number: dict[str, int] = {}
    for run in sorted(runs, key=lambda run: (run.started, run.bucket)):
        lanes, began = ends.setdefault(run.worker, []), moment(run.started)
        lane = next((at for at, end in enumerate(lanes) if end <= began), len(lanes))
        lanes[lane : lane + 1] = [moment(run.ended)]
        number[run.bucket] = lane + 1
    return [
        replace(run, worker=f"{run.worker} #{number[run.bucket]}")
        if len(ends[run.worker]) > 1
        else run
        for run in runs
    ]


def workers_of(attempts: Iterable[Heartbeat], runs: Iterable[Run]) -> list[str]:
    """For each attempt, the worker that finished its bucket, else one at its place, else the
    place itself.
    """
    at_place: dict[str, dict[str, str]] = {}
    for run in runs:
        at_place.setdefault(run.place, {})[run.bucket] = run.worker
    owners = []
    for one in attempts:
        where = place(one.host, one.job)
        here = at_place.get(where) or {"": where}
        owners.append(here.get(one.bucket) or next(iter(here.values())))
    return owners


def without_end(attempt: Heartbeat, finished: Container[str]) -> str:
    """What became of an attempt without an end, by the names of the buckets that are finished."""
    if attempt.bucket in finished:
        return "killed without a word: by a time limit, for its memory, or by hand"
    return "no end: killed, or still at work"


def moment(text: str) -> float:
    """A timestamp, in seconds, of an ISO 8601 text."""
    return datetime.fromisoformat(text).timestamp()
