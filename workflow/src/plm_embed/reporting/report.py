"""The report: one HTML file that stands by itself, offline, about a campaign that is finished or
under way.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import plotly.offline
from markupsafe import Markup

from plm_embed._version import __version__
from plm_embed.fingerprint import POOLING_DEFINITIONS
from plm_embed.io.files import atomic_path
from plm_embed.io.terminal import printable
from plm_embed.master.validation import Counts, Norms, Validation
from plm_embed.reporting import figures, sample_figures
from plm_embed.reporting.citing import citation, methods, provenance
from plm_embed.reporting.facts import Facts
from plm_embed.reporting.usage import comparison, effort, failures
from plm_embed.sequences.summary import Summary
from plm_embed.wording import duration, readable

SECTIONS = (
    ("asked", "asked"),
    ("found", "input"),
    ("computed", "computation"),
    ("vectors", "vectors"),
    ("proof", "proof"),
    ("provenance", "provenance"),
)
Rows = list[tuple[str, str]]


def write_report(facts: Facts, output: Path) -> None:
    """Write the report."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("plm_embed.reporting", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: (
            printable(value) if type(value) is str else value
        ),  # markup is of another type
    )
    page = environment.get_template("report.html.j2").render(_content(facts))
    with atomic_path(output) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _content(facts: Facts) -> dict[str, Any]:
    """Everything that the template names."""
    status = facts.validation.status if facts.validation else "pending"
    words = {
        "passed": "✓ complete and validated",
        "failed": "✗ validation FAILED",
        "pending": "not finished yet",
    }
    runs = [run for run in facts.runs if run.tokens and run.tokens_per_second]
    norms = next(iter(facts.validation.norms.values()), None) if facts.validation else None
    return {
        "title": f"{facts.model} embeddings" if facts.model else "Embeddings",
        "subtitle": _subtitle(facts),
        "caveat": facts.caveat if facts.runs else "",
        "outdated": facts.outdated,
        "status": status,
        "status_words": words[status],
        "sections": SECTIONS,
        "plotly_js": Markup(plotly.offline.get_plotlyjs()),
        "cards": list(_cards(facts)),
        "asked": list(_asked(facts)),
        "summary": facts.summary,
        "repeats": _repeats(facts.summary) if facts.summary else "",
        "events": sorted(facts.summary.events.items()) if facts.summary else [],
        "devices": list(_devices(facts)),
        "progress": _progress(facts),
        "effort": list(effort(facts)) if facts.runs or facts.attempts else [],
        "failures": failures(facts),
        "comparison": list(comparison(facts)),
        "figures": {
            "lengths": Markup(figures.lengths(_lengths(facts))) if _lengths(facts) else "",
            "fates": Markup(figures.fates(_fates(facts, facts.summary))) if facts.summary else "",
            "throughput": Markup(figures.throughput(runs)) if runs else "",
            "timeline": Markup(figures.timeline(facts.runs, facts.attempts))
            if facts.runs or facts.attempts
            else "",
            "map": Markup(sample_figures.embedding_map(facts.sample)) if facts.sample else "",
            "norms": Markup(sample_figures.norms(facts.sample)) if facts.sample else "",
        },
        "no_map": "Too few pooled vectors for a map."
        if facts.metadata
        else "There is no master file yet.",
        "norm_words": _norm_words(norms),
        "outliers": norms.listed[:10] if norms else (),
        "validation": facts.validation,
        "validation_words": _validation_words(facts.validation, facts.reference)
        if facts.validation
        else "",
        "provenance": list(provenance(facts)),
        "methods": methods(facts),
        "citation": citation(facts),
        "version": __version__,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


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
    if facts.summary:
        yield f"{facts.summary.records:,}", "records"
        yield f"{facts.summary.unique:,}", "distinct sequences"
        yield f"{facts.summary.skipped.total():,}", "records skipped when read"
    if facts.rows:
        yield f"{facts.rows:,} × {facts.dim:,}", "vectors"
    if facts.runs:
        hours = sum(run.seconds for run in facts.runs) / 3600
        yield (f"{hours:,.1f} h" if hours >= 1 else duration(3600 * hours)), "device time"
        yield readable(sum(facts.sizes.values())), "on disk"


def _asked(facts: Facts) -> Iterator[tuple[str, str]]:
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


def _lengths(facts: Facts) -> dict[int, int]:
    return facts.summary.lengths if facts.summary else {}


def _repeats(summary: Summary) -> str:
    accepted, unique = summary.accepted, summary.unique
    repeats = accepted - unique
    share = f"{100 * repeats / accepted:.1f} %" if accepted else "none"
    return (
        f"{accepted:,} of {summary.records:,} records were accepted. {repeats:,} of them "
        f"({share}) repeat a "
        "sequence that was there already: it was embedded once and answers for all of them."
    )


def _fates(facts: Facts, summary: Summary) -> dict[str, int]:
    """Records by how they ended: as validated, or so far as they were read."""
    counts = facts.validation.counts if facts.validation else Counts()
    if counts.statuses:
        found = {
            name.replace("_", " "): count
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
        tokens = sum(run.tokens for run in runs)
        seconds = sum(run.tokens / run.tokens_per_second for run in runs if run.tokens_per_second)
        busy = sum(
            run.busy * run.tokens / run.tokens_per_second for run in runs if run.tokens_per_second
        )
        yield {
            "device": device,
            "workers": f"{len({run.worker for run in runs}):,}",
            "buckets": f"{len(runs):,}",
            "sequences": f"{sum(run.computed for run in runs):,}",
            "tokens": f"{tokens:,}",
            "rate": f"{tokens / seconds:,.0f}" if seconds else "",
            "busy": f"{100 * busy / seconds:.0f} %" if seconds else "",
            "hours": f"{sum(run.seconds for run in runs) / 3600:,.3f}",
        }


def _progress(facts: Facts) -> str:
    found, skipped = sum(run.found for run in facts.runs), sum(run.skipped for run in facts.runs)
    total = facts.summary.buckets if facts.summary else len(facts.runs)
    text = f"{len(facts.runs):,} of {total:,} buckets are finished. "
    text += f"{found:,} vectors were there already and were not computed again"
    return text + (f"; {skipped:,} sequences were skipped." if skipped else ".")


def _norm_words(norms: Norms | None) -> str:
    if not norms:
        return "A sample; the proof looks at every vector."
    if not norms.rows:
        return "No vectors: every record was skipped."
    return (
        f"Of all {norms.rows:,} vectors: smallest norm {norms.min:.4g}, median "
        f"{norms.median:.4g}, "
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
    return text + "."
