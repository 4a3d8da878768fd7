"""Heartbeats: what a worker says while it works, and that it says nothing any more afterwards."""

import json
import os
from pathlib import Path

import pytest
import torch

from plm_embed import heartbeats
from plm_embed.heartbeats import Heartbeat

CPU = torch.device("cpu")


def test_a_worker_says_what_it_does_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "SECONDS_BETWEEN_BEATS", 0.01)
    with Heartbeat(tmp_path / "embedded", "0007", CPU) as heartbeat:
        (path,) = (tmp_path / "workers").glob("[!.]*.json")
        first = json.loads(path.read_text())
        assert (first["bucket"], first["tokens"], first["tokens_total"]) == ("0007", 0, None)
        assert first["pid"] == os.getpid() and first["memory_bytes"] > 1e6 and first["gpu"] is None
        heartbeat.begin(100)
        heartbeat.advance(30, 2)
        heartbeat.advance(20, 3)
        while (note := json.loads(path.read_text()))["sequences"] < 3:
            pass
        assert (note["tokens"], note["tokens_total"]) == (50, 100) and note["tokens_per_second"] > 0
    assert not list((tmp_path / "workers").iterdir())


def test_the_file_goes_also_when_the_work_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Heartbeat(tmp_path / "embedded", "0000", CPU):
        assert list((tmp_path / "workers").iterdir())
        raise ZeroDivisionError
    assert not list((tmp_path / "workers").iterdir())


def test_work_goes_on_where_no_heartbeat_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "workers").write_text("a file where the folder should be")
    with Heartbeat(tmp_path / "embedded", "0000", CPU) as heartbeat:
        heartbeat.begin(10)
        heartbeat.advance(10, 1)
    assert (tmp_path / "workers").is_file()
