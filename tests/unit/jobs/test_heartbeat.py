"""Heartbeats of jobs that are damaged, or cannot be written; test_job.py reads those of jobs."""

from dataclasses import replace
from pathlib import Path

from plm_embed.jobs.heartbeat import FOLDER, Heartbeat, heartbeat_path, heartbeats, write_heartbeat


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
