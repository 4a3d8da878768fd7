"""The state of a running campaign, from small files in its results folder: heartbeats, names of
completion records.

Nothing is written, no scheduler is asked, and nothing is read twice unless it changed, so that
looking every few seconds costs a shared filesystem next to nothing, from any machine that sees the
folder.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from plm_embed.errors import StoreError
from plm_embed.jobs.heartbeats import FOLDER, Beat, read_beat
from plm_embed.jobs.submission import FOLDER as SUBMISSIONS
from plm_embed.jobs.submission import read_submission
from plm_embed.keys import bucket_names
from plm_embed.models.registry import tokens as tokens_of
from plm_embed.sequences.summary import Summary, read_summary

PROOF = "checksums.sha256"
SILENT_AFTER_SECONDS = 120.0
"""A worker that has not written its heartbeat for longer is taken for dead or cut off."""
STUCK_AFTER_SECONDS = 1200.0
"""A worker that writes heartbeats but finishes no batch for longer may sit on a broken device."""
TAIL_BYTES = 4096
ERROR = re.compile("plm-embed: (?:error|unfinished): ")
T = TypeVar("T")


@dataclass(frozen=True)
class WorkerState:
    """One worker: its heartbeat (see `heartbeats`), seconds since its last sign of life, and what
    is wrong or ''.
    """

    beat: Beat
    age: float
    trouble: str


@dataclass(frozen=True)
class Failure:
    """A step that ended with an error: its log and what it says there."""

    log: Path
    reason: str


@dataclass(frozen=True)
class State:
    """One model's campaign. `fraction`, 0 to 1, of its tokens; `eta`: seconds at the present speed,
    None if unknown.
    """

    folder: Path
    buckets: int
    done: int
    queued: int
    workers: tuple[WorkerState, ...]
    failures: tuple[Failure, ...]
    fraction: float
    tokens: int
    tokens_per_second: float
    eta: float | None

    proven: bool
    """Whether checksums.sha256, the proof, is of what was embedded last."""

    @property
    def embedded(self) -> bool:
        """Whether every bucket is."""
        return self.done == self.buckets and not self.workers

    @property
    def finished(self) -> bool:
        return self.embedded and self.proven


class Watch:
    """Looks at a results folder again and again."""

    def __init__(self, results: Path) -> None:
        if not results.is_dir():
            raise StoreError(
                f"{results}: there is no such folder; name the results folder of a campaign",
                path=results,
            )
        self.results = results
        self._files: dict[Path, tuple[tuple[int, int, int], Any]] = {}
        self._done: dict[Path, set[str]] = {}
        self._seen = 0

    def look(self) -> list[State]:
        """The state of every model's campaign in the folder; none before the sequences are
        deduplicated.
        """
        sequences = self.results / "sequences"
        summary = self._once_per_change(
            sequences / "summary.json", lambda _: read_summary(sequences)
        )
        changed = _time_of(sequences / "summary.json")
        if summary is None or changed is None:
            return []
        if changed != self._seen:
            self._seen = changed
            self._done.clear()
            self._sizes, self._times = _bucket_files(sequences, bucket_names(summary.buckets))
        folders = (
            self.results / name
            for name in _names(self.results)
            if name not in ("sequences", "logs", "benchmarks")
        )
        # the weights of all models are prepared before anything else
        marks = ("weights.json", "embedded")
        begun = [folder for folder in folders if any((folder / mark).exists() for mark in marks)]
        # a campaign's beginning takes the proofs of its models away: an older one is of another's
        current = [one for one in begun if (_time_of(one / PROOF) or changed) >= changed]
        return [self._campaign(folder, summary) for folder in current or begun]

    def failures(self, model: str) -> Iterator[Failure]:
        """Steps whose log ends with an error; a repeated step begins a new log."""
        logs = self.results / "logs"
        submissions = {Path(name).stem for name in _names(self.results / model / SUBMISSIONS)}
        embed = logs / model / "embed"
        candidates = [embed / name for name in _names(embed) if Path(name).stem not in submissions]
        candidates += [folder / name for folder in (logs, logs / model) for name in _names(folder)]
        for path in candidates:
            reason = (
                self._once_per_change(path, _error_at_the_end) if path.suffix == ".log" else None
            )
            if reason:
                yield Failure(path, reason)

    def _campaign(self, folder: Path, summary: Summary) -> State:
        done = self._finished(folder)
        workers = list(self._workers(folder, done))
        running = {worker.beat.bucket for worker in workers if not worker.trouble}
        waiting = [name for name in self._sizes if name not in done and name not in running]
        tokens = tokens_of(folder.name, summary.residues, summary.unique)
        per_byte = tokens / (sum(self._sizes.values()) or 1)
        left = per_byte * sum(self._sizes[name] for name in waiting)
        left += sum(
            (1 - worker.beat.fraction) * per_byte * self._sizes.get(worker.beat.bucket, 0)
            for worker in workers
            if not worker.trouble
        )
        rate = sum(worker.beat.tokens_per_second or 0.0 for worker in workers if not worker.trouble)
        complete = not waiting and not running
        return State(
            folder=folder,
            buckets=len(self._sizes),
            done=len(done),
            queued=len(waiting),
            workers=tuple(
                sorted(workers, key=lambda worker: (not worker.trouble, worker.beat.bucket))
            ),
            failures=tuple(self.failures(folder.name)),
            fraction=1.0 if complete else 1 - left / (tokens or 1),
            tokens=tokens,
            tokens_per_second=rate,
            eta=0.0 if complete else left / rate if rate else None,
            proven=_is_proven(folder),
        )

    def _finished(self, folder: Path) -> set[str]:
        """Buckets with a completion record that is not older than the bucket, or named by a
        finished submission.
        """
        done = self._done.setdefault(folder, set())
        for name in _names(folder / "embedded"):
            path, bucket = folder / "embedded" / name, name.removesuffix(".json")
            if (
                bucket in self._times
                and bucket not in done
                and (_time_of(path) or 0) >= self._times[bucket]
            ):
                done.add(bucket)
        for name in _names(folder / SUBMISSIONS):
            if name.endswith(".json"):
                named = self._once_per_change(folder / SUBMISSIONS / name, _buckets_of) or ()
                done.update(bucket for bucket in named if bucket in self._times)
        return done

    def _workers(self, folder: Path, done: set[str]) -> Iterator[WorkerState]:
        """Living workers, and silent ones whose bucket nobody else has finished or taken over."""
        now = time.time()
        beats: list[tuple[float, Beat]] = []
        for name in _names(folder / FOLDER):
            if name.endswith(".json") and (
                beat := self._once_per_change(folder / FOLDER / name, read_beat)
            ):
                age = now - datetime.fromisoformat(beat.updated).timestamp()
                beats.append((age, beat))
        alive = {beat.bucket for age, beat in beats if age <= SILENT_AFTER_SECONDS}
        for age, beat in beats:
            if age > SILENT_AFTER_SECONDS:
                if beat.bucket not in done | alive:
                    yield WorkerState(beat, age, "silent")
                continue
            stuck = (
                beat.progressed is not None
                and now - datetime.fromisoformat(beat.progressed).timestamp() > STUCK_AFTER_SECONDS
            )
            yield WorkerState(beat, max(age, 0.0), "stuck" if stuck else "")

    def _once_per_change(self, path: Path, read: Callable[[Path], T]) -> T | None:
        """What `read` makes of a file, kept until the file changes; None when there is none or it
        cannot be read.
        """
        try:
            found = path.stat()
            # two versions of a file may be of the same instant
            changed = found.st_mtime_ns, found.st_size, found.st_ino
            if path not in self._files or self._files[path][0] != changed:
                self._files[path] = changed, read(path)
        except (OSError, ValueError):
            self._files.pop(path, None)
            return None
        kept: T = self._files[path][1]
        return kept


def _time_of(path: Path) -> int | None:
    """When a file was changed; None when it is gone."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _is_proven(folder: Path) -> bool:
    """Whether the proof is there, and not older than the last submission that came or went."""
    proof = _time_of(folder / PROOF)
    return proof is not None and proof >= (_time_of(folder / SUBMISSIONS) or 0)


