"""The report: one HTML file that stands by itself, offline, about a campaign that is finished or
under way. The template lays out what is written here.
"""

import math
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from plm_embed._version import __version__
from plm_embed.io.files import atomic_path, size
from plm_embed.io.terminal import printable
from plm_embed.jobs.completion_record import store_of
from plm_embed.jobs.heartbeat import SILENT_SECONDS
from plm_embed.reading.open import Embeddings
from plm_embed.reporting.citing import citation, methods, provenance
from plm_embed.reporting.facts import Facts, device_time, reused, speed
from plm_embed.reporting.failures import AGAIN, failures
from plm_embed.reporting.maps import first_records, map_data
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
from plm_embed.wording import count, readable
from plm_embed.workflow.call import shell_line

STATUSES = {
    "passed": "✓ complete and validated",
    "failed": "✗ validation failed",
    "empty": "✗ no record has a vector",
    "pending": "not finished yet",
}
LISTED = 20
"""Rows at most of a table that names records or attempts."""
BINS, LABELS = 30, 6
"""Bars of the histogram of lengths, and those with a label below them, at most."""
Row = tuple[str, ...]


def write_report(facts: Facts, output: Path) -> None:
    """Write the report."""
    folder, summary, config = facts.folder, facts.summary, facts.folder / CONFIG
    lengths, bars = histogram(summary.lengths if summary else {})
    points, unusual = None, list[Row]()
    if facts.master:
        with Embeddings(facts.master) as embeddings:
            points = map_data(embeddings, folder / RECORDS)
            unusual = list(_unusual(facts, embeddings))
    write_page(
        "report.html.j2",
        output,
        f"{facts.model} embeddings",
        ("Result", "Map", "Input", "Computation", "Validation", "Files", "Settings", "Provenance"),
        search=f"plm-embed search {shlex.quote(str(folder))} --id ",
        facts=facts,
        status=STATUSES[facts.status],
        answers=list(answers(facts)),
        commands=commands(facts),
        map=points,
        unusual=unusual,
        inputs=list(_inputs(facts)),
        lengths=lengths,
        bars=bars,
        outcomes=_outcomes(facts),
        listed=LISTED,
        skipped=list(_skipped(facts)),
        all_skipped=SKIPPED if (folder / SKIPPED).is_file() else "",
        devices=list(_devices(facts)),
        reused=reused(facts.runs),
        attempts=list(_unfinished_attempts(facts)),
        files=list(_files(facts)),
        store=size(store_of(folder)),
        config=config.read_text("utf-8", "replace") if config.is_file() else "",
        command=shell_line(["--configfile", str(config), "--cores", "all"]),
        scheduled=any(attempt.job for attempt in facts.attempts),
        provenance=list(provenance(facts)),
        methods=methods(facts),
        citation=citation(facts),
    )


def write_page(
    template: str, output: Path, title: str, sections: Row, search: str = "", **content: Any
) -> None:
    """Write a page from a template of this package, with the style sheet and the script.

    search: the start of a command that looks in the files for a record that the page lacks.
    """
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
    environment.filters |= {"number": "{:,}".format, "readable": readable, "count": count}
    style, script = (
        Markup(Path(__file__).with_name(name).read_text(encoding="utf-8"))
        for name in ("report.css", "report.js")
    )
    content |= {"title": title, "sections": sections, "search": search, "version": __version__}
    time = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    page = environment.get_template(template).render(
        style=style, script=script, time=time, **content
    )
    with atomic_path(output) as temporary:
        temporary.write_text(page, encoding="utf-8")


