"""The last lines of a run: result, report and next command; or one cause, however many steps it
ended.
"""

import os
import time
from dataclasses import replace
from pathlib import Path

from plm_embed.master.gather_record import write_record
from plm_embed.master.validation_record import (
    Counts,
    Validation,
    read_validation,
    write_validation,
)
from plm_embed.sequences.summary import write_summary
from plm_embed.workflow.ending import end_unfinished, said_of_failure, said_of_success
from plm_embed.workflow.run_note import NOTE, note_start, read_call
from support.campaigns import MEAN
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
    assert "no validated result of these sequences and settings yet" in next(
        said_of_success(tmp_path, [MODEL])
    )
    proven(tmp_path)
    first, _, open_, after = said_of_success(tmp_path, [MODEL, "prot_bert"])
    assert first.startswith(f"result   {MODEL}: 1,200 vectors") and "prot_bert: no" in open_
    assert after == f"next     plm-embed watch {tmp_path} --once"


def test_what_was_validated_with_other_settings_is_no_result_of_these(tmp_path: Path) -> None:
    proven(tmp_path)
    path = tmp_path / MODEL / "validation.json"
    validation = read_validation(path)
    assert validation
    write_validation(path, replace(validation, fingerprint=MEAN))
    for pooling in (["mean"], ["max"]):
        lines = list(said_of_success(tmp_path, [MODEL], {MODEL: {"pooling": pooling}}))
        assert ("validated:" in lines[0]) == (pooling == ["mean"])
        assert ("no validated result of these sequences and settings" in lines[0]) == (
            pooling == ["max"]
        )


def test_what_was_validated_before_the_inputs_changed_is_no_result_of_them(tmp_path: Path) -> None:
    proven(tmp_path)
    first, *_ = said_of_success(tmp_path, [MODEL], inputs_changed=True)
    assert "no validated result of these sequences" in first


def test_a_cause_is_said_once(tmp_path: Path) -> None:
    for bucket in range(12):
        failed(tmp_path, f"{MODEL}/embed/{bucket:04d}.log", f"bucket {bucket:04d}: no GPU", bucket)
    line, log, after = said_of_failure(tmp_path, [MODEL], 0, {})
    assert line == "failed   12 steps, for one cause: bucket 0000: no GPU"
    assert log == f"log      {tmp_path}/logs/{MODEL}/embed/0000.log" and "run the same" in after
    failed(tmp_path, "deduplicate.log", "no column", -60)
    line, log, after = said_of_failure(tmp_path, [MODEL], 0, {})
    assert line == "failed   13 steps, for 2 causes, of which the first: no column"
    assert after.endswith(f"all failures: plm-embed watch {tmp_path} --once")


def test_what_failed_before_this_run_is_not_its_cause(tmp_path: Path) -> None:
    log = failed(tmp_path, "deduplicate.log", "no column")
    line, *_ = said_of_failure(tmp_path, [MODEL], log.stat().st_mtime_ns + 1, {})
    assert "ended without a word" in line
    line, *_ = said_of_failure(tmp_path, [MODEL], log.stat().st_mtime_ns, {})
    assert line == "failed   no column"


def test_what_a_scheduler_says_is_the_cause(tmp_path: Path) -> None:
    """Of a job that was refused, without a log, and of one whose log has only the signal."""
    note_start(tmp_path, [MODEL])
    logs = [tmp_path / "logs" / MODEL / "embed" / f"{number:04d}.log" for number in range(2)]
    refused = dict.fromkeys(logs, "sbatch: Invalid account")
    assert end_unfinished(tmp_path, {MODEL: tmp_path / "store"}, [], refused) == [
        "failed   2 steps, for one cause: sbatch: Invalid account",
        "next     when it is mended, run the same command again: what is finished stays",
    ]
    call = read_call(tmp_path / NOTE)
    assert call and (call.outcome, call.reason) == (
        "failed",
        "2 steps, for one cause: sbatch: Invalid account",
    )
    failed(tmp_path, f"{MODEL}/embed/0000.log", "stopped by a signal")
    line, log, _ = said_of_failure(
        tmp_path, [MODEL], 0, {logs[0]: "the time limit of 5 minutes was over"}
    )
    assert line == "failed   the time limit of 5 minutes was over" and log.endswith("0000.log")


def test_a_run_that_was_stopped_says_what_is_stored(tmp_path: Path) -> None:
    note_start(tmp_path, [MODEL])
    (tmp_path / "sequences").mkdir()
    write_summary(tmp_path / "sequences", counted(buckets=2, unique=1000))
    parts = tmp_path / "store" / "0123" / "parts"
    parts.mkdir(parents=True)
    (parts / "00000000-10000000-30-0123456789abcdef.h5").touch()
    (parts / "00000000-10000000-12-0123456789abcdef.h5").touch()
    failed(tmp_path, f"{MODEL}/embed/0000.log", "stopped by a signal; run it again")
    log = tmp_path / "snakemake.log"
    log.write_text("Terminating processes on user request, this might take some time.\n")
    assert end_unfinished(tmp_path, {MODEL: tmp_path / "store"}, [log], {}) == [
        "stopped  by you (Ctrl-C); stored: 42 of 1,000 sequences",
        "next     give the same command again: it goes on where it was",
    ]
    call = read_call(tmp_path / NOTE)
    assert call and call.outcome == "stopped"
