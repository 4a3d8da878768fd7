"""The state of a running campaign, from small files in its results folder: heartbeats, names of
completion records.

Nothing is written, no scheduler is asked, and nothing is read twice unless it changed, so that
looking every few seconds costs a shared filesystem next to nothing, from any machine that sees the
folder.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plm_embed.errors import StoreError
from plm_embed.master.validation_record import PROOF
from plm_embed.models.manifest import RECORD
from plm_embed.models.registry import tokens as tokens_of
from plm_embed.reporting.failures import STOPPED, Failure, error_at_the_end, model_logs
from plm_embed.reporting.screen.small_files import Kept, names, time_of
from plm_embed.reporting.screen.watch_buckets import Buckets
from plm_embed.reporting.screen.watch_steps import Status, Step, Steps, last_line
from plm_embed.reporting.screen.watch_workers import STUCK_AFTER_SECONDS, WorkerState
from plm_embed.reporting.screen.watch_workers import workers as workers_of
from plm_embed.sequences.summary import SUMMARY, Summary, read_summary

_MARKS = (f"{{}}/{RECORD}", "{}/embedded", "logs/{}/weights.log")
"""What is in a results folder of a model, by its name, as soon as anything is."""


@dataclass(frozen=True)
class State:
    """One model's campaign. `fraction`, 0 to 1, of its tokens; `eta`: seconds at the present speed,
    None if unknown.
    """

    folder: Path
    steps: tuple[Step, ...]
    """weights, sequences, embed, gather, validate, report."""
    buckets: int
    done: int
    queued: int
    starting: int
    """Jobs that have begun and not said a word yet."""
    workers: tuple[WorkerState, ...]
    failures: tuple[Failure, ...]
    fraction: float
    tokens: int
    tokens_per_second: float
    eta: float | None

    @property
    def finished(self) -> bool:
        """Whether every step is: the result is validated, and nothing newer has come since."""
        return all(step.status == "done" for step in self.steps)

    @property
    def at_work(self) -> bool:
        """Whether a worker lives, or a step writes to its log."""
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
        """Whether a step ended with an error and has not begun again."""
        return any(state.failures for state in self.models)

    @property
    def over(self) -> bool:
        """Whether nothing will come any more, as far as is known: all is done, or something failed
        and nothing is at work.
        """
        return self.finished or (self.failed and not any(one.at_work for one in self.models))


class Watch:
    """Looks at a results folder again and again; it need not be there yet."""

    def __init__(self, results: Path) -> None:
        if results.exists() and not results.is_dir():
            raise StoreError(
                f"{results}: is no folder",
                path=results,
                remedy="name the results folder of a campaign",
            )
        self.results = results
        self._kept = Kept()
        self._steps = Steps(results, self._kept)
        self._buckets = Buckets(results / "sequences")

    def look(self) -> Look:
        """Return the state of every model's campaign in the folder; none before anything is known
        of one.
        """
        summary = self._sequences()
        return Look(self.results, tuple(self._campaign(model, summary) for model in self._models()))

    def _sequences(self) -> Summary | None:
        """The sequences of the campaign, once they were read."""
        folder = self.results / "sequences"
        summary = self._kept.read(folder / SUMMARY, lambda _: read_summary(folder))
        changed = time_of(folder / SUMMARY) or 0
        if changed != self._buckets.since or summary is None:
            self._buckets.renew(summary, changed)
        return summary

    def _models(self) -> list[str]:
        """Those that something lies here of, but for earlier campaigns'."""
        begun = [
            name
            for name in {*names(self.results), *names(self.results / "logs")}
            # the weights of all models are prepared before anything else
            if any((self.results / mark.format(name)).exists() for mark in _MARKS)
        ]
        since = self._buckets.since
        # a proof that is older than the sequences is of another campaign's model
        current = [one for one in begun if (time_of(self.results / one / PROOF) or since) >= since]
        return sorted(current or begun)

    def _campaign(self, model: str, summary: Summary | None) -> State:
        folder = self.results / model
        done, sizes = self._buckets.finished(folder), self._buckets.sizes
        workers = list(workers_of(folder, done, self._kept))
        jobs = [*{id(one.job): one.job for one in workers if not one.trouble}.values()]
        running = {job.bucket for job in jobs}
        waiting = [name for name in sizes if name not in done and name not in running]
        tokens = tokens_of(model, summary.residues, summary.unique) if summary else 0
        per_byte = tokens / (sum(sizes.values()) or 1)
        left = per_byte * sum(sizes[name] for name in waiting)
        for bucket in running:
            nodes = [job for job in jobs if job.bucket == bucket]
            total = sum(job.residues_total or 0 for job in nodes)
            fraction = sum(job.residues for job in nodes) / total if total else 0.0
            left += (1 - fraction) * per_byte * sizes.get(bucket, 0)
        rate = sum(
            worker.worker.tokens_per_second or 0.0 for worker in workers if not worker.trouble
        )
        complete = bool(sizes) and not waiting and not running
        logs = [] if complete else self._embed_logs(model)
        failed = [
            Failure(log, reason)
            for log in logs
            if (reason := self._kept.read(log, error_at_the_end)) and STOPPED not in reason
        ]
        status: Status = "failed" if failed else "at work" if running else "waits"
        steps = (
            self._steps.weights(model, complete or bool(running)),
            self._steps.sequences(),
            Step("embed", "done" if complete else status),
            *self._steps.after_embed(model, complete),
        )
        return State(
            folder=folder,
            steps=steps,
            buckets=len(sizes),
            done=len(done),
            queued=len(waiting),
            starting=self._starting(logs),
            workers=tuple(
                sorted(workers, key=lambda worker: (not worker.trouble, worker.job.bucket))
            ),
            failures=(*self._steps.failures(steps), *failed),
            fraction=1.0 if complete else 1 - left / tokens if tokens else 0.0,
            tokens=tokens,
            tokens_per_second=rate,
            eta=0.0 if complete else left / rate if rate else None,
        )

    def _embed_logs(self, model: str) -> list[Path]:
        """Of buckets that were begun and are not done."""
        return [log for log in model_logs(self.results, model) if log.parent.name == "embed"]

    def _starting(self, logs: Sequence[Path]) -> int:
        """Jobs whose log has nothing but the command: they load their libraries, or were killed."""
        oldest = (time.time() - STUCK_AFTER_SECONDS) * 1e9
        return sum(
            self._kept.read(log, last_line) == "" and (time_of(log) or 0) > oldest for log in logs
        )