def answers(facts: Facts) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the questions that people ask first, each with a path or '', the answer, and a part of
    the page that has more, with the text of the link to it.
    """
    yield "Is it complete?", "", *_complete(facts)
    yield "Is it right?", "", _right(facts), "validation", "All checks"
    if facts.master:
        master_size = f"({readable(size(facts.master))})"
        yield "Where is it?", str(facts.master), master_size, "files", "All files"
    yield "What now?", "", *_next(facts)


def _complete(facts: Facts) -> tuple[str, str, str]:
    if facts.outdated:
        return "No: the input has changed since these vectors were gathered.", "input", "Input"
    if facts.without_vectors:
        return facts.without_vectors, "skipped", "Which, and why"
    if facts.validation and facts.statuses:
        total, skipped = facts.statuses.total(), facts.statuses["skipped"]
        start = "Yes: " if facts.status == "passed" else "According to the records, "
        text = f"{start}{total - skipped:,} of {count(total, 'record')} have a vector"
        if skipped:
            verb = "was" if skipped == 1 else "were"
            return f"{text}, and {skipped:,} {verb} skipped.", "skipped", "Which, and why"
        return f"{text}.", "input", "Input"
    if not facts.summary:
        return "Not yet: the sequences are being read.", "input", "Input"
    done, total = len(facts.runs), facts.summary.buckets
    text = "Every bucket is finished, but the vectors are not validated yet."
    if done < total:
        text = f"Not yet: {done:,} of {count(total, 'bucket')} finished."
    return text, "computation", "Computation"


def _right(facts: Facts) -> str:
    validation = facts.validation
    if not validation:
        return "Not known yet: validation comes last."
    checks = count(len(validation.checks), "check")
    if failed := [check.check for check in validation.checks if check.result == "failed"]:
        words = f"{len(failed)} of {checks} failed ({', '.join(failed)})"
        return f"No: {words}. Do not use these vectors."
    if facts.status == "empty":
        return "There is no vector to check."
    spots = count(validation.recomputed, "sequence")
    compared = f", also the comparison of {spots} with {facts.reference}"
    return f"Yes: all {checks} passed{compared if validation.spot_checks else ''}."


def _next(facts: Facts) -> tuple[str, str, str]:
    if facts.status == "passed":
        return "Open the vectors, search them, export them.", "methods", "Methods for a paper"
    if facts.status == "empty":
        return "Fix the input, or name its columns, then run again.", "input", "Input"
    if facts.status == "failed":
        text = "Fix what the checks name, then rerun the same command."
        return text, "validation", "Failed checks"
    text = "Wait while the run is at work. If it ended, rerun the same command."
    if failed := failures(facts.results, [facts.model]):
        text = f"A step failed: {failed[-1].reason} ({failed[-1].log}). {AGAIN}"
    return text, "computation", "Computation"


def commands(facts: Facts) -> str:
    """Return lines for a shell: common uses of a result, or the way to one."""
    folder = shlex.quote(str(facts.folder))
    if facts.status == "pending":
        return f"plm-embed watch {shlex.quote(str(facts.results))}"
    if facts.status in {"failed", "empty"} or reader(facts.names) != "get":
        return f"plm-embed summary {folder}"
    search = f"plm-embed search {folder} --id {shlex.quote(facts.example)}"
    return f"{search}\nplm-embed export {folder} vectors.parquet --to parquet"


def histogram(counts: dict[int, int]) -> tuple[str, list[tuple[str, float, str]]]:
    """Return the distribution of the distinct sequences' lengths in words, and bars in equal steps
    of the logarithm: a label below it or '', its height in percent, and a text for the pointer.
    """
    if not counts:
        return "", []
    values = np.array(sorted(counts))
    weights = np.array([counts[length] for length in values.tolist()])
    low, high = int(values[0]), int(values[-1]) + 1
    edges = np.unique(np.round(np.geomspace(low, high, min(BINS, high - low) + 1)).astype(int))
    heights = np.histogram(values, bins=edges, weights=weights)[0].astype(int).tolist()
    middle, top = values[np.searchsorted(weights.cumsum(), weights.sum() / 2)], max(heights)
    bars, step = [], math.ceil(len(heights) / LABELS)
    for number, ((start, stop), height) in enumerate(zip(pairwise(edges), heights, strict=True)):
        name = f"{start:,} to {stop - 1:,}" if stop - start > 1 else f"{start:,}"
        label = "" if number % step else f"{start:,}"
        bars.append((label, 100 * height / top, f"{name} residues: {height:,}"))
    words = f"From {low:,} to {high - 1:,} residues, median {middle:,}"
    return f"{words}; the highest bar is of {count(top, 'sequence')}.", bars


def _outcomes(facts: Facts) -> dict[str, int]:
    """Return the number of records by outcome: as gathered, or as they were read."""
    if not facts.summary:
        return {}
    statuses, reasons = dict(facts.statuses), dict(facts.reasons)
    if not statuses:
        statuses, reasons = {"accepted": facts.summary.accepted}, facts.summary.skipped
    statuses.pop("skipped", None)
    outcomes = statuses | {f"skipped: {reason}": number for reason, number in reasons.items()}
    return {name.replace("_", " "): number for name, number in outcomes.items()}


def _unusual(facts: Facts, embeddings: Embeddings) -> Iterator[Row]:
    """Yield the first vectors with unusual norms: the id of the first record, norm, z, row."""
    if outliers := facts.norms.listed[:LISTED] if facts.norms else ():
        table = first_records(embeddings, np.sort([outlier.row for outlier in outliers]))
        ids = dict(zip(table["row"].to_pylist(), table["id"].to_pylist(), strict=True))
        for outlier in outliers:
            norm, z = f"{outlier.norm:.4g}", f"{outlier.z:.1f}"
            yield ids[outlier.row] or "", norm, z, f"{outlier.row:,}"


def _inputs(facts: Facts) -> Iterator[Row]:
    """Yield of each input file the path, format, records, size and SHA-256."""
    for file in facts.summary.inputs if facts.summary else ():
        kind = file.format if file.compression == "none" else f"{file.format}, {file.compression}"
        records, sha256 = f"{file.records:,}", f"{file.sha256[:16]}…"
        yield file.path, kind, records, readable(file.bytes), sha256


def _skipped(facts: Facts) -> Iterator[Row]:
    """Yield of the first skipped records the id, reason, detail, file and number."""
    places = (facts.folder / RECORDS, facts.results / "sequences" / RECORDS)
    for records in islice(filter(Path.is_file, places), 1):
        for id, reason, *rest in islice(skipped_records(records), LISTED):
            yield id or "(no id)", reason.replace("_", " "), *rest


def _devices(facts: Facts) -> Iterator[Row]:
    """Yield of each kind of device the buckets, sequences, tokens, time and speed."""
    for device in sorted({run.worker.device for run in facts.runs}):
        runs = [run for run in facts.runs if run.worker.device == device]
        sums = len(runs), sum(run.computed for run in runs), sum(run.tokens for run in runs)
        yield device, *map("{:,}".format, sums), device_time(runs), speed(runs)


def _unfinished_attempts(facts: Facts) -> Iterator[Row]:
    """Yield the attempts that did not complete, but those at work: bucket, start, place, reason."""
    finished = {run.bucket for run in facts.runs}
    for attempt in facts.attempts:
        ended = attempt.ended or attempt.bucket in finished or attempt.age > SILENT_SECONDS
        if ended and attempt.outcome != "complete":
            reason = attempt.reason or "killed (time limit, out of memory or canceled)"
            place = f"{attempt.host}, job {attempt.job}" if attempt.job else attempt.host
            yield attempt.bucket, attempt.started[:19].replace("T", " "), place, reason


def _files(facts: Facts) -> Iterator[Row]:
    """Yield of each file of the model the name, size, content, and what opens it."""
    for path, content, opening, _ in outputs(facts.folder, facts.master):
        written_now = path.name in (REPORT, CRATE)
        yield path.name, "" if written_now else readable(size(path)), content, opening
