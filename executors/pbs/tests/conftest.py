"""A stand-in for PBS on PATH, Snakemake on it, and short ways to use both."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from snakemake_executor_plugin_pbs.commands import Answer, Pbs, number
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


SNAKEFILE = """
rule all:
    input: expand("out/{{i}}.txt", i=range({count}))

rule one:
    output: "out/{{i}}.txt"
    params: seconds={seconds}
    threads: 1
    resources: runtime={runtime}, mem_mb=400
    shell: {shell!r}
"""

COMMAND = "sleep {params.seconds}; echo $PBS_JOBID > {output}"

UNTIL_GO = "touch begun; while ! test -e go; do sleep 0.1; done; echo $PBS_JOBID > {output}"
"""A job that lasts until the test lets it end."""


@dataclass
class Site:
    """A working directory, and Snakemake in it."""

    folder: Path
    arguments: list[str]
    python: str = sys.executable
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def write(
        self, count: int = 3, seconds: float = 0.2, shell: str = COMMAND, runtime: str = "60"
    ) -> None:
        found = {"count": count, "seconds": seconds, "shell": shell, "runtime": runtime}
        text = SNAKEFILE.format(**found)
        (self.folder / "Snakefile").write_text(text)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [
            self.python,
            "-m",
            "snakemake",
            "--executor",
            "pbs",
            "--jobs",
            "300",
            "--latency-wait",
            "5",
        ]
        command += [
            "--pbs-status-interval",
            "1",
            "--pbs-unknown-seconds",
            "3",
            "--pbs-command-timeout",
            "60",
        ]
        with (self.folder / "snakemake.out").open("w") as out:
            process = subprocess.Popen(
                [*command, *self.arguments, *words],
                cwd=self.folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> str:
        """Wait for Snakemake; what it said."""
        process.wait(timeout=PATIENCE)
        return (self.folder / "snakemake.out").read_text()

    def said(self, words: str) -> bool:
        return words in (self.folder / "snakemake.out").read_text()

    def go(self) -> None:
        """Let the jobs of UNTIL_GO end."""
        (self.folder / "go").touch()

    def snakemake(self, *words: str) -> tuple[int, str]:
        process = self.start(*words)
        out = self.end(process)
        return process.returncode, out

    def stop(self) -> None:
        """Leave no Snakemake behind when a test fails."""
        for process in self.started:
            if process.poll() is None:
                process.kill()

    def outputs(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "out").glob("*.txt"))

    def submissions(self) -> int:
        return len(lines(self.folder / "calls"))

    def live(self) -> list[str]:
        """Ids of this folder's jobs: the user may have others."""
        ours = {number(line) for line in lines(self.folder / "ids")}
        return [
            found
            for found in run("qselect -u $(id -un)", self.folder).stdout.split()
            if number(found) in ours
        ]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site whose qsub keeps a list of its calls, in front of the real one or the stand-in's."""
    words = shlex.split(os.environ.get("PBS_TEST_ARGS", ""))
    if REAL:
        folder = Path(tempfile.mkdtemp(dir=os.environ.get("PBS_TEST_DIR", tmp_path)))
        found = logged(Site(folder, words), REAL, monkeypatch)
        yield found
        found.stop()
        return
    with StandIn() as pbs:
        pbs.config.speed, pbs.config.kill_delay = 60, 1
        monkeypatch.setenv("PATH", str(pbs.bin), prepend=":")
        found = logged(Site(tmp_path, words), str(pbs.bin / "qsub"), monkeypatch)
        yield found
        found.stop()


@pytest.fixture
def lever(tmp_path: Path, pbs: StandIn) -> Iterator[Site]:  # noqa: ARG001 (the commands on PATH)
    """A site on the stand-in, whose server a test may stop and break."""
    found = Site(tmp_path, [])
    yield found
    found.stop()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def logged(site: Site, qsub: str, monkeypatch: pytest.MonkeyPatch) -> Site:
    wrapper = site.folder / "bin" / "qsub"
    wrapper.parent.mkdir()
    calls, ids = (shlex.quote(str(site.folder / name)) for name in ("calls", "ids"))
    wrapper.write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\nid=$({qsub} "$@") || exit '
        f'$?\necho "$id" >> {ids}\necho "$id"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", str(wrapper.parent), prepend=":")
    return site
