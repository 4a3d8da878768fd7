"""A stand-in for PBS on PATH, and short ways to use it."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from standin import Config, StandIn


def pytest_report_header() -> str:
    """Which PBS the workflows go through, so that nobody takes one for the other."""
    real = shutil.which("qsub")
    if real is None and os.environ.get("PBS_TEST_REAL"):
        pytest.exit("PBS_TEST_REAL is set, and there is no qsub on PATH", returncode=1)
    return f"PBS: {f'the real one of {real}' if real else 'the stand-in, as there is no qsub on PATH'}"


@pytest.fixture
def pbs(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A running stand-in whose commands are found first."""
    with StandIn(Config(speed=60, kill_delay=0.5)) as standin:
        monkeypatch.setenv("PATH", str(standin.bin), prepend=":")
        yield standin


def run(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A shell command line, as in the recorded cases."""
    return subprocess.run(["bash", "-c", command], cwd=cwd, capture_output=True, text=True, check=False)


def submit(folder: Path, script: str, *words: str) -> int:
    """Queue a script; the job's number."""
    path = folder / "job.sh"
    path.write_text(script, encoding="utf-8")
    done = run(shlex.join(["qsub", "-j", "oe", *words, str(path)]), folder)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.partition(".")[0])
