"""The report: one HTML file that stands by itself, offline, about a campaign that is finished or
under way.
"""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from plm_embed._version import __version__
from plm_embed.fingerprint import POOLING_DEFINITIONS
from plm_embed.io.files import atomic_path, size
from plm_embed.io.terminal import printable
from plm_embed.master.validation_record import Counts, Norms, Validation
from plm_embed.reading.ids import shared_ids
from plm_embed.reporting import outcome, repeat
from plm_embed.reporting.citing import checksums, citation, methods, provenance
from plm_embed.reporting.facts import LISTED, Facts
from plm_embed.reporting.outcome import MEANINGS
from plm_embed.reporting.outputs import CRATE, REPORT, outputs
from plm_embed.reporting.plots import figures, sample_figures
from plm_embed.reporting.plots.charts import Cell
from plm_embed.reporting.skipped import NAME as SKIPPED
from plm_embed.reporting.usage import effort, failures
from plm_embed.sequences.summary import Summary
from plm_embed.wording import duration, readable

SECTIONS = (
    "Result",
    "Embeddings",
    "Input",
    "Computation",
    "Validation",
    "Files",
    "Settings",
    "Provenance",
)


_OUTCOMES = {"embedded_with_events": "embedded, cleaned up"}


def write_report(facts: Facts, output: Path) -> None:
    """Write the report."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("plm_embed.reporting", ""),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
        # markup is of another type
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters["shown"] = _shown
    page = environment.get_template("report.html.j2").render(
        _content(facts),
        style=_part("report.css"),
        script=_part("report.js") + _part("save.js"),
    )
    with atomic_path(output) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _shown(value: Cell) -> str:
    """A cell of a chart's table, for people."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _part(name: str) -> Markup:
    return Markup(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def _content(facts: Facts) -> dict[str, Any]:
    """Everything that the template names."""
    status = outcome.standing(facts)
    return {
        "title": f"{facts.model} embeddings" if facts.model else "Embeddings",
        "subtitle": outcome.subtitle(facts),
        "caveat": facts.caveat if facts.runs else "",
        "outdated": facts.outdated,
        "status": status,
        "status_words": outcome.STANDINGS[status],
        "file_name": facts.model or "embeddings",
        "sections": [(name.lower(), name) for name in SECTIONS],
        "cards": list(outcome.cards(facts)),
        "answers": list(outcome.answers(facts)),
        "opening": outcome.opening(facts),
        "commands": outcome.commands(facts),
        "readable": readable,
        **_of_vectors(facts),
        **_of_input(facts),
        **_of_computation(facts),
        "validation": facts.validation,
        "validation_words": _validation_words(facts.validation, facts.reference)
        if facts.validation
        else "",
        "meanings": MEANINGS,
        "folder": str(facts.folder),
        "files": list(_files(facts)),
        "store": readable(facts.sizes["store"]) if facts.sizes.get("store") else "",
        "settings": list(_settings(facts)),
        "config": repeat.kept_config(facts.folder),
        "command": repeat.command(
            facts.folder, facts.attempts, any(run.on_gpu for run in facts.runs)
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


def _of_vectors(facts: Facts) -> dict[str, Any]:
    """What the section about the vectors names."""
    sample, norms = facts.sample, facts.norms
    colorings = [asdict(one) for one in sample.colorings] if sample else []
    few = "Too few pooled vectors for a map."
    return {
        "maps": list(sample_figures.maps(sample)) if sample else [],
        "map_words": _map_words(facts),
        "no_map": few if facts.metadata else "There is no master file yet.",
        "colorings": colorings,
        "norms": sample_figures.norms(sample) if sample else None,
        "norm_words": _norm_words(norms),
        "outliers": [(facts.odd.get(one.row, ""), one) for one in norms.listed[:LISTED]]
        if norms
        else (),
    }


def _of_input(facts: Facts) -> dict[str, Any]:
    """What the section about the input names."""
    summary = facts.summary
    counts = _outcomes(facts, summary) if summary else {}
    total = sum(count for name, count in counts.items() if name.startswith("skipped"))
    first = "" if total == len(facts.skipped) else f"The first {len(facts.skipped)} of {total:,}. "
    table, shared = facts.folder / SKIPPED, shared_ids(facts.folder)
    return {
        "summary": summary,
        "repeats": _repeats(summary) + (f" {shared}." if shared else "") if summary else "",
        "lengths": figures.lengths(summary.lengths) if summary and summary.lengths else None,
        "outcomes": figures.outcomes(counts),
        "skipped": facts.skipped,
        "skipped_words": first + (f"{SKIPPED} has them all." if table.is_file() else ""),
        "events": sorted(summary.events.items()) if summary else [],
    }


def _of_computation(facts: Facts) -> dict[str, Any]:
    """What the section about the work names."""
    timed = [run for run in facts.runs if run.token_seconds]
    begun = bool(facts.runs or facts.attempts)
    return {
        "devices": list(_devices(facts)),
        "progress": _progress(facts),
        "effort": list(effort(facts)) if begun else [],
        "failures": failures(facts),
        "speed": figures.speed(timed) if timed else None,
        "timeline": figures.timeline(facts.runs, facts.attempts) if begun else None,
    }


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


def _repeats(summary: Summary) -> str:
    accepted, unique = summary.accepted, summary.unique
    repeats = accepted - unique
    share = f"{100 * repeats / accepted:.1f} %" if accepted else "none"
    return (
        f"{accepted:,} of {summary.records:,} records were accepted. {repeats:,} of them "
        f"({share}) repeat a "
        "sequence that was there already: it was embedded once and answers for all of them."
    )


def _outcomes(facts: Facts, summary: Summary) -> dict[str, int]:
    """Records by how they ended: as validated, or so far as they were read."""
    counts = facts.validation.counts if facts.validation else Counts()
    if counts.statuses:
        found = {
            _OUTCOMES.get(name, name.replace("_", " ")): count
            for name, count in counts.statuses.items()
            if name != "skipped"
        }
        skipped = (counts.skipped or {}).items()
        return found | {f"skipped: {reason}": count for reason, count in skipped}
    return {"accepted": summary.accepted} | {
        f"skipped: {why}": count for why, count in summary.skipped.items()
    }


def _devices(facts: Facts) -> Iterator[dict[str, str]]:
    for device in sorted({run.device for run in facts.runs}):
        runs = [run for run in facts.runs if run.device == device]
        tokens, seconds = sum(run.tokens for run in runs), sum(run.token_seconds for run in runs)
        busy = sum(run.busy * run.token_seconds for run in runs)
        yield {
            "device": device,
            "workers": f"{len({run.worker for run in runs}):,}",
            "buckets": f"{len(runs):,}",
            "sequences": f"{sum(run.computed for run in runs):,}",
            "tokens": f"{tokens:,}",
            "tokens/s each": f"{tokens / seconds:,.0f}" if seconds else "",
            "busy": f"{100 * busy / seconds:.0f} %" if seconds else "",
            "device time": duration(sum(run.seconds for run in runs)),
        }


def _progress(facts: Facts) -> str:
    found, skipped = sum(run.found for run in facts.runs), sum(run.skipped for run in facts.runs)
    total = facts.summary.buckets if facts.summary else len(facts.runs)
    text = f"{len(facts.runs):,} of {total:,} buckets are finished. "
    text += f"{found:,} vectors were there already and were not computed again"
    return text + (f"; {skipped:,} sequences were skipped." if skipped else ".")


def _map_words(facts: Facts) -> str:
    shown = len(facts.sample.ids) if facts.sample else 0
    which = f"All {shown:,}" if shown == facts.rows else f"{shown:,} of the {facts.rows:,}"
    return (
        f"{which} vectors, one per distinct sequence. Equal color and shape: equal value of the "
        "chosen column. Point at a vector for its id; the other map shows the same one."
    )


def _files(facts: Facts) -> Iterator[tuple[str, str, str, str]]:
    """Name, size, content, and how to open it."""
    for one in outputs(facts.folder, facts.master):
        known = one.name not in (REPORT, CRATE)  # these are being written
        yield one.name, readable(size(one.path)) if known else "", one.what, one.opening


def _norm_words(norms: Norms | None) -> str:
    if not norms:
        return "A sample; validation looks at every vector."
    if not norms.rows:
        return "No vectors: every record was skipped."
    return (
        f"Of all {norms.rows:,} vectors: smallest norm {norms.min:.4g}, median {norms.median:.4g}, "
        f"largest {norms.max:.4g}; {norms.outliers:,} unusual, {norms.zero:,} zero."
    )


def _validation_words(validation: Validation, reference: str) -> str:
    spots = validation.spot_checks
    text = (
        f"{len(validation.checks)} checks, each over every row; "
        f"{len(spots)} vectors computed again by {reference}"
    )
    if spots:
        text += f", all within cosine {min(spot.cosine for spot in spots):.8f}"
    return f"{text}." + (f" Note: {validation.rounding}." if validation.rounding else "")
