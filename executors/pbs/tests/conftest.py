"""A stand-in for PBS on PATH, and short ways to use it."""

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from snakemake_executor_plugin_pbs.commands import Answer, Pbs
from standin import Config, StandIn

# what starts the tests in the background may ignore these, and so would all that the tests start
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# how long an example takes, or takes to draw, depends on what else the machine does; and what fails
# fails again
settings.register_profile(
    "here", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("here")

REAL = shutil.which("qsub") if os.environ.get("PBS_TEST_REAL") else None
"""Asked for, never merely found: a qsub on PATH may belong to a server that is not there, or to a
site's users.
"""


PATIENCE = float(
    os.environ.get("PBS_TEST_PATIENCE", "300")
)  # seconds after which a test is given up


def pytest_report_header() -> str:
    """Which PBS the workflows go through, so that nobody takes one for the other."""
    if REAL is None and os.environ.get("PBS_TEST_REAL"):
        pytest.exit("PBS_TEST_REAL is set, and there is no qsub on PATH", returncode=1)
    return (
        f"PBS: {f'the real one of {REAL}' if REAL else 'the stand-in, as PBS_TEST_REAL is not set'}"
    )


@pytest.fixture
def pbs(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A running stand-in whose commands are found first."""
    with StandIn(Config(speed=60, kill_delay=0.5, undeliverable=1e6)) as standin:
        monkeypatch.setenv("PATH", str(standin.bin), prepend=":")
        yield standin


def until(true: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for what comes sooner or later; `seconds` only bounds a test that would never end."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


class Cut(Pbs):
    """Commands that are given all the time they want, and cut as soon as a hung server has taken
    what they ask.
    """

    def __init__(self, server: StandIn) -> None:
        super().__init__(0.2)
        self.server, self.before = server, 0

    def call(self, *words: str) -> Answer:
        self.before = self.server.taken
        return super().call(*words)

    @property
    def timeout(self) -> float:
        if self.server.hung:
            until(lambda: self.server.taken > self.before)
        return self.short if self.server.hung else 300.0

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self.short = seconds


def run(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A shell command line, as in the recorded cases."""
    return subprocess.run(
        ["bash", "-c", command], cwd=cwd, capture_output=True, text=True, check=False
    )


def submit(folder: Path, script: str, *words: str) -> int:
    """Queue a script; the job's number."""
    path = folder / "job.sh"
    path.write_text(script, encoding="utf-8")
    done = run(shlex.join(["qsub", "-j", "oe", *words, str(path)]), folder)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.partition(".")[0])
