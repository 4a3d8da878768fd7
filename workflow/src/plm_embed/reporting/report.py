"""The report: one HTML file that stands by itself, offline, about a campaign that is finished or
under way. The template lays out what is written here.
"""

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from plm_embed._version import __version__
from plm_embed.fingerprint import POOLING_DEFINITIONS
from plm_embed.io.files import atomic_path, size
from plm_embed.io.terminal import printable
from plm_embed.master.validation_record import Outlier
from plm_embed.reporting import charts
from plm_embed.reporting.citing import checksums, citation, methods, provenance, versions
from plm_embed.reporting.facts import Facts, savings
from plm_embed.reporting.failures import AGAIN, failures
from plm_embed.reporting.maps import first_records
from plm_embed.reporting.outputs import (
    CONFIG,
    CRATE,
    RECORDS,
    REPORT,
    SKIPPED,
    outputs,
    reader,
    skipped_records,
)
from plm_embed.wording import count, duration, readable
from plm_embed.workflow.call import shell_line
from plm_embed.workflow.resources import local_resources

STATUSES = {
    "passed": "✓ complete and validated",
    "failed": "✗ validation failed",
    "empty": "✗ no record has a vector",
    "pending": "not finished yet",
}
SECTIONS = (
    "Result",
    "Map",
    "Input",
    "Computation",
    "Validation",
    "Files",
    "Settings",
    "Provenance",
)
EVENTS = {"windowed": "embedded in overlapping windows", "cropped": "only the beginning embedded"}
"""Events of records whose letters did not change."""
LISTED = 20
"""Rows at most of a table that names records or attempts."""
Rows = Iterator[tuple[str, str]]


def write_report(facts: Facts, output: Path) -> None:
    """Write the report."""
    write_page("report.html.j2", output, facts=facts, **_content(facts))


