"""The last words about a campaign: its result, what to know about it, and the next command."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from plm_embed.errors import PlmEmbedError
from plm_embed.master.validation_record import PROOF, VALIDATION, read_validation
from plm_embed.models.manifest import caveat, read_record
from plm_embed.program import program
from plm_embed.reading.find import masters
from plm_embed.reporting.outputs import REPORT
from plm_embed.sequences.summary import known_summary

MANY = 0.2
"""The share of records without a vector above which the reasons are said."""


def closing(results: Path, models: Sequence[str]) -> Iterator[str]:
    """Yield lines about the validated results of these models, and what to know of them."""
    proven = [results / model for model in models if (results / model / PROOF).is_file()]
    for folder in proven:
        name = f"{folder.name}: " if len(models) > 1 else ""
        yield from (f"{title:<9}{name}{words}" for title, words in _of_model(folder))
    if summary := known_summary(results / "sequences"):
        yield from (f"warning  {warning}" for warning in summary.warnings)
    for folder in proven:
        yield f"report   {folder / REPORT}"
    yield f"next     {program()} summary {shlex.quote(str(results))}"


def _of_model(folder: Path) -> Iterator[tuple[str, str]]:
    try:
        validation = read_validation(folder / VALIDATION)
        record = read_record(folder)
    except PlmEmbedError as error:
        yield "result", str(error)
        return
    counts, words, reasons = validation.counts if validation else None, "", ""
    if counts and counts.vectors is not None and counts.records:
        skipped = (counts.statuses or {}).get("skipped", 0)
        left_out = f" ({skipped:,} skipped)" if skipped else ""
        words = f"{counts.vectors:,} vectors for {counts.records:,} records{left_out}, "
        if skipped > MANY * counts.records:
            found = sorted((counts.skipped or {}).items(), key=lambda reason: -reason[1])
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in found)
    yield "result", f"{words}validated: {', '.join(map(str, masters(folder)))}"
    if reasons:
        yield "skipped", reasons
    if doubt := caveat(folder.name, record):
        yield "weights", doubt
