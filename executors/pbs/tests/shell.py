"""Short ways to give commands to PBS and to wait for what comes of them."""

import os
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from snakemake_executor_plugin_pbs.commands import Answer, Pbs
from standin import StandIn

# seconds after which a test is given up
PATIENCE = float(os.environ.get("PBS_TEST_PATIENCE", "300"))


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
        super().__init__(300.0)
        self.server = server

    def call(self, *words: str) -> Answer:
        if not self.server.hung:
            return super().call(*words)
        before = self.server.taken
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        until(lambda: self.server.taken > before)
        process.kill()
        process.wait()
        return Answer(None, "", f"{words[0]}: no answer")


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
