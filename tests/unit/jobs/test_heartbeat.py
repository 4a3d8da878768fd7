"""Heartbeats of jobs: what they tell while a job runs, and of one that ended or was killed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from plm_embed.jobs.completion_record import WorkerInfo
from plm_embed.jobs.heartbeat import (
    FOLDER,
    heartbeat_path,
    heartbeats,
    new_heartbeat,
    read_heartbeat,
    write_heartbeat,
)


def test_a_heartbeat_is_renewed_until_its_job_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PBS_JOBID", "17.server")
    store = tmp_path / "store"
    path = heartbeat_path(store, "0007")
    beat = new_heartbeat("0007", tmp_path / "embedded", store, 0)
    write_heartbeat(path, beat)
    first = read_heartbeat(path)
    assert first and (first.bucket, first.job, first.outcome) == ("0007", "17.server", "no end")
    assert (first.fraction, first.seconds) == (0.0, 0.0)
    worker = WorkerInfo(pid=7, state="computing", tokens_per_second=9.5)
    beat = replace(beat, residues=30, residues_total=60, workers=(worker,))
    write_heartbeat(path, beat)
    (second,) = heartbeats(tmp_path)
    assert second.fraction == 0.5 and second.workers == (worker,)
    ended = replace(beat, ended=beat.started.replace("20", "21", 1), outcome="complete")
    write_heartbeat(path, ended)
    assert not path.exists()  # a look at those at work reads no others
    (last,) = heartbeats(tmp_path)
    assert last.outcome == "complete" and last.device_seconds == last.seconds > 0


def test_campaigns_that_share_a_store_see_their_own_jobs(tmp_path: Path) -> None:
    store = tmp_path / "results" / "store"
    for model in ("results", "other"):
        records = tmp_path / model / "embedded"
        write_heartbeat(heartbeat_path(store, model), new_heartbeat(model, records, store, 0))
    assert [beat.bucket for beat in heartbeats(tmp_path / "results")] == ["results"]
    (tmp_path / "results").rename(tmp_path / "moved")
    assert [beat.bucket for beat in heartbeats(tmp_path / "moved")] == ["results"]


def test_what_is_no_heartbeat_is_left_out_and_none_hinders_a_job(tmp_path: Path) -> None:
    folder = tmp_path / "store" / FOLDER
    folder.mkdir(parents=True)
    for name, content in (("torn", "{"), ("other", "[]"), ("old", json.dumps({"bucket": "0"}))):
        (folder / f"{name}.json").write_text(content)
    assert heartbeats(tmp_path) == []
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    beat = new_heartbeat("0000", tmp_path / "embedded", blocked, 0)
    write_heartbeat(heartbeat_path(blocked, "0000"), beat)
    write_heartbeat(heartbeat_path(blocked, "0000"), replace(beat, ended=beat.started))