def write_page(template: str, output: Path, **content: Any) -> None:
    """Write a page from a template of this package, with the style sheet and the script."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("plm_embed.reporting", ""),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
        # markup is of another type
        finalize=lambda value: (
            printable(str(value)) if type(value) is str or isinstance(value, Path) else value
        ),
    )
    environment.filters |= {"number": "{:,}".format, "readable": readable}
    style, script = (
        Markup(Path(__file__).with_name(name).read_text(encoding="utf-8"))
        for name in ("report.css", "report.js")
    )
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    page = environment.get_template(template).render(
        style=style, script=script, version=__version__, made=made, **content
    )
    with atomic_path(output) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _content(facts: Facts) -> dict[str, Any]:
    """Return everything that the template names besides the facts."""
    summary, config = facts.summary, facts.folder / CONFIG
    places = (facts.folder / RECORDS, facts.results / "sequences" / RECORDS)
    records = next(filter(Path.is_file, places), None)
    return {
        "title": f"{facts.model} embeddings" if facts.model else "Embeddings",
        "status": STATUSES[facts.status],
        "sections": SECTIONS,
        "answers": list(answers(facts)),
        "commands": commands(facts),
        "search": f"plm-embed search {shlex.quote(str(facts.folder))} --id ",
        "cards": list(_cards(facts)),
        "norms": charts.norms(facts.map.norms) if facts.map else None,
        "unusual": list(_unusual(facts)),
        "lengths": charts.lengths(summary.lengths) if summary and summary.lengths else None,
        "outcomes": _outcomes(facts),
        "skipped": list(islice(skipped_records(records), LISTED)) if records else [],
        "all_skipped": SKIPPED if (facts.folder / SKIPPED).is_file() else "",
        "events": EVENTS,
        "devices": list(_devices(facts)),
        "effort": list(_effort(facts)),
        "attempts": list(_unfinished_attempts(facts))[-LISTED:],
        "timeline": charts.timeline(facts.runs, facts.attempts),
        "cosine": min((s.cosine for s in facts.validation.spot_checks), default=None)
        if facts.validation
        else None,
        # the report and the crate are being written
        "files": [
            (file, size(file.path) if file.path.name not in (REPORT, CRATE) else None)
            for file in outputs(facts.folder, facts.master)
        ],
        "settings": list(_settings(facts)),
        "config": config.read_text("utf-8", "replace") if config.is_file() else "",
        "command": command(facts),
        "scheduled": any(attempt.job for attempt in facts.attempts),
        "versions": versions(facts),
        "provenance": list(provenance(facts)),
        "checksums": list(checksums(facts)),
        "methods": methods(facts),
        "citation": citation(facts),
    }


@dataclass(frozen=True)
class Answer:
    """A question, its answer (after a path where it is one), and a link to the part of the page
    that has more.
    """

    question: str
    answer: str
    section: str
    more: str
    path: str = ""


def answers(facts: Facts) -> Iterator[Answer]:
    """Yield the questions that people ask first."""
    yield Answer("Is it complete?", *_complete(facts))
    yield Answer("Is it right?", _right(facts), "validation", "All checks")
    if facts.master:
        master_size = f"({readable(facts.sizes['master'])})"
        yield Answer("Where is it?", master_size, "files", "All files", str(facts.master))
    yield Answer("What now?", *_next(facts))


def _complete(facts: Facts) -> tuple[str, str, str]:
    if facts.outdated:
        return "No: the input has changed since these vectors were gathered.", "input", "Input"
    if facts.without_vectors:
        return facts.without_vectors, "skipped", "Which, and why"
    if facts.validation and facts.statuses:
        records, skipped = facts.statuses.total(), facts.statuses["skipped"]
        start = "Yes: " if facts.status == "passed" else "According to the records, "
        if not skipped:
            return f"{start}all {records:,} records have a vector.", "input", "Input"
        embedded = f"{records - skipped:,} of {records:,} records have a vector"
        verb = "1 was skipped" if skipped == 1 else f"{skipped:,} were skipped"
        return f"{start}{embedded}, and {verb}.", "skipped", "Which, and why"
    if not facts.summary:
        return "Not yet: the sequences are being read.", "input", "Input"
    done, total = len(facts.runs), facts.summary.buckets
    text = "Every bucket is finished, but the vectors are not validated yet."
    if done < total:
        text = f"Not yet: {done:,} of {total:,} buckets are finished."
    return text, "computation", "Computation"


def _right(facts: Facts) -> str:
    validation = facts.validation
    if not validation:
        return "Not known yet: validation comes last."
    if failed := [check.check for check in validation.checks if check.result == "failed"]:
        return (
            f"No: {len(failed)} of {len(validation.checks)} checks failed ({', '.join(failed)}). "
            "Do not use these vectors."
        )
    spots = len(validation.spot_checks)
    again = f", and {spots:,} vectors agree with {facts.reference}" if spots else ""
    return f"Yes: all {len(validation.checks)} checks passed{again}."


def _next(facts: Facts) -> tuple[str, str, str]:
    if facts.status == "passed":
        return "Open the vectors, search them, export them.", "methods", "Methods for a paper"
    if facts.status == "empty":
        text = "Fix the input, or name its columns, then run again."
        return text, "input", "Input"
    if facts.status == "failed":
        text = "Fix what the checks name, then rerun the same command."
        return text, "validation", "Failed checks"
    if failed := failures(facts.results, [facts.model]):
        text = f"A step failed: {failed[-1].reason} ({failed[-1].log}). {AGAIN}"
        return text, "computation", "Computation"
    text = "Wait while the run is at work. If it ended, rerun the same command."
    return text, "computation", "Computation"


def commands(facts: Facts) -> str:
    """Return lines for a shell: common uses of a result, or the way to one."""
    folder = shlex.quote(str(facts.folder))
    if facts.status == "pending":
        return f"plm-embed watch {shlex.quote(str(facts.results))}"
    if facts.status in {"failed", "empty"} or reader(facts.names) != "get":
        return f"plm-embed summary {folder}"
    export = f"plm-embed export {folder} vectors.parquet --to parquet"
    if not facts.example:
        return export
    return f"plm-embed search {folder} --id {shlex.quote(facts.example)}\n{export}"


def command(facts: Facts) -> str:
    """Return the command that runs the campaign again; no record names a cluster's profile."""
    words = ["--configfile", str(facts.folder / CONFIG), "--cores", "all"]
    last = facts.attempts[-1] if facts.attempts else None
    on_gpus = any(run.worker.capability for run in facts.runs)
    return shell_line([
        *words, *local_resources(len(last.workers) if on_gpus and last and not last.job else 0)
    ])  # fmt: skip


def _cards(facts: Facts) -> Rows:
    """Yield numbers and their nouns."""
    if facts.summary:
        yield f"{facts.summary.records:,}", "records"
        yield f"{facts.summary.unique:,}", "distinct sequences"
        yield f"{sum(facts.summary.skipped.values()):,}", "skipped when read"
    if facts.rows:
        yield f"{facts.rows:,}", f"vectors, {facts.dim:,} wide"
    if facts.runs:
        yield duration(sum(run.seconds * len(run.workers) for run in facts.runs)), "device time"
        yield readable(sum(facts.sizes.values())), "on disk"


def _outcomes(facts: Facts) -> dict[str, int]:
    """Return the number of records by outcome: as gathered, or as they were read."""
    if not facts.summary:
        return {}
    statuses, reasons = {"accepted": facts.summary.accepted}, facts.summary.skipped
    if facts.statuses:
        names = {"embedded": "embedded", "embedded_with_events": "embedded, with an event"}
        statuses = {word: facts.statuses[n] for n, word in names.items() if facts.statuses[n]}
        reasons = facts.reasons
    return statuses | {f"skipped: {name.replace('_', ' ')}": n for name, n in reasons.items()}


