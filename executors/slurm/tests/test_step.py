"""The shell in a job that has SLURM end it when its slurmstepd has died."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from snakemake_executor_plugin_slurm_steady.step import MARK
from standin import script

JOB = """
import os, time
from snakemake_executor_plugin_slurm_steady import step
assert step.MARK not in os.environ
print(len(step._guards), flush=True)
time.sleep({seconds})
"""
# the job begins when it belongs to process 1, which waits for the job's guard, too
ORPHAN = """
sh -c 'sh -c "until grep -q ^PPid:.1\\$ /proc/\\$\\$/status; do /bin/sleep 0.05; done
exec \\"\\$0\\" -c \\"\\$1\\"" "$0" "$1" &' "$0" "$1"
for _ in $(seq 6000); do [ -s "$CANCELLED" ] && break; /bin/sleep 0.05; done
"""
PARENT = """
import subprocess, sys
job = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(job.pid, flush=True)
job.wait()
"""


RUNNING = "JobId=77 JobName=embed JobState=RUNNING Reason=None Requeue=1 Restarts=2 BatchFlag=1"


def parent(
    folder: Path,
    name: str,
    seconds: float,
    mark: str = "1",
    *,
    said: str = RUNNING,
    number: str = "77",
) -> subprocess.Popen[str]:
    """A process of that name (what `comm` says) that starts a job's Python as slurmstepd does."""
    python = folder / name
    python.symlink_to(shutil.which(sys.executable) or sys.executable)
    # the controller does not answer the first time
    away = f"[ -e {folder}/asked ] || {{ touch {folder}/asked; exit 1; }}"
    script(folder / "scancel", f"{away}\necho $1 > {folder}/cancelled")
    script(folder / "scontrol", f"echo '{said}' | tee {folder}/looked")
    script(folder / "sleep", "true")
    environment = os.environ | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "SLURM_JOB_ID": number,
        "SLURM_RESTART_COUNT": "2",
    }
    starter = PARENT.replace("sys.executable", repr(sys.executable))
    return subprocess.Popen(
        [str(python), "-c", starter, JOB.format(seconds=seconds)],
        env=environment | ({MARK: mark} if mark else {}),
        stdout=subprocess.PIPE,
        text=True,
    )


def lines(process: subprocess.Popen[str]) -> tuple[int, int]:
    """The job's process id, and how many guards it has."""
    assert process.stdout
    return int(process.stdout.readline()), int(process.stdout.readline())


def appears(path: Path, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    return path.exists()


def test_a_job_whose_slurmstepd_died_is_cancelled_when_its_snakemake_ends(tmp_path: Path) -> None:
    step = parent(tmp_path, "slurmstepd", seconds=3600)
    job, guards = lines(step)
    assert guards == 1
    step.kill()
    step.wait()
    assert not appears(tmp_path / "cancelled", 0.5), "its Snakemake is still at work"
    os.kill(job, signal.SIGKILL)
    assert appears(tmp_path / "cancelled", 300)
    assert (tmp_path / "cancelled").read_text() == "77\n"


@pytest.mark.parametrize(
    "said",
    [RUNNING.replace("RUNNING", "PENDING"), RUNNING.replace("Restarts=2", "Restarts=3")],
    ids=["waits to run again", "runs again"],
)
def test_a_job_that_slurm_runs_again_is_left_alone(said: str, tmp_path: Path) -> None:
    """It has the same number, and all its processes died together."""
    step = parent(tmp_path, "slurmstepd", seconds=3600, said=said)
    job, _ = lines(step)
    step.kill()
    step.wait()
    os.kill(job, signal.SIGKILL)
    assert appears(tmp_path / "looked", 300)
    assert not appears(tmp_path / "cancelled", 0.5)


@pytest.mark.parametrize(
    ("name", "mark", "guards"),
    [("slurmstepd", "1", 1), ("bash", "1", 0), ("slurmstepd", "", 0)],
    ids=["in order", "not below slurmstepd", "not a job of this plugin"],
)
def test_nothing_else_is_cancelled(name: str, mark: str, guards: int, tmp_path: Path) -> None:
    step = parent(tmp_path, name, 0.1, mark)
    assert lines(step)[1] == guards
    assert step.wait(300) == 0
    assert not appears(tmp_path / "cancelled", 0.5)


def test_a_slurmstepd_that_died_before_its_job_looked_is_missed_all_the_same(
    tmp_path: Path,
) -> None:
    script(tmp_path / "scancel", f"echo $1 > {tmp_path}/cancelled")
    script(tmp_path / "scontrol", f"echo '{RUNNING.replace('Restarts=2', 'Restarts=0')}'")
    script(tmp_path / "sleep", "true")
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "SLURM_JOB_ID": "77",
        "CANCELLED": str(tmp_path / "cancelled"),
        MARK: "1",
    }
    # in a PID namespace of its own, as on a node, orphans belong to process 1
    job = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", ORPHAN, sys.executable]
    if subprocess.run([*job[:4], "true"], capture_output=True, check=False).returncode:
        pytest.skip("only root may make a PID namespace")
    done = subprocess.run(
        [*job, JOB.format(seconds=0.5)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n", done.stderr
    assert (tmp_path / "cancelled").read_text() == "77\n"


@pytest.mark.parametrize("steps", [("0", "batch"), ("0",)], ids=["in order", "batch script's died"])
def test_without_the_slurmstepd_of_its_batch_script_a_job_is_cancelled(
    steps: tuple[str, ...], tmp_path: Path
) -> None:
    number = f"8{len(steps)}"  # tests beside this one see all processes
    seen = [
        subprocess.Popen(["bash", "-c", f"exec -a 'slurmstepd: [{number}.{step}]' sleep 3600"])
        for step in steps
    ]
    try:
        while not all(
            b"slurmstepd" in Path(f"/proc/{one.pid}/cmdline").read_bytes() for one in seen
        ):
            time.sleep(0.01)
        step = parent(tmp_path, "slurmstepd", 0.1, number=number)
        assert lines(step)[1] == 1
        assert step.wait(300) == 0
        assert appears(tmp_path / "cancelled", 300 if len(steps) == 1 else 1) == (len(steps) == 1)
    finally:
        for one in seen:
            one.kill()


TOLD = """
import signal, subprocess, sys
from snakemake_executor_plugin_slurm_steady import step
step.end_with_step()
signal.signal(signal.SIGTERM, lambda *_: print("told", flush=True))  # Snakemake's, set later
print(subprocess.run(["sh", "-c", '"$0" -c "$1"; exit $?', sys.executable, sys.argv[1]]).returncode)
"""
RULE = """
import signal
signal.signal(signal.SIGTERM, lambda *_: print("the rule, too", flush=True) or exit(7))
print("up", flush=True)
while True:
    signal.pause()
"""


def test_the_rule_is_told_when_slurm_tells_only_its_snakemake() -> None:
    """As with proctrack/cgroup."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), MARK: "1"}
    job = subprocess.Popen(
        [sys.executable, "-c", TOLD, RULE], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert job.stdout and job.stdout.readline() == "up\n"
    job.send_signal(signal.SIGTERM)
    # by both at the same time: in any order, even in one line
    said = job.communicate(timeout=300)[0]
    assert "told" in said
    assert "the rule, too" in said
