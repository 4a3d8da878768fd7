"""Heartbeats: what a worker says while it works, and that it says nothing any more afterwards."""

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from plm_embed.jobs import heartbeats
from plm_embed.jobs.heartbeats import Heartbeat, Load, read_beat

CPU = torch.device("cpu")


def test_a_worker_says_what_it_does_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "SECONDS_BETWEEN_BEATS", 0.01)
    with Heartbeat(tmp_path / "embedded", "0007", CPU) as heartbeat:
        (path,) = (tmp_path / "workers").glob("[!.]*.json")
        first = read_beat(path)
        assert first and (first.bucket, first.tokens, first.tokens_total) == ("0007", 0, None)
        assert first.pid == os.getpid() and first.memory_bytes > 1e6 and first.gpu is None
        heartbeat.begin(100)
        heartbeat.advance(30, 2)
        heartbeat.advance(20, 3)
        while (beat := read_beat(path)) is None or beat.sequences < 3:
            pass
        assert (beat.tokens, beat.tokens_total) == (50, 100) and beat.tokens_per_second
        assert beat.eta_seconds == pytest.approx(50 / beat.tokens_per_second)
    assert not list((tmp_path / "workers").iterdir())


class Driver(ModuleType):
    """What nvidia-ml-py answers, in the shapes that it has."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.nvmlInit = lambda: None
        self.nvmlDeviceGetHandleByUUID = lambda uuid: f"handle of {uuid}"
        self.nvmlDeviceGetIndex = {"handle of GPU-7f3c": 3}.__getitem__
        self.nvmlDeviceGetUtilizationRates = lambda _: SimpleNamespace(gpu=97, memory=40)
        self.nvmlDeviceGetPowerUsage = lambda _: 412_500  # milliwatts


def test_a_gpu_is_known_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="7f3c"))
    cuda, driver = torch.device("cuda", 0), Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    gpu = heartbeats._Gpu(cuda)
    assert gpu.index == 3
    assert gpu.load() == Load(utilization=97, watts=412.5)
    monkeypatch.delattr(driver, "nvmlDeviceGetPowerUsage")  # as where that is not permitted
    assert gpu.load() == Load(utilization=97)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    without = heartbeats._Gpu(cuda)
    assert without.index is None and without.load() == Load()


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
