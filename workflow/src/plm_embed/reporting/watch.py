"""The state of a running campaign, from small files in its results folder: completion records,
heartbeats, the ends of logs.

Nothing is written, no scheduler is asked, and nothing is read twice unless it changed, so that
looking every few seconds costs a shared filesystem next to nothing, from any machine that sees the
folder.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from plm_embed.errors import StoreError
from plm_embed.io.files import whole_files
from plm_embed.jobs.bucket import is_done
from plm_embed.jobs.completion_record import WorkerInfo
from plm_embed.jobs.heartbeat import FOLDER, Heartbeat, is_of, read_heartbeat, store_of
from plm_embed.keys import bucket_names
from plm_embed.master.validation_record import PROOF
from plm_embed.models.manifest import RECORD
from plm_embed.models.registry import tokens as tokens_of
from plm_embed.reading.find import MASTERS
from plm_embed.reporting.failures import STOPPED, Failure, error_at_the_end, last_line
from plm_embed.reporting.outputs import REPORT
from plm_embed.sequences.summary import SUMMARY, Summary, known_summary

SILENT_SECONDS = 120.0
"""A job that has not written its heartbeat for longer is taken for dead or cut off."""
STUCK_SECONDS = 1200.0
"""A worker that finishes no batch for longer, in a job that writes heartbeats, may sit on a broken
device.
"""
Status = Literal["done", "at work", "failed", "waits"]
T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """A step of a model's campaign. log, last: of the step at work, and the last line in it; age:
    seconds since that was written.
    """

    name: str
    status: Status
    log: Path | None = None
    last: str = ""
    age: float = 0.0


@dataclass(frozen=True)
class WorkerState:
    """A worker, its job, seconds since their last sign of life, and what is wrong or ''."""

    job: Heartbeat
    worker: WorkerInfo
    age: float
    trouble: str


@dataclass(frozen=True)
class State:
    """One model's campaign. buckets: all; running and queued: neither done nor failed; fraction, 0
    to 1, of its tokens; eta: seconds at the present speed, None if unknown.
    """

    folder: Path
    steps: tuple[Step, ...]
    """weights, sequences, embed, gather, validate, report."""
    buckets: int
    done: int
    running: int
    queued: int
    workers: tuple[WorkerState, ...]
    failures: tuple[Failure, ...]
    fraction: float
    tokens_per_second: float
    eta: float | None

    @property
    def finished(self) -> bool:
        """Return whether every step is done, and nothing newer has come since."""
        return all(step.status == "done" for step in self.steps)

    @property
    def at_work(self) -> bool:
        """Return whether a worker lives, or a step writes to its log."""
        alive = any(not worker.trouble for worker in self.workers)
        return alive or any(step.status == "at work" for step in self.steps)


@dataclass(frozen=True)
class Look:
    """A results folder as it was seen."""

    results: Path
    models: tuple[State, ...]

    @property
    def finished(self) -> bool:
        return bool(self.models) and all(state.finished for state in self.models)

    @property
    def failed(self) -> bool:
        """Return whether a step ended with an error and has not begun again."""
        return any(state.failures for state in self.models)

    @property
    def over(self) -> bool:
        """Return whether nothing will come any more, as far as is known: all is done, or something
        failed and nothing is at work.
        """
        return self.finished or (self.failed and not any(one.at_work for one in self.models))


def changed(path: Path) -> int:
    """Return when a file was changed, in nanoseconds; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def moment(text: str) -> float:
    """Return a time in ISO 8601 in seconds."""
    return datetime.fromisoformat(text).timestamp()


