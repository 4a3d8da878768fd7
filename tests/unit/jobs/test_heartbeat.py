"""Heartbeats of jobs: what they tell while a job runs, and of one that ended or was killed."""

from dataclasses import replace
from pathlib import Path

import pytest

from plm_embed.jobs.completion_record import WorkerInfo
from plm_embed.jobs.heartbeat import (
    FOLDER,
    Heartbeat,
    heartbeat_path,
    heartbeats,
    read_heartbeat,
    write_heartbeat,
)


def test_a_heartbeat_is_renewed_until_its_job_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PBS_JOBID", "17.server")
    path = heartbeat_path(tmp_path / "embedded", "0007")
    beat = Heartbeat(bucket="0007")
    write_heartbeat(path, beat)
    first = read_heartbeat(path)
    assert first and (first.bucket, first.job, first.outcome) == ("0007", "17.server", "no end")
    assert first.fraction == 0.0
    worker = WorkerInfo(pid=7, state="computing", tokens_per_second=9.5)
    beat = replace(beat, tokens=30, tokens_total=60, workers=(worker,))
    write_heartbeat(path, beat)
    (second,) = [beat for beat in heartbeats(tmp_path) if not beat.ended]
    assert second.fraction == 0.5 and second.workers == (worker,)
    ended = replace(beat, ended=beat.started.replace("20", "21", 1), outcome="complete")
    write_heartbeat(path, ended)
    (last,) = heartbeats(tmp_path)
    assert last.outcome == "complete"


def test_what_is_no_heartbeat_is_left_out_and_none_hinders_a_job(tmp_path: Path) -> None:
    folder = tmp_path / "embedded" / FOLDER
    folder.mkdir(parents=True)
    for name, content in (("torn", "{"), ("other", "[]"), ("old", '{"schema_version": 0}')):
        (folder / f"{name}.json").write_text(content)
    assert heartbeats(tmp_path) == []
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    beat = Heartbeat(bucket="0000")
    write_heartbeat(heartbeat_path(blocked, "0000"), beat)
    write_heartbeat(heartbeat_path(blocked, "0000"), replace(beat, ended=beat.started))
