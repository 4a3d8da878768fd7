"""The watch: what it says of runs that are over, and of jobs that have hardly begun."""

import os
import time
from pathlib import Path

from plm_embed.reporting.screen.watch import Watch
from plm_embed.sequences.summary import write_summary
from plm_embed.workflow.run_note import note_end, note_start
from support.made_up_sequences import counted
from support.watched import MODEL, beat, campaign, finish, look, prove, shown, written


def test_a_stopped_run_is_no_failure_and_its_parts_count(tmp_path: Path) -> None:
    model = campaign(tmp_path, 4)
    written(model / "weights.json", at=-100)
    note_start(tmp_path, [MODEL])
    beat(model, 1)
    words = "plm-embed: unfinished: stopped by a signal; run it again\n"
    written(tmp_path / "logs" / MODEL / "embed" / "0001.log", words)
    parts = model / "store" / "0123" / "parts"
    parts.mkdir(parents=True)
    (parts / "00000000-80000000-50-0123456789abcdef.h5").touch()
    write_summary(tmp_path / "sequences", counted(buckets=4, residues=4000, unique=100))
    note_end(tmp_path, "stopped")
    text = shown(tmp_path)
    assert "no run is at work; the last one was stopped" in text and "FAILED" not in text
    assert "0 workers" in text and "no worker is at work" in text
    assert look(tmp_path).fraction == 0.5
    seen = Watch(tmp_path).look()
    assert seen.over and not seen.failed


def test_a_run_that_is_over_has_no_workers_and_says_its_reason(tmp_path: Path) -> None:
    model = campaign(tmp_path, 4)
    written(model / "weights.json", at=-100)
    note_start(tmp_path, [MODEL])
    beat(model, 1)
    note_end(tmp_path, "failed", "the time limit of 5 minutes was over")
    text = shown(tmp_path)
    assert "0 workers" in text and "4 buckets queued; no worker is at work" in text
    assert "FAILED the time limit of 5 minutes was over" in text
    # a job that outlived the run gives a sign of life after its end
    beat(model, 1, updated=-5)
    assert "1 worker," in shown(tmp_path)


def test_a_copy_of_a_finished_campaign_is_finished(tmp_path: Path) -> None:
    """`cp -r` gives files the time and order of the copy."""
    model = campaign(tmp_path, 1)
    weights = written(model / "weights.json", at=-100)
    finish(model, 0)
    prove(model, at=-90)
    note_start(tmp_path, [MODEL])
    note_end(tmp_path, "complete")
    os.utime(model / "embedded", (time.time() + 20, time.time() + 20))
    written(model / "gathered.json", at=19)
    assert not look(tmp_path).finished  # more was embedded since
    for number, file in enumerate(("report.html", "checksums.sha256", "gathered.json")):
        written(model / file, at=10 + number)
    written(weights, at=15)
    assert look(tmp_path).finished
    assert "finished: every step is done" in shown(tmp_path)
    (model / "checksums.sha256").unlink()
    assert not look(tmp_path).finished


def test_jobs_that_load_their_libraries_are_starting(tmp_path: Path) -> None:
    model = campaign(tmp_path, 4)
    written(model / "weights.json", at=-100)
    note_start(tmp_path, [MODEL])
    beat(model, 1, job="28.pbs-01")
    logs = tmp_path / "logs" / MODEL / "embed"
    written(logs / "0001.log", "# plm-embed embed\n12:00:00 bucket 0001\n", at=1)
    written(logs / "0002.log", "", at=1)
    text = shown(tmp_path)
    assert "3 buckets queued (1 job starting), " in text
    assert "node1 GPU 1   28    A100" in text


def test_a_finished_campaign_that_is_run_again_is_not_over(tmp_path: Path) -> None:
    model = campaign(tmp_path, 1)
    written(model / "weights.json", at=-100)
    finish(model, 0)
    prove(model)
    assert Watch(tmp_path).look().over
    note_start(tmp_path, [MODEL])
    assert not Watch(tmp_path).look().over and "a run is at work on" in shown(tmp_path)
