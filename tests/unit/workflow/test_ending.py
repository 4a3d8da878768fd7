"""The last lines of a run: result, report and next command; or one cause, however many steps it
ended.
"""

import os
import time
from dataclasses import replace
from pathlib import Path

from plm_embed.master.gather_record import write_record
from plm_embed.master.validation_record import Counts, Validation, write_validation
from plm_embed.sequences.summary import write_summary
from plm_embed.workflow.ending import said_of_failure, said_of_success
from support.made_up_sequences import counted

MODEL = "esm2_t6_8M_UR50D"


def proven(results: Path, model: str = MODEL) -> None:
    folder = results / model
    folder.mkdir(parents=True)
    write_record(folder / "gathered.json", [folder / "master_esm2_embeddings.h5"])
    validation = Validation(
        status="passed",
        checks=(),
        counts=Counts(vectors=1200, records=2000, statuses={"embedded": 1990, "skipped": 10}),
        norms={},
        spot_checks=(),
        fingerprint=None,
        files={},
    )
    write_validation(folder / "validation.json", validation)
    (folder / "checksums.sha256").touch()
    (folder / "report.html").touch()


def failed(results: Path, name: str, words: str, seconds: float = 0) -> Path:
    log = results / "logs" / name
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f"# plm-embed\nplm-embed: error: {words}\n")
    os.utime(log, (time.time() + seconds, time.time() + seconds))
    return log


def test_a_result_its_report_and_what_to_do_next(tmp_path: Path) -> None:
    results = tmp_path / "my results"
    proven(results)
    master = results / MODEL / "master_esm2_embeddings.h5"
    assert list(said_of_success(results, [MODEL])) == [
        f"result   1,200 vectors for 2,000 records (10 skipped), validated: {master}",
        f"report   {results / MODEL / 'report.html'}",
        f"next     plm-embed summary '{results}'",
    ]


def test_a_warning_about_the_input_is_repeated(tmp_path: Path) -> None:
    proven(tmp_path)
    (tmp_path / "sequences").mkdir()
    write_summary(tmp_path / "sequences", replace(counted(), warnings=("is b the column?",)))
    _, line, *_ = said_of_success(tmp_path, [MODEL])
    assert line == "warning  is b the column?"


def test_what_was_asked_for_in_part_is_no_result(tmp_path: Path) -> None:
    assert "no validated result yet" in next(said_of_success(tmp_path, [MODEL]))
    proven(tmp_path)
    first, _, open_, after = said_of_success(tmp_path, [MODEL, "prot_bert"])
    assert first.startswith(f"result   {MODEL}: 1,200 vectors") and "prot_bert: no" in open_
    assert after == f"next     plm-embed watch {tmp_path} --once"


def test_a_cause_is_said_once(tmp_path: Path) -> None:
    for bucket in range(12):
        failed(tmp_path, f"{MODEL}/embed/{bucket:04d}.log", f"bucket {bucket:04d}: no GPU", bucket)
    line, log, after = said_of_failure(tmp_path, [MODEL], 0)
    assert line == "failed   12 steps, for one cause: bucket 0000: no GPU"
    assert log == f"log      {tmp_path}/logs/{MODEL}/embed/0000.log" and "run the same" in after
    failed(tmp_path, "deduplicate.log", "no column", -60)
    line, log, after = said_of_failure(tmp_path, [MODEL], 0)
    assert line == "failed   13 steps, for 2 causes, of which the first: no column"
    assert after.endswith(f"all failures: plm-embed watch {tmp_path} --once")


def test_what_failed_before_this_run_is_not_its_cause(tmp_path: Path) -> None:
    log = failed(tmp_path, "deduplicate.log", "no column")
    line, *_ = said_of_failure(tmp_path, [MODEL], log.stat().st_mtime_ns + 1)
    assert "ended without a word" in line
    line, *_ = said_of_failure(tmp_path, [MODEL], log.stat().st_mtime_ns)
    assert line == "failed   no column"
