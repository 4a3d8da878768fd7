"""The state of a running campaign, from small files in its results folder: heartbeats, names of
completion records.

Nothing is written, no scheduler is asked, and nothing is read twice unless it changed, so that
looking every few seconds costs a shared filesystem next to nothing, from any machine that sees the
folder.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from plm_embed.errors import StoreError
from plm_embed.jobs.heartbeat import store_of
from plm_embed.master.validation_record import PROOF
from plm_embed.models.manifest import RECORD
from plm_embed.models.registry import tokens as tokens_of
from plm_embed.reporting.screen.small_files import Kept, names, time_of
from plm_embed.reporting.screen.watch_buckets import Buckets
from plm_embed.reporting.screen.watch_steps import Status, Step, Steps, last_line
from plm_embed.reporting.screen.watch_workers import STUCK_AFTER_SECONDS, WorkerState
from plm_embed.reporting.screen.watch_workers import workers as workers_of
from plm_embed.sequences.summary import SUMMARY, Summary, read_summary
from plm_embed.store.replaced import stored_vectors
from plm_embed.workflow.failures import STOPPED, Failure, error_at_the_end, model_logs
from plm_embed.workflow.run_note import NOTE, Call, read_call

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
    """A results folder as it was seen. run: the last call of Snakemake, None where none is
    known.
    """

    results: Path
    run: Call | None
    models: tuple[State, ...]

    @property
    def finished(self) -> bool:
        return bool(self.models) and all(state.finished for state in self.models)

    @property
    def failed(self) -> bool:
        """Whether a step ended with an error and has not begun again, or the run says so."""
        told = self.run is not None and self.run.outcome == "failed" and not self.finished
        return told or any(state.failures for state in self.models)

    @property
    def over(self) -> bool:
        """Whether nothing will come any more, as far as is known: all is done, or something failed
        or the run was killed, and nothing is at work.
        """
        working = any(one.at_work for one in self.models)
        if self.run:
            return not self.run.at_work and (self.finished or self.failed or not working)
        return self.finished or (self.failed and not working)


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
        self._buckets = Buckets(results / "sequences", self._kept)

    def look(self) -> Look:
        """The state of every model's campaign in the folder; none before anything is known of
        one.
        """
        run = self._kept.read(self.results / NOTE, read_call)
        summary = self._sequences()
        states = [self._campaign(model, summary, run) for model in self._models(run)]
        return Look(self.results, run, tuple(states))

    def _sequences(self) -> Summary | None:
        """The sequences of the campaign, once they were read."""
        folder = self.results / "sequences"
        summary = self._kept.read(folder / SUMMARY, lambda _: read_summary(folder))
        changed = time_of(folder / SUMMARY) or 0
        if changed != self._buckets.since or summary is None:
            self._buckets.renew(summary, changed)
        return summary

    def _models(self, run: Call | None) -> list[str]:
        """Those of the last run, and those that something lies here of, but for earlier
        campaigns'.
        """
        begun = [
            name
            for name in {*names(self.results), *names(self.results / "logs")}
            # the weights of all models are prepared before anything else
            if any((self.results / mark.format(name)).exists() for mark in _MARKS)
        ]
        since = self._buckets.since
        # a campaign's beginning takes the proofs of its models away: an older one is of another's
        current = [one for one in begun if (time_of(self.results / one / PROOF) or since) >= since]
        return sorted({*run.models, *current} if run else current or begun)

    def _campaign(self, model: str, summary: Summary | None, run: Call | None) -> State:
        folder = self.results / model
        done, sizes = self._buckets.finished(folder), self._buckets.sizes
        workers = list(workers_of(folder, done, run, self._kept))
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
        began = self._began(run)
        logs = self._embed_logs(model, began) if not complete else []
        embed = self._embed_failures(logs, run)
        steps = tuple(self._all_steps(folder, complete, bool(embed), bool(running), run))
        if run and run.ended:
            steps = tuple(_idle(step) for step in steps)
        fraction = 1.0 if complete else 1 - left / tokens if tokens else 0.0
        if run and not run.at_work and not running and not complete and summary:
            # parts of buckets that are not finished; while workers are at work they count those
            stored = stored_vectors(store_of(folder)) / (summary.unique or 1)
            # a store that has more than all holds vectors of other inputs, too
            fraction = max(fraction, stored if stored <= 1 else 0.0)
        return State(
            folder=folder,
            steps=steps,
            buckets=len(sizes),
            done=len(done),
            queued=len(waiting),
            starting=self._starting(logs) if run and run.at_work else 0,
            workers=tuple(
                sorted(workers, key=lambda worker: (not worker.trouble, worker.job.bucket))
            ),
            failures=(*self._steps.failures(steps), *embed),
            fraction=fraction,
            tokens=tokens,
            tokens_per_second=rate,
            eta=0.0 if complete else left / rate if rate else None,
        )

    def _began(self, run: Call | None) -> int:
        """When the run began, by the clock of its files; 0 where none is known."""
        return (time_of(self.results / NOTE) or 0) if run else 0

    def _all_steps(
        self, folder: Path, complete: bool, failed: bool, running: bool, run: Call | None
    ) -> Iterator[Step]:
        began, copied = self._began(run), run is not None and _copied(folder, run)
        yield self._steps.weights(folder.name, complete or running, began)
        yield self._steps.sequences(began)
        status: Status = "failed" if failed else "at work" if running else "waits"
        yield Step("embed", "done" if complete else status)
        yield from self._steps.after_embed(folder.name, complete, began, copied=copied)

    def _embed_logs(self, model: str, began: int) -> list[Path]:
        """Of embed jobs that this run has begun and that are not done."""
        logs = (log for log in model_logs(self.results, model) if log.parent.name == "embed")
        return [log for log in logs if (time_of(log) or 0) >= began]

    def _embed_failures(self, logs: Sequence[Path], run: Call | None) -> list[Failure]:
        """Jobs whose log ends with an error; one that is repeated begins a new log."""
        found = {log: self._kept.read(log, error_at_the_end) for log in logs}
        by_hand = run is not None and run.outcome == "stopped"
        return [
            Failure(log, reason)
            for log, reason in found.items()
            if reason and not (by_hand and STOPPED in reason)
        ]

    def _starting(self, logs: Sequence[Path]) -> int:
        """Jobs whose log has nothing but the command: they load their libraries, or were killed."""
        oldest = (time.time() - STUCK_AFTER_SECONDS) * 1e9
        return sum(
            self._kept.read(log, last_line) == "" and (time_of(log) or 0) > oldest for log in logs
        )


def _copied(folder: Path, run: Call) -> bool:
    """Whether this is a copy of a model's folder that a run had completed: the weights, a run's
    beginning, are younger than its end. A run that was asked for a part only may have left older
    results stale, which is not seen here.
    """
    if run.outcome != "complete":
        return False
    return (time_of(folder / RECORD) or 0) / 1e9 > datetime.fromisoformat(run.ended).timestamp() + 1


def _idle(step: Step) -> Step:
    """A step of a run that is over."""
    return replace(step, status="waits") if step.status == "at work" else step
