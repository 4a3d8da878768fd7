"""Snakemake for real, through `--executor slurm-steady`, on a stand-in for SLURM's commands."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from standin import StandIn

pytestmark = pytest.mark.snakemake

SNAKEFILE = """
rule all:
    input: expand("out/{i}.txt", i=range(3))

rule one:
    output: "out/{i}.txt"
    resources: runtime=1, mem_mb=100
    shell: "COMMAND"
"""
PATIENCE = 300.0


class Run:
    """A working folder, and Snakemake in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "it's a $HOME & (co)"
        self.folder.mkdir(parents=True)
        self.slurm = StandIn(folder / "slurm", self.folder)
        self.write("echo $PPID > {output}")

    def write(self, command: str) -> None:
        (self.folder / "Snakefile").write_text(SNAKEFILE.replace("COMMAND", command))

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "snakemake", "--executor", "slurm-steady", "--jobs", "2"]
        command += ["--slurm-steady-status-command", "squeue", "--latency-wait", "20"]
        return subprocess.Popen(
            [*command, *words],
            cwd=self.folder,
            env=self.slurm.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __call__(self, *words: str, **environment: str) -> tuple[int, str]:
        """Exit status, and what was said."""
        process = self.start(*words, **environment)
        try:
            said, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        return process.returncode, said


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def until_submitted(run: Run, jobs: int) -> None:
    end = time.monotonic() + PATIENCE
    while len(run.slurm.asked("sbatch")) < jobs:
        assert time.monotonic() < end
        time.sleep(0.1)


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """What a process says, up to the line that has these words or to its end."""
    assert process.stdout
    said = ""
    for line in process.stdout:
        said += line
        if words in line:
            break
    return said


def test_jobs_run_below_srun_in_a_folder_of_any_name(run: Run) -> None:
    status, said = run("out/0.txt", "out/1.txt")
    assert status == 0, said
    assert len(list((run.folder / "out").iterdir())) == 2
    assert len(run.slurm.asked("sbatch")) == len(run.slurm.asked("srun")) == 2
    assert "slurm-jobstep" not in "".join(run.slurm.asked("sbatch"))
    assert "slurm-steady was tested with" not in said


def test_what_is_refused_for_good_is_sent_once_and_said_once(run: Run) -> None:
    (run.slurm.folder / "refuse").write_text("sbatch: error: Invalid partition name specified")
    status, said = run("--retries", "3", "--keep-going")
    assert status == 1
    assert len(run.slurm.asked("sbatch")) == 3
    assert said.count("Invalid partition name specified") == 1
    assert said.count("SLURM refuses it for the same reason") == 2


def test_ctrl_c_cancels_the_jobs_of_the_run_and_sends_no_more(run: Run) -> None:
    (run.slurm.folder / "busy").touch()
    process = run.start()
    try:
        until_submitted(run, 2)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode != 0
    assert len(run.slurm.asked("sbatch")) == 2, said
    assert run.slurm.asked("scancel")[-1].startswith("scancel --name=")


def test_ctrl_c_that_ends_its_reader_first_cancels_all_the_same(run: Run) -> None:
    """As in `snakemake ... 2>&1 | tee log`."""
    (run.slurm.folder / "busy").touch()
    process = run.start()
    try:
        until_submitted(run, 2)
        assert process.stdout
        process.stdout.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) != 0
    finally:
        process.kill()
    assert run.slurm.asked("scancel")[-1].startswith("scancel --name=")


def test_sigterm_lets_the_jobs_end_and_sends_no_more(run: Run) -> None:
    run.write("while ! test -e stop; do sleep 0.1; done; touch {output}")
    process = run.start("--jobs", "1")
    try:
        until_submitted(run, 1)
        process.send_signal(signal.SIGTERM)
        said = read_until(process, "Will exit after finishing currently running jobs")
        (run.folder / "stop").touch()
        process.wait(timeout=PATIENCE)
    finally:
        process.kill()
        (run.folder / "stop").touch()
    assert "Will exit after finishing currently running jobs" in said
    assert len(list((run.folder / "out").iterdir())) == 1
    assert len(run.slurm.asked("sbatch")) == 1
    assert not run.slurm.asked("scancel")


def test_a_plain_plugin_that_lacks_something_ends_the_run_in_one_line(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "sitecustomize.py").write_text(
        "import snakemake_executor_plugin_slurm as plugin\ndel plugin.query_job_status\n"
    )
    path = os.pathsep.join([str(tmp_path / "other"), os.environ.get("PYTHONPATH", "")])
    status, said = run(PYTHONPATH=path)
    assert status == 1
    assert "which lacks query_job_status: pip install" in said
    assert "Traceback" not in said
    assert not run.slurm.asked("sbatch")
