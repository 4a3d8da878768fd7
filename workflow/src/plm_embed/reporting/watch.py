"""`plm-embed watch`: a campaign on a terminal, or as plain text in a log.

Only small files of the results folder are read: completion records, heartbeats, the ends of logs.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from plm_embed.errors import StoreError
from plm_embed.io.files import whole_files
from plm_embed.io.terminal import terminal
from plm_embed.jobs.completion_record import FOLDER as RECORDS
from plm_embed.jobs.completion_record import WorkerInfo, is_done, store_of
from plm_embed.jobs.heartbeat import SILENT_SECONDS, Heartbeat, heartbeats
from plm_embed.keys import bucket_names
from plm_embed.master.validation_record import PROOF, VALIDATION
from plm_embed.models.weights import RECORD
from plm_embed.reading.find import MASTERS
from plm_embed.reporting.failures import AGAIN, Failure, alike, changed, failures, run_failure
from plm_embed.reporting.outputs import REPORT
from plm_embed.sequences.summary import SUMMARY, known_summary
from plm_embed.startup import program
from plm_embed.wording import count, duration
from plm_embed.workflow.run_note import Run, failed_attempts, read_run, run_note

SECONDS_BETWEEN_LOOKS = 10.0
"""Workers write their heartbeats as often."""
LOOKS_FOR_A_START = 7
"""Looks at a run that has ended: one that was just started notes itself after it has planned."""
STUCK_SECONDS = 1200.0
"""A worker that finishes no batch for longer, in a job that writes heartbeats, may sit on a broken
device.
"""
PLAIN_WIDTH = 120
WAITING = "queued or starting (on a cluster, see squeue --me)"
VALID, FAILED, UNFINISHED = 0, 1, 3
Status = Literal["done", "at work", "failed", "waits"]
_MARKS: dict[Status, tuple[str, str]] = {
    "done": ("✓", "green"),
    "at work": ("▶", "bold cyan"),
    "failed": ("✗", "bold red"),
    "waits": ("·", "dim"),
}


class Step(NamedTuple):
    """A step of a model's campaign, and its log."""

    name: str
    status: Status
    log: Path | None = None


class Worker(NamedTuple):
    """A worker, its job, and its trouble or ''."""

    job: Heartbeat
    info: WorkerInfo
    trouble: str


@dataclass(frozen=True)
class Progress:
    """The progress of one model. steps: weights, sequences, embed, gather, validate, report;
    buckets: all; fraction: of the work of embed, 0 to 1; eta: seconds at the present speed, None if
    unknown.
    """

    folder: Path
    steps: tuple[Step, ...]
    buckets: int
    done: int
    running: int
    queued: int
    workers: tuple[Worker, ...]
    failures: tuple[Failure, ...]
    fraction: float
    tokens_per_second: float
    eta: float | None

    @property
    def finished(self) -> bool:
        """Return whether every step is done."""
        return all(step.status == "done" for step in self.steps)


@dataclass(frozen=True)
class Look:
    """A results folder at one moment. run: the last of Snakemake, None where none was noted; alive:
    whether it goes on; failure: of a run that has ended. finished: every step is done, and the run
    has ended; failed: a step ended with an error and has not begun again; at_work: a worker lives,
    or a step writes to its log; over: nothing more will come.
    """

    results: Path
    models: tuple[Progress, ...]
    run: Run | None
    alive: bool
    failure: list[Failure]
    finished: bool
    failed: bool
    at_work: bool
    over: bool