class Watch:
    """Looks at a results folder again and again; it need not be there yet."""

    def __init__(self, results: Path) -> None:
        if results.exists() and not results.is_dir():
            what = f"{results}: is no folder"
            raise StoreError(what, path=results, remedy="name the results folder of a campaign")
        self.results = results
        self._read: dict[tuple[Any, ...], tuple[object, Any]] = {}
        self._sizes: dict[str, int] = {}
        self._since = 0
        """When the sequences were split into buckets, in nanoseconds."""

    def look(self) -> Look:
        """Return the state of every model's campaign; none before anything is known of one."""
        folder = self.results / "sequences"
        summary = self._once(lambda _: known_summary(folder), folder / SUMMARY)
        since = changed(folder / SUMMARY) if summary else 0
        if since != self._since:
            self._since = since
            names = bucket_names(summary.buckets) if summary else []
            paths = [folder / "buckets" / f"{name}.parquet" for name in names]
            self._sizes = {path.stem: path.stat().st_size for path in paths if path.is_file()}
        logs = self.results / "logs"
        begun = [
            name
            for name in sorted({path.name for path in (*self.results.glob("*"), *logs.glob("*"))})
            if any((self.results / name / part).exists() for part in (RECORD, "embedded"))
            or (logs / name / "weights.log").exists()
        ]
        # a proof that is older than the sequences is of another campaign's model
        current = [
            name
            for name in begun
            if (changed(self.results / name / PROOF) or self._since) >= self._since
        ]
        return Look(self.results, tuple(self._state(name, summary) for name in current or begun))

    def _once(self, read: Callable[[Path], T], path: Path, *also: Path) -> T | None:
        """Return what `read` makes of a file, read again only when it, or one of the others,
        changed; None where there is none.
        """
        key = (read.__qualname__, path)
        try:
            found = [(each.stat().st_mtime_ns, each.stat().st_size) for each in (path, *also)]
            if key not in self._read or self._read[key][0] != found:
                self._read[key] = found, read(path)
        except (OSError, ValueError):
            self._read.pop(key, None)
            return None
        value: T = self._read[key][1]
        return value

    def _state(self, model: str, summary: Summary | None) -> State:
        folder, logs = self.results / model, self.results / "logs" / model
        done = set(self._done(folder))
        complete = bool(self._sizes) and len(done) == len(self._sizes)
        workers = list(self._workers(folder, done))
        jobs = {id(one.job): one.job for one in workers if not one.trouble}.values()
        running = {job.bucket for job in jobs}
        failures = [
            Failure(log, reason)
            for log in whole_files(logs / "embed", "*.log")
            if log.stem not in done and log.stem not in running
            and (reason := self._error(log)) and STOPPED not in reason
        ]  # fmt: skip
        lost = {failure.log.stem for failure in failures}
        tokens = tokens_of(model, summary.residues, summary.unique) if summary else 0
        per_byte = tokens / (sum(self._sizes.values()) or 1)
        left = per_byte * sum(size for name, size in self._sizes.items() if name not in done)
        for bucket in running:
            nodes = [job for job in jobs if job.bucket == bucket]
            total = sum(job.residues_total or 0 for job in nodes)
            share = sum(job.residues for job in nodes) / total if total else 0.0
            left -= share * per_byte * self._sizes.get(bucket, 0)
        rate = sum(one.worker.tokens_per_second or 0.0 for one in workers if not one.trouble)
        status: Status = "failed" if failures else "at work" if running else "waits"
        steps = tuple(self._steps(folder, logs, "done" if complete else status, bool(running)))
        return State(
            folder=folder,
            steps=steps,
            buckets=len(self._sizes),
            done=len(done),
            running=len(running),
            queued=len(self._sizes.keys() - done - running - lost),
            workers=tuple(sorted(workers, key=lambda one: (not one.trouble, one.job.bucket))),
            failures=(
                *(Failure(step.log, self._error(step.log))
                  for step in steps if step.status == "failed" and step.log),
                *failures,
            ),
            fraction=1.0 if complete else 1 - left / tokens if tokens else 0.0,
            tokens_per_second=rate,
            eta=0.0 if complete else left / rate if rate else None,
        )  # fmt: skip

    def _done(self, folder: Path) -> Iterator[str]:
        """Yield the buckets that are done."""
        store = store_of(folder)
        for record in whole_files(folder / "embedded", "*.json"):
            if record.stem in self._sizes:
                bucket = self.results / "sequences" / "buckets" / f"{record.stem}.parquet"
                if self._once(lambda path: is_done(bucket, path, store), record, bucket):  # noqa: B023
                    yield record.stem

    def _workers(self, folder: Path, done: set[str]) -> Iterator[WorkerState]:
        """Yield the workers of the last start of each job that has not ended."""
        now, store = time.time(), store_of(folder)
        read = [self._once(read_heartbeat, path) for path in whole_files(store / FOLDER, "*.json")]
        beats = [
            beat for beat in read if beat and beat.bucket not in done and is_of(beat, store, folder)
        ]
        last: dict[str, str] = {}
        for beat in beats:
            if beat.node == 0:  # the others of its job started later
                last[beat.bucket] = max(last.get(beat.bucket, ""), beat.started)
        for beat in beats:
            if beat.started < last.get(beat.bucket, ""):
                continue
            age = max(0.0, now - moment(beat.updated))
            for worker in beat.workers:
                computes = worker.state == "computing" and worker.progressed is not None
                idle = now - moment(worker.progressed or beat.updated)
                stuck = "stuck" if computes and idle > STUCK_SECONDS else ""
                yield WorkerState(beat, worker, age, "silent" if age > SILENT_SECONDS else stuck)

    def _steps(self, folder: Path, logs: Path, embed: Status, running: bool) -> Iterator[Step]:
        """Yield the steps; one after embed that is older than its input is not done."""
        weights = self._step("weights", changed(folder / RECORD) > 0, logs / "weights.log")
        used = running or embed == "done"
        yield Step("weights", "done") if used and weights.status == "waits" else weights
        log = self.results / "logs" / "deduplicate.log"
        yield self._step("sequences", changed(self.results / "sequences" / SUMMARY) > 0, log)
        yield Step("embed", embed)
        before, made = embed == "done", 0
        if before:
            made = max(map(changed, whole_files(folder / "embedded", "*.json")), default=0)
        for name, pattern in (("gather", MASTERS), ("validate", PROOF), ("report", REPORT)):
            written = max(map(changed, folder.glob(pattern)), default=0)
            if not before:
                yield Step(name, "waits")
                continue
            before = written >= made > 0
            yield self._step(name, before, logs / f"{name}.log", made)
            made = written or made

    def _step(self, name: str, done: bool, log: Path, since: int = 0) -> Step:
        """Return a step by its log, if that is not older than `since`."""
        written = changed(log)
        if done or not written or written < since:
            return Step(name, "done" if done else "waits")
        if self._error(log):
            return Step(name, "failed", log)
        age = max(0.0, time.time() - written / 1e9)
        return Step(name, "at work", log, self._once(last_line, log) or "", age)

    def _error(self, log: Path) -> str:
        return self._once(error_at_the_end, log) or ""
