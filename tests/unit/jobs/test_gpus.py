import sys
from pathlib import Path
from types import ModuleType

import pytest

from plm_embed.jobs import gpus
from plm_embed.jobs.gpus import Meter, near_cores, visible_gpus

TOOL = """#!/bin/sh
case "$*" in
  *index*) echo 0; echo 1 ;;
  *--id=0*) echo 00000000:C7:00.0 ;;
  *--id=1*) echo 00000000:85:00.0 ;;
  *) exit 6 ;;
esac
"""


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver's tool that knows two GPUs."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(TOOL)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("nvidia_smi")
def test_the_scheduler_says_which_gpus() -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "2,GPU-7f"}) == ["2", "GPU-7f"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == []
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "1,-1,2"}) == ["1"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0, 1 ,MIG-c7"}) == ["0", "1", "MIG-c7"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}) == []


@pytest.mark.usefixtures("nvidia_smi")
def test_without_a_scheduler_the_driver_says() -> None:
    assert visible_gpus({}) == ["0", "1"]


def test_without_a_driver_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus({}) == []
    assert near_cores("0") == set()


@pytest.mark.usefixtures("nvidia_smi")
def test_cores_next_to_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "SYSFS", tmp_path)
    (tmp_path / "0000:c7:00.0").mkdir()
    (tmp_path / "0000:c7:00.0" / "local_cpulist").write_text("24-31,56-63\n")
    assert near_cores("0") == {*range(24, 32), *range(56, 64)}
    assert near_cores("1") == set()
    assert near_cores("GPU-unknown") == set()


class Driver(ModuleType):
    """Stands for nvidia-ml-py: GPU 0 and GPU-b count in millijoules, GPU 1 does not count."""

    now = 5_000_000

    def nvmlInit(self) -> None: ...  # noqa: N802

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:  # noqa: N802
        return name

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int | str) -> int:  # noqa: N802
        if handle == 1:
            raise OSError("not supported")
        return self.now


@pytest.mark.parametrize(
    ("visible", "count", "joules"), [("0", 1, 2.5), ("0,GPU-b", 2, 5.0), ("0,1", 2, None)]
)
def test_energy_is_what_the_counters_went_on(
    visible: str, count: int, joules: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver("pynvml")
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    meter = Meter(count)
    driver.now += 2500
    assert meter.joules() == joules


def test_without_a_gpu_energy_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert Meter(1).joules() is None
