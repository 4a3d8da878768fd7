"""The script of a job, run by a process with the name of slurmstepd."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from snakemake_executor_plugin_slurm_steady import reasons
from snakemake_executor_plugin_slurm_steady.job_script import job_script
from standin import script

PARENT = r"""
import os, subprocess, sys
job = subprocess.Popen(["/bin/sh", sys.argv[1]], start_new_session=True, stdout=sys.stdout)
os.write(1, b"%d\n" % job.pid)  # whole, between the lines of others
sys.exit(job.wait())
"""
TOLD = r"""
import signal
import os
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"told\n") and exit(7))
os.write(1, b"up\n")
while True:
    signal.pause()
"""
Start = Callable[[str, str], subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the script of a command below a process of a name; it prints the script's number."""
    script(tmp_path / "scancel", f"echo $1 >> {tmp_path}/cancelled")
    started = []

    def make(name: str, command: str) -> subprocess.Popen[str]:
        (tmp_path / name).symlink_to(shutil.which(sys.executable) or sys.executable)
        (tmp_path / "job").write_text(job_script(command))
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "77"}
        environment |= {"PYTHON": sys.executable, "TOLD": TOLD}
        words = [str(tmp_path / name), "-c", PARENT, str(tmp_path / "job")]
        started.append(
            subprocess.Popen(words, env=os.environ | environment, stdout=subprocess.PIPE, text=True)
        )
        return started[-1]

    yield make
    for process in started:
        process.kill()


def up(process: subprocess.Popen[str]) -> int:
    """Return the number of the job's script, once its command runs: in whichever order they say
    so.
    """
    assert process.stdout
    lines = [process.stdout.readline().strip() for _ in range(3)]
    assert "up" in lines
    return int(next(filter(str.isdigit, lines)))


@pytest.mark.parametrize("name", ["slurmstepd", "bash"])
def test_a_job_ends_as_its_snakemake_does(name: str, start: Start, tmp_path: Path) -> None:
    process = start(name, "true && sh -c 'exit 3'")
    assert process.wait(300) == 3
    assert process.stdout
    log = "".join(line for line in process.stdout if not line.strip().isdigit())
    assert reasons.exit_status(log.encode()) == 3
    assert reasons.exit_status((log + "slurm-steady: job 77 on n1\n").encode()) is None
    assert not (tmp_path / "cancelled").exists()


def test_the_rule_is_told_when_slurm_tells_only_the_script(start: Start) -> None:
    """As with proctrack/cgroup; and its exit status is that of the job."""
    process = start("slurmstepd", 'true && "$PYTHON" -c "$TOLD"')
    os.kill(up(process), signal.SIGTERM)
    assert process.stdout
    assert process.stdout.readline() == "told\n"
    assert process.wait(300) == 7


def test_a_job_whose_slurmstepd_died_is_cancelled_when_its_snakemake_ends(
    start: Start, tmp_path: Path
) -> None:
    process = start("slurmstepd", f"echo up; until [ -e {tmp_path}/stop ]; do sleep 0.05; done")
    up(process)
    process.kill()
    process.wait()
    assert not (tmp_path / "cancelled").exists()
    (tmp_path / "stop").touch()
    wait_for(tmp_path / "cancelled")
    assert (tmp_path / "cancelled").read_text() == "77\n"


def wait_for(path: Path) -> None:
    end = time.monotonic() + 300
    while not (path.exists() and path.read_text()) and time.monotonic() < end:
        time.sleep(0.05)
