"""`plm-embed profile`: what the scheduler says, what is asked, what is written and checked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

DEFAULTS = {"nodes": 1, "gpu": 0, "runtime": 60, "disk_mb": 1000}

pytestmark = pytest.mark.workflow  # whole dry runs

ONE = "cpu*|up|(null)|1:00:00\ngpu|up|gpu:a100:4(S:0-1)|30:00\n"
SEVERAL = (
    ONE.replace("cpu*", "cpu")
    + "big|up|gpu:h100:8,gpu:v100:1|1-02:00:00\nold|down|(null)|infinite\n"
)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands that answer as a SLURM of one of each does; the folder of their answers."""
    answers = {"sacctmgr": "lab\n", "sinfo": ONE, "sbatch": ""}
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, answer in answers.items():
        (folder / f"{name}.answer").write_text(answer)
        (folder / name).write_text(f"#!/bin/sh\ncat {folder}/{name}.answer\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return folder


def profile(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "plm_embed", "profile", *words],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_one_of_each_needs_no_word(slurm: Path) -> None:
    done = profile("slurm")
    assert done.returncode == 0, done.stderr
    content = yaml.safe_load(done.stdout)
    assert content["executor"] == "slurm-steady"
    assert content["default-resources"] == DEFAULTS | {"slurm_account": "'lab'"}
    embed = {"gpu": 1, "runtime": 30, "slurm_partition": "'gpu'"}
    assert content["set-resources"]["embed"] == embed
    assert "slurm_account: \"'lab'\" # without it, your only account" in done.stdout
    (slurm / "sinfo.answer").write_text(ONE.replace("cpu*", "cpu").replace("gpu|up", "gpu*|up"))
    content = yaml.safe_load(profile("slurm").stdout)
    assert content["set-resources"]["embed"] == embed
    places = {"slurm_account": "'lab'", "slurm_partition": "'cpu'"}
    assert content["default-resources"] == DEFAULTS | places, "the default has GPUs"
    (slurm / "sinfo.answer").write_text(ONE)
    (slurm / "sbatch").write_text("#!/bin/sh\necho sbatch: error: no such feature >&2; exit 1\n")
    done = profile("slurm", "--output", "mine")
    asked = "--account=lab --partition=gpu --gpus=1 --time=30 --wrap=true"
    assert done.returncode == 1 and f"{asked}: sbatch: error: no such feature" in done.stderr
    assert not Path("mine").exists()


def test_all_that_is_open_is_named_at_once(slurm: Path) -> None:
    (slurm / "sinfo.answer").write_text(SEVERAL)
    (slurm / "sacctmgr.answer").write_text("lab\nother\n")
    done = profile("slurm")
    assert done.returncode == 1
    several = "choose --queue (gpu or big) and --account (lab or other)\n"
    assert done.stderr.endswith(several)
    answers = ("--queue", "big", "--account", "other", "--gpu-type", "h100")
    assert profile("slurm", "--output", "mine", *answers).returncode == 0
    content = yaml.safe_load(Path("mine", "profile.yaml").read_text(encoding="utf-8"))
    assert content["default-resources"] == {
        **DEFAULTS,
        **{"slurm_account": "'other'", "slurm_partition": "'cpu'"},
    }
    assert content["set-resources"]["embed"] == {
        **{"gpu": 1, "runtime": 240},
        **{"slurm_partition": "'big'", "gpu_model": "'h100'"},
    }

    Path("mine", "profile.yaml").write_text("executor: slurm\n", encoding="utf-8")
    done = profile("slurm", "--output", "mine", "--queue", "big", "--account", "lab")
    assert done.returncode == 1 and "a profile of your own is there already" in done.stderr


def test_a_partition_without_gpus_gets_jobs_on_its_cpus(slurm: Path) -> None:
    done = profile("slurm", "--queue", "cpu")
    assert done.returncode == 0, done.stderr
    assert "partition cpu has no GPUs: embed will run on its CPUs" in done.stderr
    embed = {"gpu": 0, "device": "cpu", "runtime": 60, "slurm_partition": "'cpu'"}
    assert yaml.safe_load(done.stdout)["set-resources"]["embed"] == embed

    (slurm / "sinfo.answer").write_text("long|up|(null)|1-00:00:00\nshort|up|(null)|30:00\n")
    done = profile("slurm")
    assert done.returncode == 1 and "--queue (long or short)" in done.stderr
    (slurm / "sbatch").write_text("#!/bin/sh\necho sbatch: error: refused: $* >&2; exit 1\n")
    done = profile("slurm", "--queue", "short")
    job = "--account=lab --partition=short --time=30 --wrap=true"
    assert f"{job}: sbatch: error: refused" in done.stderr
    done = profile("slurm", "--queue", "short", "--cpu-queue", "long", "--gpu-type", "a100")
    assert "--partition=short --gpus=a100:1" in done.stderr, "a site that hides its GPUs"
    (slurm / "sinfo.answer").write_text("old|down|(null)|infinite\n")
    done = profile("slurm")
    assert done.returncode == 1 and "sinfo: no partition is up" in done.stderr


def test_pbs_gets_the_profile_of_one_gpu_per_job(slurm: Path) -> None:
    (slurm / "qstat").write_text(
        '#!/bin/sh\n[ "$2" = gpu ] || { echo "qstat: Unknown queue $2" >&2; exit 1; }\n'
    )
    (slurm / "qstat").chmod(0o755)
    done = profile("pbs", "--account", "lab", "--queue", "gpu")
    assert done.returncode == 0, done.stderr
    content = yaml.safe_load(done.stdout)
    named = {key: content[key] for key in ("executor", "pbs-account", "pbs-queue")}
    assert named == {"executor": "pbs", "pbs-account": "lab", "pbs-queue": "gpu"}
    assert content["set-resources"]["embed"]["gpu"] == 1
    done = profile("pbs", "--queue", "nope")
    assert done.returncode == 1 and "error: qstat -Q nope: qstat: Unknown queue nope" in done.stderr
