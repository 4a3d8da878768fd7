"""A few lines about a campaign: what came in, what came out, where it lies and how to open it."""

from collections.abc import Iterator
from pathlib import Path

from plm_embed.errors import StoreError
from plm_embed.master.validation_record import VALIDATION
from plm_embed.reading.find import MASTERS, masters
from plm_embed.reporting.facts import Facts, collect, model_folders, savings
from plm_embed.reporting.outputs import RECORDS, REPORT, SKIPPED
from plm_embed.wording import count, readable


def gathered(path: Path) -> list[Facts]:
    """Return the facts of each gathered model of a results folder, or of that of one model's
    folder. StoreError while there is no master.
    """
    models = [collect(folder) for folder in model_folders(path) if masters(folder)]
    if not models:
        remedy = "run the workflow first"
        raise StoreError(f"{path}: no {MASTERS} in it yet", path=path, remedy=remedy)
    return models


def summarize(models: list[Facts]) -> str:
    """Return plain text about gathered models."""
    blocks = []
    for facts in models:
        lines = [("model", facts.model)] if len(models) > 1 else []
        text = "\n".join(f"{name:<11} {value}" for name, value in [*lines, *_lines(facts)] if value)
        opening = "\n".join(f"    {line}" for line in facts.opening.splitlines())
        end = () if facts.without_vectors else _about_master(facts)
        blocks.append("\n".join(filter(None, [facts.without_vectors, text + "\n", *end, opening])))
    return "\n\n\n".join(blocks)


def _lines(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield names and values about a model; an empty value is left out."""
    statuses, folder = facts.statuses, facts.folder
    embedded = statuses["embedded"] + statuses["embedded_with_events"]
    cleaned = f", {facts.cleaned:,} of them cleaned up; see `events` in {RECORDS}"
    yield "records", f"{statuses.total():,}"
    yield "unique", count(facts.summary.unique, "sequence") if facts.summary else ""
    yield "reused", savings(facts.runs)
    yield "embedded", count(embedded, "record") + cleaned * (facts.cleaned > 0)
    yield (
        "skipped",
        count(statuses["skipped"], "record") + f" ({facts.skipped})" * bool(facts.skipped),
    )
    yield "validation", _validation(facts)
    yield "per record", str(folder / RECORDS)
    yield "report", str(folder / REPORT) if (folder / REPORT).is_file() else ""
    table = folder / SKIPPED
    yield "why skipped", str(table) if statuses["skipped"] and table.is_file() else ""
    yield "warning", facts.outdated
    for warning in facts.summary.warnings if facts.summary else ():
        yield "warning", warning


def _validation(facts: Facts) -> str:
    if not (validation := facts.validation):
        return "not done"
    if failed := [check.check for check in validation.checks if check.problems]:
        return f"FAILED: {', '.join(failed)} (see {facts.folder / VALIDATION})"
    checks = count(len(validation.checks), "check")
    spots = count(len(validation.spot_checks), "vector")
    rounding = f"; {validation.rounding}" if validation.rounding else ""
    return f"passed ({checks}, {spots} recomputed){rounding}"


def _about_master(facts: Facts) -> Iterator[str]:
    size = f"{facts.rows:,} x {facts.dim}, {readable(facts.sizes['master'])}"
    yield f"{facts.master}: {facts.model}, {size}"
    if facts.names[1:]:
        yield f"default representation: {facts.names[0]}; also: {', '.join(facts.names[1:])}"
    yield f"weights: {facts.caveat}" if facts.caveat else ""
    yield f"license of the weights: {facts.license}" if facts.license else ""
