"""A working directory with a workflow, and Snakemake in it through `--executor pbs`."""

import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shell import PATIENCE, run
from snakemake_executor_plugin_pbs.commands import number

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


OPTIONS = shlex.split(
    "--executor pbs --jobs 300 --latency-wait 5 --pbs-status-interval 1 --pbs-unknown-seconds 3"
)


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
        text = SNAKEFILE.format(count=count, seconds=seconds, shell=shell, runtime=runtime)
        (self.folder / "Snakefile").write_text(text)

    def start(self, *words: str, read: bool = False) -> subprocess.Popen[bytes]:
        """Its output goes to a file, or to who reads it: `stdout` of the process."""
        command = [self.python, "-m", "snakemake", *OPTIONS, *self.arguments, *words]
        with (self.folder / "snakemake.out").open("w") as out:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdout=subprocess.PIPE if read else out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> str:
        """Wait for Snakemake; its output."""
        process.wait(timeout=PATIENCE)
        return (self.folder / "snakemake.out").read_text()

    def printed(self, words: str) -> bool:
        return words in (self.folder / "snakemake.out").read_text()

    def go(self) -> None:
        """Let the jobs of UNTIL_GO end."""
        (self.folder / "go").touch()

    def snakemake(self, *words: str) -> tuple[int, str]:
        process = self.start(*words)
        return process.wait(PATIENCE), self.end(process)

    def stop(self) -> None:
        """Leave no Snakemake behind when a test fails."""
        for process in self.started:
            if process.poll() is None:
                process.kill()

    def outputs(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "out").glob("*.txt"))

    def left(self) -> list[Path]:
        """Return locks and entries in the ledger, which would hold up the next run."""
        own = self.folder / ".snakemake"
        return [path for name in ("locks", "auxiliary/pbs") for path in (own / name).glob("*")]

    def submissions(self) -> int:
        return len(lines(self.folder / "calls"))

    def queued(self) -> int:
        """How many jobs qsub has given an id."""
        return len(lines(self.folder / "ids"))

    def live(self) -> list[str]:
        """Ids of this folder's jobs: the user may have others."""
        ours = {number(line) for line in lines(self.folder / "ids")}
        ids = run("qselect -u $(id -un)", self.folder).stdout.split()
        return [job_id for job_id in ids if number(job_id) in ours]


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
