"""`plm-embed watch`: a campaign on a terminal, or as plain text in a log.

Only small files of the results folder are read: completion records, heartbeats, the ends of logs.
"""

import math
import os
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
from rich.table import Column, Table
from rich.text import Text

from plm_embed.io.files import whole_files
from plm_embed.io.terminal import terminal
from plm_embed.jobs.completion_record import FOLDER as RECORDS
from plm_embed.jobs.completion_record import WorkerInfo, is_done, store_of
from plm_embed.jobs.heartbeat import SILENT_SECONDS, Heartbeat, heartbeats
from plm_embed.keys import bucket_names
from plm_embed.master.validation_record import PROOF
from plm_embed.models.weights import RECORD
from plm_embed.reading.open import MASTERS
from plm_embed.reporting.facts import model_folders
from plm_embed.reporting.failures import AGAIN, Failure, alike, changed, failures, run_failure
from plm_embed.reporting.outputs import CONFIG, REPORT
from plm_embed.sequences.summary import SUMMARY, known_summary
from plm_embed.startup import program
from plm_embed.wording import count, duration
from plm_embed.workflow.run_note import Run, failed_attempts, read_run, run_note

SECONDS_BETWEEN_LOOKS = 10.0
"""Workers write their heartbeats as often."""
LOOKS_FOR_A_START = 7
"""Looks at a run that has ended: one that was just started notes itself after it has planned."""
STUCK_SECONDS = 1200.0
"""A worker that finishes no batch for longer may sit on a broken device."""
CONTINUE = "if the run has ended, rerun the same command; if it is locked, with --unlock first"
VALID, FAILED, UNFINISHED = 0, 1, 3
Status = Literal["done", "at work", "failed", "waits"]
_MARKS: dict[Status, tuple[str, str]] = {
    "done": ("✓", "green"),
    "at work": ("▶", "bold cyan"),
    "failed": ("✗", "bold red"),
    "waits": ("·", "dim"),
}


class Worker(NamedTuple):
    """A worker, its job, and its trouble: silent, stuck or ''."""

    job: Heartbeat
    info: WorkerInfo
    trouble: str


@dataclass(frozen=True)
class Progress:
    """The progress of one model. steps: by name; buckets: all; fraction: of the work of embed, 0 to
    1, by buckets done and jobs at work; eta: seconds at the present speed, None if unknown.
    """

    folder: Path
    steps: dict[str, Status]
    buckets: int
    done: int
    running: int
    queued: int
    workers: list[Worker]
    failures: list[Failure]
    fraction: float
    tokens_per_second: float
    eta: float | None


@dataclass(frozen=True)
class Look:
    """A results folder at one moment. run: the last of Snakemake, None where none was noted; alive:
    whether it goes on; failures: of steps that have not begun again, else of a run that has ended.
    at_work: a worker lives, or a step writes to its log; over: nothing more will come; finished:
    every step is done, and the run has ended.
    """

    results: Path
    models: list[Progress]
    run: Run | None
    alive: bool
    failures: list[Failure]
    at_work: bool
    over: bool
    finished: bool


def watch(results: Path, *, once: bool) -> int:
    """Show the campaign of a results folder, or of a model's folder in it, until it is over or
    Ctrl-C; where none runs, for a minute, since one may just have been started. With `once`, print
    one look at it as plain text, as without a terminal whenever a step has changed. Return the exit
    code: VALID, FAILED or UNFINISHED.
    """
    if model_folders(results) == [results]:
        results = Path(os.path.normpath(results / ".."))
    console = terminal()
    live = Live(console=console, auto_refresh=False) if console.is_terminal and not once else None
    console = console if live else terminal(width=120, no_color=True, highlight=False)
    steps, looks_left = None, LOOKS_FOR_A_START
    with live or nullcontext(), suppress(KeyboardInterrupt):
        while True:
            present, before = look(results), steps
            looks_left = 0 if once or present.alive else looks_left - 1
            # `plm-embed run` writes the configuration before Snakemake plans and notes the run
            starting = changed(results / CONFIG) > changed(run_note(results))
            waits = present.over and looks_left > 0 and (starting or not present.finished)
            words = "Waiting a minute for a run to start; Ctrl-C ends this."
            lines = [view(present), *[Text(words)] * waits]
            steps = [present.over, *(model.steps for model in present.models)]
            if live:
                live.update(Group(*lines), refresh=True)
            elif steps != before:
                console.print(*lines, sep="\n", soft_wrap=True)  # whole paths
            if once or (present.over and not waits):
                break
            time.sleep(SECONDS_BETWEEN_LOOKS)
    return VALID if present.finished else FAILED if present.failures else UNFINISHED