def _unusual(facts: Facts) -> Iterator[tuple[str, Outlier]]:
    """Yield the first vectors with unusual norms, each with the id of its first record."""
    outliers = facts.norms.listed[:LISTED] if facts.norms else ()
    if facts.master and outliers:
        index, rows = facts.master.with_suffix(".parquet"), [outlier.row for outlier in outliers]
        table = first_records(index, rows)
        ids = dict(zip(table["row"].to_pylist(), table["id"].to_pylist(), strict=True))
        for outlier in outliers:
            yield ids.get(outlier.row) or "", outlier


def _devices(facts: Facts) -> Iterator[dict[str, str]]:
    """Yield a table row for each kind of device."""
    for device in sorted({run.worker.device for run in facts.runs}):
        runs = [run for run in facts.runs if run.worker.device == device]
        speeds = sorted(run.tokens_per_second for run in runs if run.tokens_per_second)
        seconds = sum(run.tokens / run.tokens_per_second for run in runs if run.tokens_per_second)
        row = {
            "device": device,
            "buckets": f"{len(runs):,}",
            "sequences": f"{sum(run.computed for run in runs):,}",
            "tokens": f"{sum(run.tokens for run in runs):,}",
            "device time": duration(sum(run.seconds * len(run.workers) for run in runs)),
        }
        if speeds:
            row["tokens/s"] = f"{sum(run.tokens for run in runs) / seconds:,.0f}"
            row["by bucket"] = f"{speeds[0]:,.0f} to {speeds[-1]:,.0f}"
        yield row


def _effort(facts: Facts) -> Rows:
    """Yield names and values of what the campaign took."""
    runs, summary, attempts = facts.runs, facts.summary, facts.attempts
    if not runs and not attempts:
        return
    yield "buckets", f"{len(runs):,} of {summary.buckets if summary else len(runs):,} are finished"
    jobs = [attempt for attempt in attempts if attempt.node == 0]
    outcomes = Counter(attempt.outcome for attempt in jobs)
    if jobs:
        text = count(len({job.bucket for job in jobs}), "job")
        text += f", {count(len(jobs), 'start')}"
        text += f", {outcomes['failed']:,} failed" if outcomes["failed"] else ""
        yield "jobs", text + (f", {outcomes['no end']:,} killed" if outcomes["no end"] else "")
    if lost := sum(job.device_seconds for job in attempts if job.outcome == "failed"):
        yield "failed attempts", f"{duration(lost)} of device time; their finished parts were kept"
    if saved := savings(runs):
        yield "reused", saved
    if skipped := sum(len(run.skipped) for run in runs):
        yield "sequences without a vector", f"{skipped:,}"


def _unfinished_attempts(facts: Facts) -> Iterator[tuple[str, str, str, str]]:
    """Yield the attempts that did not complete: bucket, start, place and reason."""
    finished = {run.bucket for run in facts.runs}
    for attempt in facts.attempts:
        if attempt.outcome != "complete":
            reason = "no end: killed, or still at work"
            if attempt.bucket in finished:
                reason = "killed (time limit, out of memory or canceled)"
            if attempt.outcome == "failed":
                reason = attempt.reason
            place = f"{attempt.host}, job {attempt.job}" if attempt.job else attempt.host
            yield attempt.bucket, attempt.started[:19].replace("T", " "), place, reason


def _settings(facts: Facts) -> Rows:
    yield "results", str(facts.results)
    yield "model", facts.model
    if fingerprint := facts.fingerprint:
        yield "weights", facts.caveat or "the published file, by its SHA-256"
        if facts.license:
            yield "license of the weights", facts.license
        long = fingerprint.long_sequences
        yield "layers", ", ".join(map(str, fingerprint.layers))
        for pooling in fingerprint.pooling:
            yield f"pooling: {pooling}", POOLING_DEFINITIONS[pooling]
        limit = f", at most {long.max_residues:,} residues" if long.max_residues else ""
        overlap = f", {long.overlap:,} shared" if long.overlap else ""
        yield "long sequences", f"{long.policy}{limit}{overlap}"
        if fingerprint.strand == "canonical":
            yield "strand", "a sequence and its reverse complement are one"
        computed = f"computed in {fingerprint.compute_dtype}"
        yield "precision", f"{computed}, stored as {fingerprint.storage_dtype}"
    if facts.summary:
        yield "kept columns", ", ".join(facts.summary.keep) or "none"
        yield "buckets", f"{facts.summary.buckets:,}"
