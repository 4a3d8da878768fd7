"""The watch: what it says of steps that failed, and of runs that ended."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plm_embed.reporting.screen.watch import Watch
from plm_embed.workflow.run_note import NOTE, note_end, note_start
from support.watched import MODEL, campaign, finish, prove, shown, written


@pytest.mark.parametrize("log", ["deduplicate.log", "scan/00001.log", f"{MODEL}/weights.log"])
def test_steps_before_embed_fail_aloud(tmp_path: Path, log: str) -> None:
    note_start(tmp_path, [MODEL])
    written(tmp_path / "logs" / log, "# plm-embed\nplm-embed: error: no column 'nope'\n", at=1)
    look = Watch(tmp_path).look()
    assert look.failed and not look.over  # this very process is the run
    assert "failed" in shown(tmp_path) and "no column 'nope'" in shown(tmp_path)
    note_end(tmp_path, "failed")
    assert Watch(tmp_path).look().over


def test_what_an_earlier_run_said_is_over(tmp_path: Path) -> None:
    model = campaign(tmp_path, 1)
    finish(model, 0)
    log = written(tmp_path / "logs" / MODEL / "gather.log", "plm-embed: error: full\n", at=-60)
    assert Watch(tmp_path).look().failed
    note_start(tmp_path, [MODEL])
    text = shown(tmp_path)
    assert "FAILED" not in text and "a run is at work" in text
    assert "next: " not in text
    os.utime(log)
    note_end(tmp_path, "failed")  # the note keeps the time of the start
    text = shown(tmp_path)
    assert "FAILED" in text and "no run is at work; the last one ended" in text
    assert "next: when it is mended, run the same command again" in text


def test_a_run_that_was_killed_is_not_at_work(tmp_path: Path) -> None:
    campaign(tmp_path, 1)
    note_start(tmp_path, [MODEL])
    note = tmp_path / NOTE
    ended = subprocess.Popen(["true"])
    ended.wait()
    note.write_text(json.dumps(json.loads(note.read_text()) | {"pid": ended.pid}))
    assert "the last one was killed" in shown(tmp_path)
    note.write_text(json.dumps(json.loads(note.read_text()) | {"host": "elsewhere"}))
    assert "a run is at work on elsewhere" in shown(tmp_path)


def test_exit_codes_say_how_it_ended(tmp_path: Path) -> None:
    def code(*options: str) -> int:
        command = [sys.executable, "-m", "plm_embed", "watch", str(tmp_path / "out"), *options]
        return subprocess.run(command, capture_output=True, timeout=300, check=False).returncode

    assert code("--once") == 3
    model = campaign(tmp_path / "out", 1)
    finish(model, 0)
    written(model / "gathered.json")
    log = written(tmp_path / "out" / "logs" / MODEL / "validate.log", "plm-embed: error: no\n", 1)
    assert code() == 1
    log.unlink()
    prove(model)
    assert code() == 0


def test_failures_of_a_kind_are_said_once(tmp_path: Path) -> None:
    campaign(tmp_path, 12)
    logs = tmp_path / "logs" / MODEL / "embed"
    for bucket in range(12):
        written(logs / f"{bucket:04d}.log", f"plm-embed: error: {bucket:04d}: damaged weights\n")
    text = shown(tmp_path)
    assert text.count("damaged weights") == 1 and "0000.log  and 11 more alike" in text
    assert "12 failed" in text


def test_failures_are_named_with_their_logs(tmp_path: Path) -> None:
    model = campaign(tmp_path, 2)
    logs = tmp_path / "logs" / MODEL / "embed"
    logs.mkdir(parents=True)
    watch = Watch(tmp_path)
    (logs / "0000.log").write_text(
        "12:00:00 published\nplm-embed: error: no space on /scratch\nmake room\nmore\n"
    )
    (logs / "0001.log").write_text(
        "Traceback (most recent call last):\n  File ...\nValueError: broken\n"
    )
    (state,) = watch.look().models
    assert [(failure.log.name, failure.reason) for failure in state.failures] == [
        ("0000.log", "no space on /scratch\nmake room"),
        ("0001.log", "ValueError: broken"),
    ]
    text = shown(tmp_path)
    assert "2 failed" in text and f"FAILED {logs}/0000.log" in text.replace("\n", "")
    (logs / "0000.log").write_text("# plm-embed embed: the next attempt\n")
    (model / "submissions").mkdir()
    (model / "submissions" / "0001.json").write_text("{}")
    (state,) = watch.look().models
    assert not state.failures
