"""`make gpu-check` on a machine without a GPU: a tiny model on the CPU takes its every step."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from plm_embed.kernels import attention

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
KNOWN = [
    str(path)
    for path in (ROOT / "workflow" / "src", TESTS, TESTS / "support" / "tiny_models_known")
]
"""Where a Python finds the package, and the tiny models of the families."""


def gpu_check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        "make",
        "gpu-check",
        f"GPU_PYTHON=env PYTHONPATH={os.pathsep.join(KNOWN)} {sys.executable}",
        f"GPU_CHECK={' '.join(arguments)}",
    ]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment
    )


@pytest.mark.workflow
def test_every_step_on_the_cpu(tmp_path: Path) -> None:
    tiny = "esm2_t3_untrained"
    families = ("prott5_tiny", "dnabert_tiny")
    ended = gpu_check(
        *("--device", "cpu", "--models", tiny, "--job-model", tiny, "--tokens", "300"),
        *("--seconds", "3600"),  # on a busy machine, too
        *("--families", *families),
        *("--output", str(tmp_path / "found.json")),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert not found["problems"]
    assert found["tests"]["exit_code"] == 5  # none chosen: there is no GPU
    cpu = torch.device("cpu")
    expected = {
        f"{dtype}, {kernel.name}"
        for dtype in ("float32", "bfloat16", "float16")
        for kernel in attention._candidates(cpu, getattr(torch, dtype))
    }
    assert set(found[tiny]["accuracy"]) == expected
    assert all(entry["worst_cosine"] > 0.9999 for entry in found[tiny]["accuracy"].values())
    for row in found[tiny]["throughput"].values():
        assert not row["problems"]
        assert row["rounds"] == 5
        assert row["variants"]["fair-esm as shipped, float32"]["ours_is_faster_by"] is not None
        assert row["variants"]["plm-embed bfloat16"]["share_of_matrix_rate"] > 0
        assert row["variants"]["plm-embed bfloat16, 4,096 tokens at a time"]["tokens_per_second"]
    kernels = found["kernels"]
    assert kernels["copy_bytes_per_second"] > 0
    assert all(seconds > 0 for ways in kernels["sums"].values() for seconds in ways.values())
    assert all(ways["products"] > 0 for ways in found["activations"].values())
    assert 0 < len(kernels["profile"]) <= 20
    assert 0.5 < sum(each["share"] for each in kernels["profile"]) <= 1.001
    assert [row["usual"] for row in kernels["rows"].values()] == [False, False, True, False]
    assert all(row["tokens_per_second"] > 0 for row in kernels["rows"].values())
    with_biases = next(attention._candidates(cpu, torch.bfloat16, by_distance=True)).name
    for family in families:
        assert found[family]["rounds"] == 5
        assert found[family]["accuracy"]["worst_cosine"] > 0.999
        assert found[family]["kernels"]["attention"] == with_biases
        assert found[family]["share_of_matrix_rate"] > 0
    assert found["dnabert_tiny"]["letters_per_second"] > found["dnabert_tiny"]["tokens_per_second"]
    assert found["job"]["self_test"]["batch_invariant"]
    assert 0 < found["job"]["busy"] <= 1


@pytest.mark.workflow
def test_without_a_gpu_it_says_so() -> None:
    ended = gpu_check()
    assert ended.returncode == 2
    assert "no usable CUDA device" in ended.stdout


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command as a module, with little patience."""
    folder = ROOT / "benchmarks" / "gpu"
    monkeypatch.syspath_prepend(folder)
    found = importlib.util.spec_from_file_location("gpu_check_steps", folder / "__main__.py")
    assert found and found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    monkeypatch.setattr(module, "SECONDS_MORE", 0.2)
    monkeypatch.setattr(module, "SECONDS_TO_END", 0.2)
    return module


@pytest.mark.parametrize(
    ("script", "problem"),
    [("kill -6 $$", "its process ended with -6"), ("exec sleep 30", "its process hung")],
)
def test_a_step_that_aborts_or_hangs_is_a_problem_of_its_own(
    tmp_path: Path, steps: Any, monkeypatch: pytest.MonkeyPatch, script: str, problem: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    asked = Namespace(device="cpu", tokens=300, models=["8M"], job_model="8M")
    found, said = steps.step(asked, "kernels", 0.1)
    assert (found, said[: len(problem)]) == ({}, problem)


def test_a_step_that_takes_too_long_keeps_what_it_found(
    tmp_path: Path, steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(_: Namespace, found: dict[str, Any]) -> None:
        found["first"] = 1
        try:
            time.sleep(30)
        except Exception:  # as a peer that fails is left out
            time.sleep(30)

    monkeypatch.setattr(steps, "measure", measure)
    assert steps.take(Namespace(step="650M", seconds=0.1, output=tmp_path / "step.json")) == 1
    written = json.loads((tmp_path / "step.json").read_text())
    assert written["found"] == {"first": 1}
    assert "it takes too long" in written["problem"]


def test_it_says_when_triton_has_no_compiler(steps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CC", raising=False)
    assert "a C compiler or Python.h: fused kernels" in steps.here.missing()[1]


def test_what_is_missing_comes_with_the_command_that_fetches_it(
    steps: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(steps.here, "missing", lambda: (["h5py", "fair-esm"], []))
    assert steps.main([]) == 2
    assert "pip download --no-deps --dest wheels h5py fair-esm" in capsys.readouterr().out
