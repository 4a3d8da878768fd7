"""Mistakes of users and their outcome: the words on the screen, the exit code, and the
manual's tables.

Each case is the real command in a real working folder. What is said must tell what is wrong, where,
and what to do.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.campaign_runs import ROOT, snakemake, snakemake_command, working_folder
from support.clones import clone, environment

pytestmark = pytest.mark.workflow
TABLE = re.findall(
    r"^\| (.+?) \| (.+) \|$",
    (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)
MESSAGES = [word for message, _ in TABLE for word in re.findall(r"`([^`]+)`", message)]


def told(said: str, *words: str, row: str = "", message: str = "") -> None:
    """Check that all these words are said, without a traceback, and a message: one with a `row` of
    the manual's tables, or one that needs none.
    """
    for word in words:
        assert word in said, said
    assert "Traceback" not in said, said
    assert not row or row in MESSAGES
    for piece in (row or message).split("..."):
        assert piece.strip() in said, said


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return working_folder(tmp_path / "work")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weights": "config/demo/esm2_t3_untraind.pt"},
         ("weights: config/demo/esm2_t3_untraind.pt: not found", "mean esm2_t3_untrained.pt")),
        ({"inputs": ["protein.fasta"]}, ("protein.fasta",)),
    ],
)  # fmt: skip
def test_a_wrong_configuration_ends_before_anything_runs(
    folder: Path, change: dict[str, Any], words: tuple[str, ...]
) -> None:
    done = snakemake(folder, "--cores", "1", **change)
    assert done.returncode == 1
    told(done.stdout, *words)
    assert not (folder / "results").exists()


def test_a_wrong_column(folder: Path) -> None:
    table = {"path": "config/demo/proteins.csv", "id": "brc_fea_id"}
    goal = "results/sequences/summary.json"
    done = snakemake(folder, "--cores", "1", goal, inputs=[table])
    assert done.returncode == 1
    words = ("config/demo/proteins.csv", "no column 'brc_fea_id'", "'protein_id'")
    told(done.stdout, *words, message="no column '...'; the columns are")


def test_weights_of_another_model_are_not_tried_again(folder: Path) -> None:
    goal = "results/esm2_t6_8M_UR50D/weights.json"
    weights = "config/demo/esm2_t3_untrained.pt"
    options = ("--cores", "1", "--retries", "3")
    done = snakemake(folder, goal, *options, model="esm2_8m", weights=weights)
    assert done.returncode == 1 and done.stdout.count("Error in rule weights") == 1
    told(done.stdout, "asked for is esm2_t6_8M_UR50D", message="holds esm2_t3_untrained")


def test_the_network_is_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens there
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    goal = "results/esm2_t6_8M_UR50D/weights.json"
    done = snakemake(folder, goal, "--cores", "1", "--retries", "1", model="esm2_8m")
    assert done.returncode == 1
    assert done.stdout.count("Error in rule weights") == 2, "it may be back"
    (log,) = (folder / ".snakemake" / "log").glob("*.log")
    text = log.read_text(encoding="utf-8")
    assert text.count("\nplm-embed: error: ") == 2, (
        "the second attempt replaces the log of the first"
    )
    address = "https://dl.fbaipublicfiles.com/fair-esm/models/esm2_t6_8M_UR50D.pt"
    told(
        done.stdout,
        address,
        "`curl -LO https",
        "where there is a network",
        row="cannot be downloaded",
    )


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU here")
def test_no_gpu(folder: Path) -> None:
    cuda = ("--set-resources", "embed:device=cuda")
    done = snakemake(folder, "--cores", "1", *cuda, buckets=1)
    assert done.returncode == 1
    words = (
        "CUDA_VISIBLE_DEVICES",
        "request a GPU and install requirements/cuda.txt",
        "to compute on the CPU, set device: cpu",
    )
    told(done.stdout, *words, row="no usable CUDA device")
    # as a cluster's job does it, whose resources ask for a GPU or not
    log = folder / "results" / "logs" / "esm2_t3_untrained" / "embed" / "0000.log"
    for asked, code in (("embed:gpu=0 embed:request_gpus=1", 1), ("embed:gpu=0", 0)):
        log.unlink(missing_ok=True)
        goal = "results/esm2_t3_untrained/embedded/0000.json"
        options = ("--mode", "remote", "--set-resources", *asked.split())
        job = snakemake(folder, goal, "--cores", "1", *options, buckets=1)
        assert job.returncode == code, job.stdout
        assert ("this job is shown none" in log.read_text()) is bool(code)


def test_a_full_disk(folder: Path, small_disk: Path) -> None:
    """test_full_disk.py makes room and goes on."""
    subprocess.run(["mount", "-o", "remount,size=128k", str(small_disk)], check=True)
    results = str(small_disk / "results")
    goal = f"{results}/esm2_t3_untrained/embedded/0000.json"
    done = snakemake(folder, "--cores", "1", goal, results=results, buckets=1)
    assert done.returncode == 1
    told(done.stdout, "make room and run again", row="no space left on the disk, or no quota")


def as_anybody(command: list[str]) -> list[str]:
    """The command without root's right to write everywhere."""
    if os.geteuid():
        return command
    if not shutil.which("setpriv"):
        pytest.skip("root may write everywhere")
    rights = "-dac_override,-dac_read_search"
    return ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}", *command]


@pytest.mark.parametrize("key", ["results", "store"])
def test_a_folder_that_cannot_be_written_to(folder: Path, key: str) -> None:
    locked = folder / "locked"
    locked.mkdir(mode=0o555)
    goal = f"{'locked' if key == 'results' else 'results'}/esm2_t3_untrained/embedded/0000.json"
    where = {key: "locked" if key == "results" else "locked/vectors"}
    command = snakemake_command(folder, "--cores", "1", goal, buckets=1, **where)
    done = subprocess.run(as_anybody(command), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    if key == "results":  # Snakemake's own line
        assert "Failed to create output directory locked" in done.stdout + done.stderr
        return
    words = ("locked: cannot be written to", "change its permissions or name another place")
    told(done.stdout + done.stderr, *words, message="...: cannot be written to")


def test_no_scheduler_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    done = snakemake(folder, "--profile", str(ROOT / "profiles" / "pbs"))
    assert done.returncode == 1
    told(done.stdout, "login node", message="PBS commands not found")


def test_the_plugin_is_not_installed(tmp_path: Path) -> None:
    here = clone(tmp_path / "clone", plugin=False)
    done = subprocess.run(
        ["snakemake", "--profile", "pbs"],
        cwd=here,
        env=environment(here),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2  # Snakemake's own, before it reads the workflow
    told(done.stderr, "--executor", row="invalid choice: 'pbs'")


def test_two_runs_at_once_and_a_lock_that_stays(folder: Path) -> None:
    """`test_kill_9_loses_only_what_no_part_holds` unlocks such a folder and goes on."""
    command = snakemake_command(folder, "--cores", "1")
    locks = folder / ".snakemake" / "locks"
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as run:
        while not list(locks.glob("*.output.lock")):
            assert run.poll() is None
            time.sleep(0.05)
        # however slowly the second one starts, the first is still there
        os.killpg(run.pid, signal.SIGSTOP)
        try:
            second = snakemake(folder, "--cores", "1")
        finally:
            os.killpg(run.pid, signal.SIGKILL)
    for locked in (second, snakemake(folder, "--cores", "1")):
        assert locked.returncode == 1
        told(locked.stdout, str(folder), "--unlock", row="Directory cannot be locked")
