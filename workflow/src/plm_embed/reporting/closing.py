"""The last words about a campaign: its result, its report and the next command."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from plm_embed.errors import PlmEmbedError
from plm_embed.master.validation_record import PROOF, VALIDATION, read_validation
from plm_embed.reading.find import masters
from plm_embed.reporting.outputs import REPORT
from plm_embed.sequences.summary import known_summary


def closing(results: Path, models: Sequence[str]) -> Iterator[str]:
    """Yield lines about the validated results of these models."""
    proven = [results / model for model in models if (results / model / PROOF).is_file()]
    for folder in proven:
        yield f"result   {f'{folder.name}: ' * (len(models) > 1)}{_result(folder)}"
    summary = known_summary(results / "sequences")
    yield from (f"warning  {warning}" for warning in (summary.warnings if summary else ()))
    for folder in proven:
        yield f"report   {folder / REPORT}"
    yield f"next     plm-embed summary {shlex.quote(str(results))}"


def _result(folder: Path) -> str:
    try:
        validation = read_validation(folder / VALIDATION)
    except PlmEmbedError as error:
        return str(error)
    counts, said = validation.counts if validation else None, ""
    if counts and counts.vectors is not None and counts.records is not None:
        skipped = (counts.statuses or {}).get("skipped", 0)
        left_out = f" ({skipped:,} skipped)" if skipped else ""
        said = f"{counts.vectors:,} vectors for {counts.records:,} records{left_out}, "
    return f"{said}validated: {', '.join(map(str, masters(folder)))}"
