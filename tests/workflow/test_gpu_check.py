"""`make gpu-check` without a GPU: its rehearsal on the CPU, and what it calls a failure."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from plm_embed.accuracy import SelfTest
from plm_embed.kernels.elementwise import Elementwise
from support.campaigns import completion

ROOT = Path(__file__).parents[2]
CHECK = ROOT / "benchmarks" / "gpu"


def gpu_check(
    arguments: str, python: str = sys.executable, **more: str
) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", "gpu-check", "WHEELS="]
    command += [f"GPU_PYTHON={python}", f"GPU_CHECK={arguments}"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} | more
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment
    )


@pytest.mark.workflow
def test_a_rehearsal_on_the_cpu_passes(tmp_path: Path) -> None:
    weights = ROOT / "config" / "demo" / "esm2_t3_untrained.pt"
    ended = gpu_check(f"--device cpu --weights {weights} --output {tmp_path / 'found.json'}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    device, job, matrices, last = ended.stdout.splitlines()[-4:]
    assert device.startswith("ok    device: ")
    assert job.startswith("ok    esm2_t3_untrained: known answers: none are known for ")
    assert "self-test passed in float32; cosine 1.0000" in job
    assert "equal bits in 5 places" in job
    assert " tokens/s" in job
    assert matrices.startswith("ok    esm2_t3_untrained per residue: 4,")
    assert last.startswith("PASS: all 3 lines")
    report = json.loads((tmp_path / "found.json").read_text())
    assert report["verdict"] == [device, job, matrices]
    assert all(step["ended"] == 0 for step in report["steps"].values())


BROKEN = """
from dataclasses import replace
from plm_embed.kernels.elementwise import Elementwise
right = Elementwise.norm

def without_bias(self, x, by, dtype, *, keep=False):
    return right(self, x, replace(by, bias=None), dtype, keep=keep)

Elementwise.norm = without_bias
"""


@pytest.mark.workflow
def test_a_broken_kernel_fails_it(tmp_path: Path) -> None:
    """With random weights."""
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    python = f"env PYTHONPATH={tmp_path}:{ROOT / 'workflow' / 'src'} {sys.executable}"
    ended = gpu_check(f"--device cpu --output {tmp_path / 'found.json'}", python)
    assert ended.returncode == 2, ended.stdout + ended.stderr  # make's, of 1
    job, last = ended.stdout.splitlines()[-2:]
    assert job.startswith("FAIL  esm2_t3_untrained: ")
    assert "self-test failed on " in job
    assert last.startswith("FAIL: 1 of 2 lines")


@pytest.mark.workflow
def test_without_a_gpu_it_fails(tmp_path: Path) -> None:
    ended = gpu_check(f"--output {tmp_path / 'found.json'}")
    assert ended.returncode == 2
    device, last = ended.stdout.splitlines()[-2:]
    assert device.startswith("FAIL  device: ")
    assert "no usable CUDA device" in device
    assert last.startswith("FAIL: 1 of 1 lines")


def test_what_is_missing_comes_with_the_command_that_fetches_it() -> None:
    """In a Python without any package."""
    ended = subprocess.run(
        [sys.executable, "-S", str(CHECK)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("missing: torch, numpy, backports.zstd, click, fair-esm, h5py, ")
    assert "make gpu-wheels" in ended.stderr


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(CHECK)

    def module(name: str) -> ModuleType:
        return __import__(name)

    return module


def test_a_step_that_hangs_or_dies_has_failed(
    tmp_path: Path, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = check("run")
    steps = run.Check("cpu", tmp_path)
    with pytest.raises(run.StepError, match="the step: -6"):
        steps.run("the step", ["sh", "-c", "kill -6 $$"])
    with pytest.raises(run.StepError, match=r"the step: a b c d$"):
        steps.run("the step", ["sh", "-c", "printf 'x\\na\\n\\nb\\nc d\\n' >&2; exit 1"])
    monkeypatch.setattr(run, "LIMIT", 0.2)
    with pytest.raises(run.StepError, match="the step: no end after 0 s"):
        steps.run("the step", ["sh", "-c", "echo begun; exec sleep 30"])
    assert steps.details["the step"]["stdout"] == "begun\n"


def test_places_with_other_bits_are_counted(
    prepared: Path, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Elementwise.norm

    def by_place(*arguments: Any, **options: Any) -> torch.Tensor:
        y = right(*arguments, **options)
        y[200:] *= 1 + 1e-6
        return y

    monkeypatch.setattr(Elementwise, "norm", by_place)
    places = check("steps").places(str(prepared), "cpu", "float32")
    assert places == {"all": 5, "different": 3}


SOUND = SelfTest(1e-3, 0.99999, True, "torch FlashAttention", "Triton, sums within products")
FELL_BACK = "torch (fallback: Triton's kernels: they are off by 0.03)"
EVERYWHERE = {"all": 327, "different": 0}


@pytest.mark.parametrize(
    ("tested", "speed", "places", "wrong"),
    [
        ({}, 300e3, EVERYWHERE, ""),
        ({}, 160e3, EVERYWHERE, ""),
        ({}, 140e3, EVERYWHERE, "140,000 tokens/s (in plan 300,000)"),
        ({"elementwise": FELL_BACK}, 300e3, EVERYWHERE, FELL_BACK),
        ({}, 300e3, {"all": 327, "different": 3}, "other bits in 3 of 327 places"),
        ({"batch_invariant": False}, 300e3, EVERYWHERE, "other bits in 0 of 327 places"),
    ],
)
def test_what_a_job_is_judged_by(
    check: Any, tested: dict[str, Any], speed: float, places: dict[str, int], wrong: str
) -> None:
    record = completion(self_test=SelfTest(**vars(SOUND) | tested), tokens_per_second=speed)
    line = check("lines").Line("650M")
    check("lines").job_line(line, record, places, check("paper").Paper(300e3, 10**6))
    assert line.wrong == [wrong] * bool(wrong)
    assert str(line).startswith("FAIL  650M: " if wrong else "ok    650M: self-test passed in ")


@pytest.mark.parametrize(("gpu", "least", "most"), [("Tesla T4", 10, 60), ("NVIDIA H100", 10, 16)])
def test_its_work_fits_the_card(check: Any, gpu: str, least: float, most: float) -> None:
    from plm_embed.models.registry import find_model

    paper, model = check("paper"), find_model("650M")
    work = paper.on_paper(model, gpu, "cuda")
    assert least <= work.tokens / work.planned <= most
    assert paper.seconds_of(model, work) < 240
    unknown = paper.on_paper(model, "another GPU", "cuda")
    assert (unknown.planned, unknown.tokens) == (0, 32768)
