"""`make gpu-check` on a machine without a GPU: a tiny model on the CPU takes its every step."""

import json
import os
import subprocess
import sys
from pathlib import Path

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
        *("--families", *families),
        *("--output", str(tmp_path / "found.json")),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert not found["problems"]
    assert found["tests"]["exit_code"] == 5  # none chosen: there is no GPU
    cpu = torch.device("cpu")
    half = [kernel.name for kernel in attention._candidates(cpu, torch.bfloat16)]
    expected = {"float32, torch SDPA", "float16, torch SDPA, keys in whole vectors"}
    assert set(found[tiny]["accuracy"]) == expected | {f"bfloat16, {name}" for name in half}
    assert all(entry["worst_cosine"] > 0.9999 for entry in found[tiny]["accuracy"].values())
    for row in found[tiny]["throughput"].values():
        assert not row["problems"]
        assert row["rounds"] == 5
        assert row["variants"]["fair-esm as shipped, float32"]["ours_is_faster_by"] > 0
        assert row["variants"]["plm-embed bfloat16"]["share_of_matrix_rate"] > 0
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
