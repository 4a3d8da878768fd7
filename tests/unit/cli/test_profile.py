"""`plm-embed profile`: what the scheduler says, what is asked, what is written and checked."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from support.commands import status

DEFAULTS = {"nodes": 1, "gpu": 0, "runtime": 60, "disk_mb": 1000}
ONE = "cpu*|up|(null)|1:00:00\ngpu|up|gpu:a100:4(S:0-1)|30:00\n"
SEVERAL = (
    ONE.replace("cpu*", "cpu")
    + "big|up|gpu:h100:8,gpu:v100:1|1-02:00:00\nold|down|(null)|infinite\n"
)


def command(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands that answer as a SLURM of one of each does; the folder of their answers."""
    answers = {"sacctmgr": "lab\n", "sinfo": ONE, "sbatch": ""}
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, answer in answers.items():
        (folder / f"{name}.answer").write_text(answer)
        command(folder / name, f"cat {folder}/{name}.answer")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return folder


class Answer(NamedTuple):
    """The exit status and the output of a call of the command."""

    status: int | str | None
    out: str
    err: str


Profile = Callable[..., Answer]


@pytest.fixture
def profile(capsys: pytest.CaptureFixture[str]) -> Profile:
    """`plm-embed profile` with some words."""
    return lambda *words: Answer(status("profile", *words), *capsys.readouterr())


def test_one_of_each_needs_no_word(slurm: Path, profile: Profile) -> None:
    done = profile("slurm")
    assert done.status == 0, done.err
    content = yaml.safe_load(done.out)
    assert content["executor"] == "slurm-steady"
    assert content["default-resources"] == DEFAULTS | {"slurm_account": "'lab'"}
    embed = {"gpu": 1, "runtime": 30, "slurm_partition": "'gpu'"}
    assert content["set-resources"]["embed"] == embed
    assert "slurm_account: \"'lab'\" # without it, your only account" in done.out
    (slurm / "sinfo.answer").write_text(ONE.replace("cpu*", "cpu").replace("gpu|up", "gpu*|up"))
    content = yaml.safe_load(profile("slurm").out)
    assert content["set-resources"]["embed"] == embed
    places = {"slurm_account": "'lab'", "slurm_partition": "'cpu'"}
    assert content["default-resources"] == DEFAULTS | places, "the default has GPUs"
    (slurm / "sinfo.answer").write_text(ONE)
    command(slurm / "sbatch", "echo sbatch: error: no such feature >&2; exit 1")
    done = profile("slurm", "--output", "mine")
    asked = "--account=lab --partition=gpu --gpus=1 --time=30 --wrap=true"
    assert done.status == 1 and f"{asked}: sbatch: error: no such feature" in done.err
    assert not Path("mine").exists()


def test_all_that_is_open_is_named_at_once(slurm: Path, profile: Profile) -> None:
    (slurm / "sinfo.answer").write_text(SEVERAL)
    (slurm / "sacctmgr.answer").write_text("lab\nother\n")
    done = profile("slurm")
    assert done.status == 1
    assert done.err.endswith("choose --queue (gpu or big) and --account (lab or other)\n")
    answers = ("--queue", "big", "--account", "other", "--gpu-type", "h100")
    assert profile("slurm", "--output", "mine", *answers).status == 0
    content = yaml.safe_load(Path("mine", "profile.yaml").read_text(encoding="utf-8"))
    places = {"slurm_account": "'other'", "slurm_partition": "'cpu'"}
    assert content["default-resources"] == DEFAULTS | places
    embed = {"gpu": 1, "runtime": 240, "slurm_partition": "'big'", "gpu_model": "'h100'"}
    assert content["set-resources"]["embed"] == embed

    Path("mine", "profile.yaml").write_text("executor: slurm\n", encoding="utf-8")
    done = profile("slurm", "--output", "mine", "--queue", "big", "--account", "lab")
    assert done.status == 1 and "a profile of your own is there already" in done.err


def test_a_partition_without_gpus_gets_jobs_on_its_cpus(slurm: Path, profile: Profile) -> None:
    done = profile("slurm", "--queue", "cpu")
    assert done.status == 0, done.err
    assert "partition cpu has no GPUs: embed will run on its CPUs" in done.err
    embed = {"gpu": 0, "device": "cpu", "runtime": 60, "slurm_partition": "'cpu'"}
    assert yaml.safe_load(done.out)["set-resources"]["embed"] == embed

    (slurm / "sinfo.answer").write_text("long|up|(null)|1-00:00:00\nshort|up|(null)|30:00\n")
    done = profile("slurm")
    assert done.status == 1 and "--queue (long or short)" in done.err
    command(slurm / "sbatch", "echo sbatch: error: refused: $* >&2; exit 1")
    done = profile("slurm", "--queue", "short")
    job = "--account=lab --partition=short --time=30 --wrap=true"
    assert f"{job}: sbatch: error: refused" in done.err
    done = profile("slurm", "--queue", "short", "--cpu-queue", "long", "--gpu-type", "a100")
    assert "--partition=short --gpus=a100:1" in done.err, "a site that hides its GPUs"
    (slurm / "sinfo.answer").write_text("old|down|(null)|infinite\n")
    done = profile("slurm")
    assert done.status == 1 and "sinfo: no partition is up" in done.err


def test_pbs_gets_the_profile_of_one_gpu_per_job(slurm: Path, profile: Profile) -> None:
    command(slurm / "qstat", '[ "$2" = gpu ] || { echo "qstat: Unknown queue $2" >&2; exit 1; }')
    done = profile("pbs", "--account", "lab", "--queue", "gpu")
    assert done.status == 0, done.err
    content = yaml.safe_load(done.out)
    named = {key: content[key] for key in ("executor", "pbs-account", "pbs-queue")}
    assert named == {"executor": "pbs", "pbs-account": "lab", "pbs-queue": "gpu"}
    assert content["set-resources"]["embed"]["gpu"] == 1
    done = profile("pbs", "--queue", "nope")
    assert done.status == 1 and "error: qstat -Q nope: qstat: Unknown queue nope" in done.err
