"""A few lines about a campaign: what came in, what came out, where it lies and how to open it."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from plm_embed.errors import StoreError
from plm_embed.io.files import size
from plm_embed.master.validation_record import VALIDATION
from plm_embed.reading.open import MASTERS, masters
from plm_embed.reporting.facts import Facts, collect, model_folders
from plm_embed.reporting.outputs import RECORDS, REPORT, SKIPPED
from plm_embed.wording import count, readable


def gathered(path: Path) -> list[Facts]:
    """Return the facts of each gathered model of a results folder, or of that of one model's
    folder. StoreError while there is no master.
    """
    models = [collect(folder) for folder in model_folders(path) if masters(folder)]
    if not models:
        remedy = "run the workflow first, or run it again if it was interrupted"
        raise StoreError(f"{path}: no {MASTERS} in it yet", path=path, remedy=remedy)
    return models


def summarize(models: list[Facts]) -> str:
    """Return plain text about gathered models."""
    blocks = []
    for facts in models:
        lines = [f"model       {facts.model}"] if models[1:] else []
        lines += [f"{name:<11} {value}" for name, value in _facts(facts) if value]
        if facts.without_vectors:
            lines.insert(0, facts.without_vectors)
        else:
            lines += ["", *_about_master(facts)]
        blocks.append("\n".join(lines))
    return "\n\n\n".join(blocks)


def _facts(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield names and values about a model; an empty value is left out."""
    statuses, folder = facts.statuses, facts.folder
    events = statuses["embedded_with_events"]
    with_events = f", {events:,} of them with events; see `events` in {RECORDS}" if events else ""
    reasons = f" ({facts.skipped})" if facts.skipped else ""
    report, table = folder / REPORT, folder / SKIPPED
    yield "records", f"{statuses.total():,}"
    yield "unique", count(facts.summary.unique, "sequence") if facts.summary else ""
    yield "reused", facts.reused
    yield "embedded", count(statuses["embedded"] + events, "record") + with_events
    yield "skipped", count(statuses["skipped"], "record") + reasons
    yield "validation", _validation(facts)
    yield "per record", str(folder / RECORDS)
    yield "report", str(report) if report.is_file() else ""
    yield "why skipped", str(table) if statuses["skipped"] and table.is_file() else ""
    for warning in (facts.outdated, *(facts.summary.warnings if facts.summary else ())):
        yield "warning", warning


def _validation(facts: Facts) -> str:
    if not (validation := facts.validation):
        return "not done"
    if failed := [check.check for check in validation.checks if check.problems]:
        return f"FAILED: {', '.join(failed)} (see {facts.folder / VALIDATION})"
    checks = count(len(validation.checks), "check")
    spots = count(validation.recomputed, "sequence")
    rounding = f"; {validation.rounding}" if validation.rounding else ""
    time = datetime.fromisoformat(validation.finished) if validation.finished else None
    day = f" on {time.astimezone():%Y-%m-%d %H:%M}" if time else ""
    return f"passed{day} ({checks}, {spots} recomputed){rounding}"


def _about_master(facts: Facts) -> Iterator[str]:
    assert facts.master
    shape = f"{facts.rows:,} x {facts.dim}, {readable(size(facts.master))}"
    yield f"{facts.master}: {facts.model}, {shape}"
    if facts.names[1:]:
        yield f"default representation: {facts.names[0]}; also: {', '.join(facts.names[1:])}"
    if facts.fingerprint and facts.fingerprint.scores:
        yield f"scores: {', '.join(facts.fingerprint.scores)}"
    if facts.caveat:
        yield f"weights: {facts.caveat}"
    if facts.license:
        yield f"license of the weights: {facts.license}"
    yield from (f"    {line}" for line in facts.opening.splitlines())
