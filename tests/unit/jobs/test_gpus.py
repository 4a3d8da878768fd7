from pathlib import Path

import pytest

from plm_embed.jobs import gpus
from plm_embed.jobs.gpus import near_cores, visible_gpus

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