def watch(results: Path, *, once: bool) -> int:
    """Show the campaign until it is over or Ctrl-C; where the last run had ended before, for a
    minute, since another may just have been started. With `once`, print one look at it as plain
    text, as without a terminal whenever a step has changed. Return the exit code: VALID, FAILED or
    UNFINISHED.
    """
    present, seen, console = look(results), None, terminal()
    looks_left = LOOKS_FOR_A_START
    plain = once or not console.is_terminal
    if plain:
        console = terminal(width=PLAIN_WIDTH, no_color=True, highlight=False)
    live = None if plain else Live(console=console, auto_refresh=False)
    with live or nullcontext(), suppress(KeyboardInterrupt):
        while True:
            steps = [present.over, *(model.steps for model in present.models)]
            if live:
                live.update(view(present), refresh=True)
            elif steps != seen:
                console.print(view(present), soft_wrap=True)  # whole paths
            looks_left = 0 if present.alive else looks_left - 1
            if once or present.finished or (present.over and looks_left <= 0):
                break
            time.sleep(SECONDS_BETWEEN_LOOKS)
            present, seen = look(results), steps
    return VALID if present.finished else FAILED if present.failed else UNFINISHED


def look(results: Path) -> Look:
    """Read the state of a results folder, which need not be there yet: of each model of its last
    run, or where none was noted of each that has begun.
    """
    if results.exists() and not results.is_dir():
        remedy = "name the results folder of a campaign"
        raise StoreError(f"{results}: is not a folder", path=results, remedy=remedy)
    run, failure = read_run(results), run_failure(results)
    begun = {log.parent.name for log in results.glob("logs/*/weights.log")}
    begun |= {path.parent.name for part in (RECORD, RECORDS) for path in results.glob(f"*/{part}")}
    alive, names = bool(run and run.alive), sorted(run.models if run else begun)
    models = tuple(_progress(results, name, run, alive) for name in names)
    finished = not alive and bool(models) and all(model.finished for model in models)
    failed = bool(failure) or any(model.failures for model in models)
    steps = [step.status for model in models for step in model.steps]
    at_work = "at work" in steps or any(model.running for model in models)
    # without a noted run, an error may be its end
    over = bool(run or finished or failed) and not alive and not at_work
    return Look(results, models, run, alive, failure, finished, failed, at_work, over)


def _progress(results: Path, model: str, run: Run | None, alive: bool) -> Progress:
    folder, sequences = results / model, results / "sequences"
    summary, since, store = known_summary(sequences), changed(sequences / SUMMARY), store_of(folder)
    buckets = set(bucket_names(summary.buckets)) if summary else set()
    records = {path.stem: path for path in whole_files(folder / RECORDS, "*.json")}
    done = {
        bucket
        for bucket in buckets & records.keys()
        if _is_done(sequences, store, records[bucket], changed(records[bucket]), since)
    }
    beats = heartbeats(folder, done)
    workers = () if run and run.ended else tuple(_workers(beats))
    living = [worker for worker in workers if not worker.trouble]
    running = {worker.job.bucket for worker in living}
    attempts = [work for bucket, work in _attempts(beats).items() if bucket in buckets]
    shares = sum(computed / total for computed, total in attempts)
    # buckets are cut by hashes: those that have not begun take as many tokens as others
    tokens = sum(total for _, total in attempts) / max(len(attempts), 1)
    left = (len(buckets) - len(done) - shares) * tokens
    rate = sum(worker.info.tokens_per_second or 0.0 for worker in living)
    start = changed(run_note(results)) if alive else 0  # what is older is of an earlier run
    errors = failures(results, [model], start)
    failed_logs = {error.log for error in errors}
    lost = {log.stem for log in failed_logs if log.parent.name == "embed"} - running
    complete = bool(buckets) and done == buckets
    embed: Status = "failed" if lost else "at work" if running else "waits"
    # a step that has not said why did not end well either
    begun: Status = "at work" if alive or not run else "failed" if run.failure else "waits"

    def step(name: str, written: int, log: Path, since: int = 1) -> Step:
        if written >= since or changed(log) < max(since, start):
            return Step(name, "done" if written >= since else "waits")
        return Step(name, "failed" if log in failed_logs else begun, log)

    logs, newest = results / "logs" / model, max(map(changed, records.values()), default=0)
    steps = [
        step("weights", changed(folder / RECORD), logs / "weights.log"),
        step("sequences", since, results / "logs" / "deduplicate.log"),
        Step("embed", "done" if complete else embed),
    ]
    for name, pattern in (("gather", MASTERS), ("validate", PROOF), ("report", REPORT)):
        written, log = max(map(changed, folder.glob(pattern)), default=0), logs / f"{name}.log"
        if name == "validate":  # by hand, it leaves its record
            log = max(log, folder / VALIDATION, key=changed)
        # older than its input, it is not done
        before = steps[-1].status == "done"
        steps.append(step(name, written, log, newest) if before else Step(name, "waits"))
        newest = max(newest, written)
    stopped = {step.log for step in steps if step.status == "failed"}
    return Progress(
        folder,
        tuple(steps),
        len(buckets),
        len(done),
        len(running),
        len(buckets - done - running - lost),
        workers,
        tuple(error for error in errors if error.log in stopped or error.log.stem in lost),
        (len(done) + shares) / max(len(buckets), 1),
        rate,
        0.0 if complete else left / rate if left and rate else None,
    )