def _names(folder: Path) -> list[str]:
    """Names in a folder, without temporary ones; none when it does not exist."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _bucket_files(sequences: Path, names: list[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Sizes in bytes, which stand for the work in a bucket, and times of change."""
    found = {}
    for name in names:
        with suppress(FileNotFoundError):  # deduplicate may be at work
            found[name] = (sequences / "buckets" / f"{name}.parquet").stat()
    sizes = {name: status.st_size for name, status in found.items()}
    return sizes, {name: status.st_mtime_ns for name, status in found.items()}


def _buckets_of(path: Path) -> tuple[str, ...]:
    """The buckets of a finished submission; none when its file is damaged."""
    try:
        return read_submission(path).buckets
    except StoreError:
        return ()


def _error_at_the_end(path: Path) -> str:
    """The first two lines of the error that a log ends with; '' when it ends otherwise."""
    with path.open("rb") as handle:
        handle.seek(max(0, handle.seek(0, os.SEEK_END) - TAIL_BYTES))
        tail = handle.read().decode("utf-8", "replace")
    if ERROR.search(tail):
        return "\n".join(ERROR.split(tail)[-1].strip().splitlines()[:2])
    if "Traceback (most recent call last)" in tail:
        return tail.strip().splitlines()[-1]
    return ""
