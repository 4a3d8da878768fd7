"""The last lines of a run say what to know about its result."""

import shutil
from dataclasses import replace
from pathlib import Path

from plm_embed.master.validation_record import VALIDATION, read_validation, write_validation
from plm_embed.reporting.closing import closing
from support.finished import MODEL


def test_doubts_and_many_skipped_records_are_named(results: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(results, tmp_path / "results"))
    lines = list(closing(copy, [MODEL]))
    assert lines[0].startswith("result   129 vectors for 181 records (1 skipped), validated: ")
    assert lines[1].startswith("weights  random numbers, not the published weights")
    assert lines[-2] == f"report   {copy / MODEL / 'report.html'}"
    assert lines[-1].endswith(f"plm-embed summary {copy}")
    path = copy / MODEL / VALIDATION
    found = read_validation(path)
    assert found
    statuses, reasons = {"embedded": 131, "skipped": 50}, {"empty": 2, "unknown_residues": 48}
    counts = replace(found.counts, statuses=statuses, skipped=reasons)
    write_validation(path, replace(found, counts=counts))
    assert "skipped  48 unknown_residues, 2 empty" in list(closing(copy, [MODEL]))
