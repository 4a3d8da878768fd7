import os
import subprocess
import sys
from pathlib import Path

import pytest

from plm_embed.jobs.gpus import visible_gpus
from plm_embed.kernels.devices import nvidia_gpus

TOOL = """#!/bin/sh
[ "$*" = --list-gpus ] || exit 6
echo "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)"
echo "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-8a56a4bc)"
"""
SLICES = """#!/bin/sh
echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5d5ba0d6)"
echo "  MIG 1g.10gb     Device  0: (UUID: MIG-c6d4f1ef)"
echo "  MIG 3g.40gb     Device  1: (UUID: MIG-cba663e8)"
echo "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-8a56a4bc)"
"""
JOB = """
import os, sys
from pathlib import Path
from plm_embed.jobs import gpus
gpus.LOCKS, gpus.SECONDS_BETWEEN_LOOKS = Path(sys.argv[1]), 0.02
gpus.take_gpus(int(sys.argv[2]))
print(os.environ.get("CUDA_VISIBLE_DEVICES", "not set"), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A driver's tool that knows two GPUs."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(TOOL)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tool


@pytest.mark.parametrize(
    ("variable", "gpus"),
    [
        ("2,GPU-7f", ["2", "GPU-7f"]),
        ("", []),
        ("1,-1,2", ["1"]),
        ("0, 1 ,MIG-c7", ["0", "1", "MIG-c7"]),
        ("NoDevFiles", []),
        (None, ["0", "1"]),
    ],
)
@pytest.mark.usefixtures("nvidia_smi")
def test_the_scheduler_says_which_gpus_or_else_the_driver(
    variable: str | None, gpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert visible_gpus() == gpus


def test_slices_stand_for_the_gpu_that_is_cut_into_them(
    nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvidia_smi.write_text(SLICES)
    assert visible_gpus() == ["MIG-c6d4f1ef", "MIG-cba663e8", "1"]
    whole = "NVIDIA H100 80GB HBM3"
    assert [gpu.name for gpu in nvidia_gpus()] == [
        f"{whole} MIG 1g.10gb",
        f"{whole} MIG 3g.40gb",
        whole,
    ]


def start(folder: Path, count: int, **environment: str) -> "subprocess.Popen[str]":
    """A process that takes GPUs, says which, and keeps them until its input ends."""
    return subprocess.Popen(
        [sys.executable, "-c", JOB, str(folder), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def told(job: "subprocess.Popen[str]") -> str:
    assert job.stdout
    return job.stdout.readline().strip()


def test_jobs_that_nobody_binds_to_a_gpu_take_free_ones(
    tmp_path: Path, nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    first, second = start(tmp_path, 1), start(tmp_path, 1)
    taken = {told(first): first, told(second): second}
    assert set(taken) == {"0", "1"}
    given, more = start(tmp_path, 1, CUDA_VISIBLE_DEVICES="1"), start(tmp_path, 3)
    assert told(given) == "1"  # by a scheduler, which knows whether a GPU is shared
    assert told(more) == "not set"  # as many as there are not
    both, third = start(tmp_path, 2), start(tmp_path, 1, CUDA_VISIBLE_DEVICES="1,0")
    taken["1"].kill()  # whatever ends a job, the kernel releases its GPU
    assert told(third) == "1"
    taken["0"].communicate("")
    third.communicate("")
    assert told(both) == "0,1"  # which had to wait for all others
    for job in (given, more, both, taken["1"]):
        job.communicate("")
    nvidia_smi.unlink()
    assert visible_gpus() == []