def look(results: Path) -> Look:
    """Read the state of a results folder, which need not be there yet: of each model of its last
    run, or where none was noted of each that has begun.
    """
    run = read_run(results)
    alive = bool(run and run.alive)
    begun = [*results.glob("logs/*/weights.log"), *results.glob(f"*/{RECORDS}")]
    names = run.models if run else {path.parent.name for path in begun}
    models = [_progress(results, name, run, alive) for name in sorted(names)]
    errors = list(dict.fromkeys(error for model in models for error in model.failures))
    steps = {status for model in models for status in model.steps.values()}
    at_work = "at work" in steps or any(model.running for model in models)
    over, finished = not alive and not at_work, not alive and steps == {"done"}
    errors = errors or run_failure(results)
    return Look(results, models, run, alive, errors, at_work, over, finished)


def _progress(results: Path, model: str, run: Run | None, alive: bool) -> Progress:
    folder, sequences = results / model, results / "sequences"
    summary, cut, store = known_summary(sequences), changed(sequences / SUMMARY), store_of(folder)
    buckets = set(bucket_names(summary.buckets)) if summary else set()
    records = {path: changed(path) for path in whole_files(folder / RECORDS, "*.json")}
    done = {
        path.stem
        for path, time in records.items()
        if path.stem in buckets and _is_done(sequences, store, path, time, cut)
    }
    complete = bool(buckets) and done == buckets

    workers = [] if run and run.ended else list(_workers(heartbeats(folder, done)))
    living = [worker for worker in workers if not worker.trouble]
    running = {worker.job.bucket for worker in living}
    rate = sum(worker.info.tokens_per_second or 0.0 for worker in living)
    nodes = {(worker.job.bucket, worker.job.node): worker.job for worker in living}.values()
    measured = {node.bucket for node in nodes if node.tokens_total}
    # buckets are cut by hashes, so that all take about as many tokens
    tokens = sum(node.tokens_total or 0 for node in nodes) / max(len(measured), 1)
    shares = sum(node.tokens for node in nodes) / tokens if tokens else 0.0
    left = len(buckets) - len(done) - shares

    start = changed(run_note(results)) if alive else 0  # what is older is of an earlier run
    errors = failures(results, [model], start)
    failed_logs = {error.log for error in errors}
    lost = {log.stem for log in failed_logs if log.parent.name == "embed"} - running
    # a step that has not said why did not end well either
    silent: Status = "at work" if alive or not run else "failed" if run.failure else "waits"

    def status(log: Path, written: int, since: float = 1) -> Status:
        """Return the status of a step by the times of its log, its output and its input."""
        if written >= since:
            return "done"
        if changed(log) < max(since, start):
            return "waits"
        return "failed" if log in failed_logs else silent

    logs = results / "logs" / model
    steps: dict[str, Status] = {
        "weights": status(logs / "weights.log", changed(folder / RECORD)),
        "sequences": status(results / "logs" / "deduplicate.log", cut),
        "embed": "done" if complete else "failed" if lost else "at work" if running else "waits",
    }
    since = max(records.values(), default=0) if complete else math.inf
    for name, pattern in (("gather", MASTERS), ("validate", PROOF), ("report", REPORT)):
        written = max(map(changed, folder.glob(pattern)), default=0)
        steps[name] = status(logs / f"{name}.log", written, since)
        since = max(since, written) if steps[name] == "done" else math.inf
    stopped = {name for name, status in steps.items() if status == "failed"} | lost
    stopped |= {"deduplicate"} if "sequences" in stopped else set()
    return Progress(
        folder,
        steps,
        buckets=len(buckets),
        done=len(done),
        running=len(running),
        queued=len(buckets - done - running - lost),
        workers=workers,
        failures=[error for error in errors if error.log.stem in stopped],
        fraction=1 - left / max(len(buckets), 1),
        tokens_per_second=rate,
        eta=left * tokens / rate if tokens and rate else None,
    )


