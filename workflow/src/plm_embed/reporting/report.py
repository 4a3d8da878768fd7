"""The report: one HTML file that stands by itself, offline, about a campaign that is finished or
under way.
"""

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from plm_embed._version import __version__
from plm_embed.fingerprint import POOLING_DEFINITIONS
from plm_embed.io.files import atomic_path, size
from plm_embed.io.terminal import printable
from plm_embed.jobs.completion_record import savings
from plm_embed.jobs.heartbeat import Heartbeat
from plm_embed.master.validation_record import Counts
from plm_embed.models.registry import tokens as tokens_of
from plm_embed.reporting import charts, repeat
from plm_embed.reporting.citing import checksums, citation, methods, provenance
from plm_embed.reporting.facts import LISTED, Facts
from plm_embed.reporting.failures import failures
from plm_embed.reporting.outputs import CRATE, REPORT, outputs, reader
from plm_embed.reporting.skipped import NAME as SKIPPED
from plm_embed.wording import duration, in_python, readable

STANDINGS = {
    "passed": "✓ complete and validated",
    "failed": "✗ validation failed",
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


def write_report(facts: Facts, output: Path) -> None:
    """Write the report."""
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
    style, script = (
        Markup(Path(__file__).with_name(name).read_text(encoding="utf-8"))
        for name in ("report.css", "report.js")
    )
    page = environment.get_template("report.html.j2").render(
        _content(facts), style=style, script=script
    )
    with atomic_path(output) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _content(facts: Facts) -> dict[str, Any]:
    """Return everything that the template names."""
    status, summary = standing(facts), facts.summary
    counts = _outcomes(facts)
    begun = bool(facts.runs or facts.attempts)
    return {
        "facts": facts,
        "readable": readable,
        "title": f"{facts.model} embeddings" if facts.model else "Embeddings",
        "subtitle": _subtitle(facts),
        "status": status,
        "status_words": STANDINGS[status],
        "caveat": facts.caveat if facts.runs else "",
        "sections": [(name.lower(), name) for name in SECTIONS],
        "cards": list(_cards(facts)),
        "answers": list(answers(facts)),
        "opening": opening(facts),
        "commands": commands(facts),
        "search": f"plm-embed search {shlex.quote(str(facts.folder))} --id ",
        "no_map": "Too few pooled vectors for a map." if facts.metadata else "No master file yet.",
        "norms": charts.norms(facts.map.norms) if facts.map else None,
        "norm_words": _norm_words(facts),
        "unusual": facts.norms.listed[:LISTED] if facts.norms else (),
        "repeats": _repeats(facts),
        "lengths": charts.lengths(summary.lengths) if summary and summary.lengths else None,
        "outcomes": counts,
        "most": max(counts.values(), default=0) or 1,
        "skipped_words": _skipped_words(facts, counts),
        "events": {
            EVENTS.get(name, name.replace("_", " ")): count
            for name, count in sorted(summary.events.items() if summary else ())
        },
        "devices": list(_devices(facts)),
        "effort": list(_effort(facts)) if begun else [],
        "failures": _failures(facts),
        "timeline": charts.timeline(facts.runs, facts.attempts),
        "validation_words": _validation_words(facts),
        "files": list(_files(facts)),
        "settings": list(_settings(facts)),
        "config": repeat.kept_config(facts.folder),
        "command": repeat.command(
            facts.folder, facts.attempts, any(run.worker.capability for run in facts.runs)
        ),
        "command_lacks": repeat.lacks(facts.attempts),
        "versions": repeat.versions(facts.metadata),
        "provenance": list(provenance(facts)),
        "checksums": list(checksums(facts)),
        "methods": methods(facts),
        "citation": citation(facts),
        "version": __version__,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def standing(facts: Facts) -> str:
    """Return a key of STANDINGS."""
    return facts.validation.status if facts.validation else "pending"


def _subtitle(facts: Facts) -> str:
    if not facts.summary:
        return f"{facts.results}"
    sources = len(facts.summary.inputs)
    files = "1 file" if sources == 1 else f"{sources} files"
    return (
        f"{facts.summary.records:,} records from {files}, "
        f"{facts.summary.unique:,} distinct sequences"
    )


def _cards(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield numbers and what they count."""
    if facts.summary:
        yield f"{facts.summary.records:,}", "records"
        yield f"{facts.summary.unique:,}", "distinct sequences"
        yield f"{sum(facts.summary.skipped.values()):,}", "skipped when read"
    if facts.rows:
        yield f"{facts.rows:,}", f"vectors, {facts.dim:,} wide"
    if facts.runs:
        yield duration(sum(run.seconds * len(run.workers) for run in facts.runs)), "device time"
        yield readable(sum(facts.sizes.values())), "on disk"


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
    if facts.metadata and facts.master:
        master_size = f"({readable(facts.sizes['master'])})"
        yield Answer("Where is it?", master_size, "files", "All files", str(facts.master))
    yield Answer("What now?", *_next(facts))


def _complete(facts: Facts) -> tuple[str, str, str]:
    if facts.outdated:
        return "No: the input has changed since these vectors were gathered.", "input", "Input"
    counts = facts.validation.counts if facts.validation else Counts()
    if counts.statuses and counts.records is not None:
        skipped = counts.statuses.get("skipped", 0)
        start = "Yes: " if standing(facts) == "passed" else "According to the records, "
        if not skipped:
            return f"{start}all {counts.records:,} records have a vector.", "input", "Input"
        embedded = f"{counts.records - skipped:,} of {counts.records:,} records have a vector"
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
    failed = [check.check for check in validation.checks if check.result == "failed"]
    if failed:
        return (
            f"No: {len(failed)} of {len(validation.checks)} checks failed ({', '.join(failed)}). "
            "Do not use these vectors."
        )
    spots = len(validation.spot_checks)
    again = f", and {spots:,} vectors agree with {facts.reference}" if spots else ""
    return f"Yes: all {len(validation.checks)} checks passed{again}."


def _next(facts: Facts) -> tuple[str, str, str]:
    if standing(facts) == "passed":
        return "Open the vectors, search them, export them.", "methods", "Methods for a paper"
    if standing(facts) == "failed":
        text = "Fix what the checks name, then rerun the same command."
        return text, "validation", "Failed checks"
    if failed := failures(facts.results, [facts.model] if facts.model else []):
        text = (
            f"A step failed: {failed[-1].reason} ({failed[-1].log}). Fix the problem and rerun "
            "the same command; finished work is kept."
        )
        return text, "computation", "Computation"
    text = "Wait while the run is at work. If it ended, rerun the same command."
    return text, "computation", "Computation"


def opening(facts: Facts) -> str:
    """Return lines of Python that read the vectors; '' while there are none, and for wrong ones."""
    if not facts.metadata or standing(facts) == "failed":
        return ""
    example = repr(facts.example or "an id")
    method = reader(facts.names)
    argument = f"[{example}]" if method == "get" else example
    opened = f"vectors = plm_embed.open({in_python(facts.folder)})"
    return f"import plm_embed\n{opened}\nvectors.{method}({argument})"


def commands(facts: Facts) -> str:
    """Return lines for a shell: common uses of a result, or the way to one."""
    folder = shlex.quote(str(facts.folder))
    if standing(facts) == "pending":
        return f"plm-embed watch {shlex.quote(str(facts.results))}"
    if standing(facts) == "failed" or reader(facts.names) != "get":
        return f"plm-embed summary {folder}"
    lines = [f"plm-embed export {folder} vectors.parquet --to parquet"]
    if facts.example:
        lines.insert(0, f"plm-embed search {folder} --id {shlex.quote(facts.example)}")
    return "\n".join(lines)


def _norm_words(facts: Facts) -> str:
    norms = facts.norms
    if not norms:
        return "Of the vectors on the map; validation looks at every vector."
    if not norms.rows:
        return "No vectors: every record was skipped."
    return (
        f"All {norms.rows:,} vectors: smallest norm {norms.min:.4g}, median {norms.median:.4g}, "
        f"largest {norms.max:.4g}; {norms.outliers:,} unusual, {norms.zero:,} zero."
    )


def _repeats(facts: Facts) -> str:
    summary = facts.summary
    if not summary:
        return ""
    repeats = summary.accepted - summary.unique
    share = f"{100 * repeats / summary.accepted:.1f} %" if summary.accepted else "none"
    return (
        f"{summary.accepted:,} of {summary.records:,} records were accepted. {repeats:,} of them "
        f"({share}) repeat a sequence that was there already: each distinct sequence was embedded "
        "once."
    )


def _outcomes(facts: Facts) -> dict[str, int]:
    """Return the number of records by outcome: as validated, or as they were read."""
    if not facts.summary:
        return {}
    counts = facts.validation.counts if facts.validation else Counts()
    if not counts.statuses:
        kept, skipped = {"accepted": facts.summary.accepted}, facts.summary.skipped
    else:
        names = {"embedded_with_events": "embedded, with a remark"}
        kept = {
            names.get(name, name.replace("_", " ")): count
            for name, count in counts.statuses.items()
            if name != "skipped"
        }
        skipped = counts.skipped or {}
    return kept | {
        f"skipped: {reason.replace('_', ' ')}": count for reason, count in skipped.items()
    }


def _skipped_words(facts: Facts, outcomes: dict[str, int]) -> str:
    total = sum(count for name, count in outcomes.items() if name.startswith("skipped"))
    first = "" if total == len(facts.skipped) else f"The first {len(facts.skipped)} of {total:,}. "
    return first + (f"{SKIPPED} has them all." if (facts.folder / SKIPPED).is_file() else "")


def _devices(facts: Facts) -> Iterator[dict[str, str]]:
    """Yield a table row for each kind of device."""
    for device in sorted({run.worker.device for run in facts.runs}):
        runs = [run for run in facts.runs if run.worker.device == device]
        speeds = sorted(run.tokens_per_second for run in runs if run.tokens_per_second)
        seconds = sum(run.tokens / run.tokens_per_second for run in runs if run.tokens_per_second)
        busy = sum(run.busy_seconds for run in runs)
        row = {
            "device": device,
            "buckets": f"{len(runs):,}",
            "sequences": f"{sum(run.computed for run in runs):,}",
            "tokens": f"{sum(run.tokens for run in runs):,}",
            "device time": duration(sum(run.seconds * len(run.workers) for run in runs)),
        }
        if speeds:
            row["tokens/s of a worker"] = f"{sum(run.tokens for run in runs) / seconds:,.0f}"
            row["slowest to fastest bucket"] = f"{speeds[0]:,.0f} to {speeds[-1]:,.0f}"
            row["busy"] = f"{100 * busy / seconds:.0f} %"
        yield row


def _effort(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield names and values of what the campaign took."""
    runs, summary = facts.runs, facts.summary
    total = summary.buckets if summary else len(runs)
    yield "buckets", f"{len(runs):,} of {total:,} are finished"
    jobs = [attempt for attempt in facts.attempts if attempt.node == 0]
    outcomes = Counter(attempt.outcome for attempt in jobs)
    if jobs:
        text = _count(len({job.bucket for job in jobs}), "job")
        text += f", {_count(len(jobs), 'start')}"
        text += f", {outcomes['failed']:,} failed" if outcomes["failed"] else ""
        yield "jobs", text + (f", {outcomes['no end']:,} killed" if outcomes["no end"] else "")
    lost = sum(one.device_seconds for one in facts.attempts if one.outcome == "failed")
    if lost:
        yield "failed attempts", f"{duration(lost)} of device time; their finished parts were kept"
    joules = [one.joules for one in facts.attempts if one.joules is not None]
    if joules:
        part = ""
        if len(joules) < len(facts.attempts):
            part = f" in {len(joules):,} of {len(facts.attempts):,} attempts"
        yield "energy", f"{sum(joules) / 3.6e6:,.3g} kWh, by the counters of the GPUs{part}"
    if saved := savings(runs):
        yield "not computed again", saved
    skipped = sum(len(run.skipped) for run in runs)
    if skipped:
        yield "sequences without a vector", f"{skipped:,}"
    repeats = summary.accepted - summary.unique if summary else 0
    timed = [run for run in runs if run.tokens_per_second]
    if repeats and summary:
        text = f"{repeats:,} records"
        if timed and summary.residues:
            # an estimate by the mean length of the distinct sequences
            tokens = repeats * tokens_of(facts.model, summary.residues, summary.unique)
            rate = sum(run.tokens_per_second or 0 for run in timed) / len(timed)
            text += f" (about {duration(tokens / summary.unique / rate)} of device time)"
        yield "repeats, embedded once", text


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _failures(facts: Facts) -> list[tuple[str, str, str, str]]:
    """Return the last attempts that did not complete: bucket, start, place and reason."""
    finished = {run.bucket for run in facts.runs}

    def reason(attempt: Heartbeat) -> str:
        if attempt.outcome == "failed":
            return attempt.reason
        if attempt.bucket in finished:
            return "killed (time limit, out of memory or canceled)"
        return "no end: killed, or still at work"

    return [
        (
            attempt.bucket,
            attempt.started[:19].replace("T", " "),
            f"{attempt.host}, job {attempt.job}" if attempt.job else attempt.host,
            reason(attempt),
        )
        for attempt in facts.attempts
        if attempt.outcome != "complete"
    ][-LISTED:]


def _validation_words(facts: Facts) -> str:
    validation = facts.validation
    if not validation:
        return ""
    spots = validation.spot_checks
    text = (
        f"{len(validation.checks)} checks, each over every row; "
        f"{len(spots)} vectors computed again by {facts.reference}"
    )
    if spots:
        text += f", all within cosine {min(spot.cosine for spot in spots):.8f}"
    return f"{text}." + (f" Note: {validation.rounding}." if validation.rounding else "")


def _files(facts: Facts) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, size, content, and how to open it."""
    for file in outputs(facts.folder, facts.master):
        known = file.name not in (REPORT, CRATE)  # these are being written
        yield file.name, readable(size(file.path)) if known else "", file.what, file.opening


def _settings(facts: Facts) -> Iterator[tuple[str, str]]:
    yield "results", str(facts.folder)
    yield "model", facts.model
    if facts.runs:
        yield "weights", facts.caveat or "the published file, by its SHA-256"
        if facts.license:
            yield "license of the weights", facts.license
    fingerprint = facts.fingerprint
    if fingerprint:
        long = fingerprint.long_sequences
        yield "layers", ", ".join(map(str, fingerprint.layers))
        for pooling in fingerprint.pooling:
            yield f"pooling: {pooling}", POOLING_DEFINITIONS[pooling]
        limit = f", at most {long.max_residues:,} residues" if long.max_residues else ""
        overlap = f", {long.overlap:,} shared" if long.overlap else ""
        yield "long sequences", f"{long.policy}{limit}{overlap}"
        if fingerprint.strand == "canonical":
            yield "strand", "a sequence and its reverse complement are one"
        yield (
            "precision",
            f"computed in {fingerprint.compute_dtype}, stored as {fingerprint.storage_dtype}",
        )
    if facts.summary:
        yield "kept columns", ", ".join(facts.summary.keep) or "none"
        yield "buckets", f"{facts.summary.buckets:,}"