@lru_cache(1 << 15)
def _is_done(sequences: Path, store: Path, record: Path, *_: int) -> bool:
    """Tell whether a bucket is done; asked once while record and sequences do not change."""
    return is_done(sequences / "buckets" / f"{record.stem}.parquet", record, store)


def _attempts(beats: Iterable[Heartbeat]) -> dict[str, tuple[int, int]]:
    """Return the tokens that the last attempt at each unfinished bucket left done, and all of them.
    If that completed it, its record was deleted since: nothing counts.
    """
    attempts: dict[str, list[Heartbeat]] = {}
    for beat in beats:
        if beat.tokens_total and beat.node == 0:
            attempts[beat.bucket] = [beat]
        elif beat.tokens_total and beat.bucket in attempts:
            attempts[beat.bucket].append(beat)
    return {
        bucket: (sum(beat.tokens for beat in nodes), sum(beat.tokens_total or 0 for beat in nodes))
        for bucket, nodes in attempts.items()
        if nodes[0].outcome != "complete"
    }


def _workers(beats: Iterable[Heartbeat]) -> Iterator[Worker]:
    """Yield the workers of the last start of each job that has not ended, by bucket."""
    now = datetime.now(UTC)
    beats = [beat for beat in beats if not beat.ended]
    # the other nodes of a job start later than its first
    starts = {beat.bucket: beat.started for beat in beats if beat.node == 0}
    for beat in sorted(beats, key=lambda beat: beat.bucket):
        if beat.started < starts.get(beat.bucket, ""):
            continue
        for worker in beat.workers:
            progressed = datetime.fromisoformat(worker.progressed or now.isoformat())
            idle = (now - progressed).total_seconds() if worker.state == "computing" else 0.0
            stuck = "stuck" if idle > STUCK_SECONDS else ""
            yield Worker(beat, worker, "silent" if beat.age > SILENT_SECONDS else stuck)


def view(look: Look) -> RenderableType:
    """Return a look for a console, which cuts it at the height of a terminal."""
    return Group(*_lines(look), _table(look))


def _lines(look: Look) -> Iterator[RenderableType]:
    words = "at work" if look.at_work else WAITING if look.alive else "nothing is running"
    if look.finished:
        words = "finished: every step is done, and the result is validated"
    elif look.run and look.run.stopped:
        words = f"stopped; {words}"
    yield Text.assemble((str(look.results), "bold"), f"  {words}")
    if not look.models:
        begun = look.results.is_dir()
        yield Text("Nothing has begun yet." if begun else "There is no such folder yet.")
    for model in look.models:
        marks = [(_MARKS[step.status], step.name) for step in model.steps]
        steps = Text(" ").join(Text(mark + name, style) for (mark, style), name in marks)
        yield Text.assemble((model.folder.name, "bold"), "  ", steps)
        if not model.finished:
            yield from _present_step(model, WAITING if look.alive else "")
    errors = dict.fromkeys(failure for model in look.models for failure in model.failures)
    for first, others in alike(errors or look.failure):
        yield Text.assemble(("FAILED ", "bold red"), (str(first.log), "bold"), others)
        yield Text("  " + first.reason.replace("\n", "\n  "))
    if look.run and look.alive and (reasons := failed_attempts(look.run)):
        yield Text(f"{count(len(reasons), 'attempt')} failed; the last: {reasons[-1]}")
    if advice := _advice(look):
        yield Text(advice)