@lru_cache(1 << 15)
def _is_done(sequences: Path, store: Path, record: Path, *_: int) -> bool:
    """Tell whether a bucket is done; asked once while record and sequences do not change."""
    return is_done(sequences / "buckets" / f"{record.stem}.parquet", record, store)


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
    words = "at work" if look.at_work else "nothing is running"
    if look.run and look.alive and not look.at_work:
        queue = "queued or starting (on a cluster, see squeue --me)"
        words = "starting or between two steps" if look.run.local else queue
    elif look.finished:
        words = "finished: every step is done, and the result is validated"
    elif look.run and look.run.stopped:
        words = f"stopped; {words}"
    lines: list[RenderableType] = [Text.assemble((str(look.results), "bold"), f"  {words}")]
    if not look.models:
        begun = "Nothing has begun." if look.results.is_dir() else "There is no such folder."
        lines.append(Text(begun))
    for model in look.models:
        marks = [(*_MARKS[status], name) for name, status in model.steps.items()]
        steps = Text(" ").join(Text(mark + name, style) for mark, style, name in marks)
        lines.append(Text.assemble((model.folder.name, "bold"), "  ", steps))
        if model.done < model.buckets and model.steps["weights"] != "failed":
            lines += _embedding(model, "left" if look.over else "queued")
    for first, similar in alike(look.failures):
        lines.append(Text.assemble(("FAILED ", "bold red"), (str(first.log), "bold"), similar))
        lines.append(Text("  " + first.reason.replace("\n", "\n  ")))
    if look.run and look.alive and (reasons := failed_attempts(look.run)):
        lines.append(Text(f"{count(len(reasons), 'attempt')} failed; the last: {reasons[-1]}"))
    if look.finished:
        lines.append(Text(f"next: {program()} summary {look.results}"))
    elif look.run and look.alive and not look.at_work and look.models:
        host, pid = look.run.host.partition(" ")[0], look.run.pid
        lines.append(Text(f"Snakemake has not ended: process {pid} on {host}"))
    # the failure of a killed run says what to do
    elif look.over and look.models and not (look.run and look.run.killed):
        lines.append(Text(f"next: {AGAIN if look.failures else CONTINUE}"))
    return Group(*lines, _table(look))


def _embedding(model: Progress, waiting: str) -> Iterator[RenderableType]:
    """Yield a bar and a line about the buckets of a model, with a word for those that wait."""
    bar = Table.grid(expand=True)
    bar.add_row(ProgressBar(total=1.0, completed=model.fraction))
    yield bar
    percent = int(1000 * model.fraction) / 10  # 100 is the end
    text = Text(f"{percent:.1f} %; {model.done:,} of {model.buckets:,} buckets done, ")
    text.append(f"{model.running:,} at work, {model.queued:,} {waiting}")
    if (failed := model.buckets - model.done - model.running - model.queued) > 0:
        text.append(f", {failed:,} failed", style="bold red")
    if stalled := sum(bool(worker.trouble) for worker in model.workers):
        text.append(f", {count(stalled, 'worker')} stalled", style="bold red")
    if model.eta is not None:
        end = datetime.now() + timedelta(seconds=model.eta)
        speed = f"{model.tokens_per_second:,.0f} tokens/s"
        text.append(f"; {speed}, about {duration(model.eta)} left, until {end:%a %H:%M}")
    yield text


def _table(look: Look) -> Table:
    """Return the table of workers, those in trouble first."""
    workers = [(model.folder.name, worker) for model in look.models for worker in model.workers]
    titles = "bucket", "done", "tokens/s", "left", "last sign"
    columns = [Column("worker"), *(Column(title, justify="right") for title in titles)]
    padding, header = (0, 2, 0, 0), bool(workers)
    table = Table(*columns, box=None, padding=padding, pad_edge=False, show_header=header)
    for model, (job, info, trouble) in sorted(workers, key=lambda named: not named[1].trouble):
        name = job.host if info.gpu is None else f"{job.host} GPU {info.gpu}"
        name += f" (job {job.job.partition('.')[0]})" if job.job else ""
        name += f", {model}" if len(look.models) > 1 else ""
        rate, eta = info.tokens_per_second, job.eta_seconds
        table.add_row(
            name,
            job.bucket,
            "loading" if rate is None else f"{100 * job.fraction:.0f} %",
            "" if rate is None else f"{rate:,.0f}",
            "" if eta is None else duration(eta),
            f"{duration(job.age)} ago {trouble.upper()}".rstrip(),
            style="bold red" if trouble else "",
        )
    return table