def _advice(look: Look) -> str:
    """Return what to do next, or whom to ask; '' while a run is at work."""
    rerun = "rerun the same command to continue; finished work is kept"
    if look.finished:
        return f"next: {program()} summary {look.results}"
    if look.at_work or not look.models or (look.run and look.run.killed):  # which says what to do
        return ""
    if look.run and look.alive:
        return f"Snakemake has not ended: {look.run.process}"
    if look.failed:
        return f"next: {AGAIN}"
    if look.run and look.run.stopped:
        return f"next: {rerun}"
    locked = "If Snakemake says that the folder is locked, give the command with --unlock first"
    return f"next: if the run has ended, {rerun}. {locked}"


def _present_step(model: Progress, waiting: str) -> Iterator[RenderableType]:
    """Yield a bar and numbers while buckets are embedded, else a line about the present step.

    waiting: said of what has not begun, where a run goes on.
    """
    order = ("failed", "at work", "waits", "done")
    step = min(model.steps, key=lambda step: order.index(step.status))
    if not model.buckets or step.name != "embed":
        waits = f"is {waiting}" if waiting else "has not begun"
        words = {"failed": "failed", "at work": "is at work"}.get(step.status, waits)
        yield Text(f"{step.name} {words}")
        return
    bar = Table.grid(expand=True)
    bar.add_row(ProgressBar(total=1.0, completed=model.fraction))
    yield bar
    percent = int(1000 * model.fraction) / 10  # 100 is the end
    text = Text(f"{percent:.1f} %; {model.done:,} of {count(model.buckets, 'bucket')} done, ")
    text.append(f"{model.running:,} at work, {model.queued:,} queued")
    if model.failures:
        text.append(f", {len(model.failures):,} failed", style="bold red")
    if stalled := sum(bool(worker.trouble) for worker in model.workers):
        text.append(f", {count(stalled, 'worker')} stalled", style="bold red")
    if model.eta is not None:
        end = datetime.now() + timedelta(seconds=model.eta)
        speed = f"{model.tokens_per_second:,.0f} tokens/s"
        text.append(f"; {speed}, about {duration(model.eta)} left, until {end:%a %H:%M}")
    elif model.running:
        text.append("; no speed known yet")
    else:
        text.append(f"; {waiting or 'no worker is running'}")
    yield text


def _table(look: Look) -> Table:
    """Return the table of workers, those in trouble first."""
    workers = [(model.folder.name, worker) for model in look.models for worker in model.workers]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(workers))
    table.add_column("worker")
    for title in ("bucket", "done", "tokens/s", "left", "last sign"):
        table.add_column(title, justify="right")
    for model, worker in sorted(workers, key=lambda named: not named[1].trouble):
        job, info = worker.job, worker.info
        name = job.host if info.gpu is None else f"{job.host} GPU {info.gpu}"
        name += f" (job {job.job.partition('.')[0]})" if job.job else ""
        rate, eta = info.tokens_per_second, job.eta_seconds
        table.add_row(
            f"{name}, {model}" if len(look.models) > 1 else name,
            job.bucket,
            "loading" if rate is None else f"{100 * job.fraction:.0f} %",
            "" if rate is None else f"{rate:,.0f}",
            "" if eta is None else duration(eta),
            f"{duration(job.age)} ago {worker.trouble.upper()}".rstrip(),
            style="bold red" if worker.trouble else "",
        )
    return table
