"""Short ways to give commands to PBS, to replay recorded answers, and to run Snakemake."""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_pbs.commands import number

PATIENCE = float(os.environ.get("PBS_TEST_PATIENCE", "300"))
"""Seconds after which a test is given up."""
DATA = Path(__file__).parent / "data" / "captures.jsonl"
CASES: dict[str, dict[str, Any]] = {
    case["case"]: case for case in map(json.loads, DATA.read_text(encoding="utf-8").splitlines())
}
OPTIONS = shlex.split(
    "--executor pbs --jobs 300 --latency-wait 5 --pbs-status-interval 1 --pbs-unknown-seconds 3"
)
SNAKEFILE = """
rule all:
    input: expand("out/{{i}}.txt", i=range({count}))

rule one:
    output: "out/{{i}}.txt"
    threads: 1
    resources: runtime={runtime}, mem_mb=400
    shell: {shell!r}
"""
UNTIL_GO = "touch begun; while ! test -e go; do sleep 0.1; done; echo $PBS_JOBID > {output}"
"""A job that lasts until the test lets it end."""


def until(true: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for what comes sooner or later; `seconds` only bounds a test that would never end."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def run(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell command line, as in the recorded cases."""
    return subprocess.run(
        ["bash", "-c", command], cwd=cwd, capture_output=True, text=True, check=False
    )


def script(path: Path, text: str) -> None:
    """Write a shell script that can be run."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def replay(folder: Path, **answers: str) -> None:
    """Make the commands, by name, give recorded answers, by case; "" is an empty one."""
    folder.mkdir(exist_ok=True)
    for name, case in answers.items():
        answer = CASES.get(case, {"stdout": "", "stderr": "", "exit_code": 0})
        (folder / f"{name}.out").write_text(as_text(answer["stdout"]))
        (folder / f"{name}.err").write_text(answer["stderr"])
        files = 'cat "$0.out"; cat "$0.err" >&2; echo "$*" >> "$0.calls"'
        hang = "sleep 600" if answer["exit_code"] == 124 else ""  # it was cut by `timeout`
        script(folder / name, f"{files}\n{hang}\nexit {answer['exit_code']}")


def as_text(output: str) -> str:
    """Return what `qstat -f` prints where `qstat -f -F json` was recorded."""
    if not output.startswith("{"):
        return output
    blocks = []
    for job_id, attributes in json.loads(output).get("Jobs", {}).items():
        lines = [f"Job Id: {job_id}"]
        for key, value in attributes.items():
            if isinstance(value, dict):
                lines += [f"    {key}.{inner} = {shown}" for inner, shown in value.items()]
            else:
                lines.append(f"    {key} = {value}")
        blocks.append("\n".join(lines) + "\n\n")
    return "".join(blocks)


@dataclass
class Site:
    """A working directory, and Snakemake in it through `--executor pbs`. Its qsub lists its calls
    and ids.
    """

    folder: Path
    arguments: list[str]
    python: str = sys.executable
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def log_submissions(self, qsub: str) -> str:
        """Return the folder of a qsub that keeps the ids of its jobs."""
        ids = shlex.quote(str(self.folder / "ids"))
        text = f'id=$({qsub} "$@") || exit $?\necho "$id" >> {ids}\necho "$id"'
        script(self.folder / "bin" / "qsub", text)
        return str(self.folder / "bin")

    def write(self, shell: str, count: int = 1, runtime: str = "60", before: str = "") -> None:
        text = SNAKEFILE.format(count=count, shell=shell, runtime=runtime)
        (self.folder / "Snakefile").write_text(before + text)

    def start(self, *words: str, read: bool = False) -> subprocess.Popen[bytes]:
        """Start Snakemake. Its output goes to a file, or to who reads `stdout` of the process."""
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
        """Wait for Snakemake; return its output."""
        process.wait(timeout=PATIENCE)
        return self.output()

    def snakemake(self, *words: str) -> tuple[int, str]:
        process = self.start(*words)
        return process.wait(PATIENCE), self.output()

    def output(self) -> str:
        return (self.folder / "snakemake.out").read_text()

    def go(self) -> None:
        """Let the jobs of UNTIL_GO end."""
        (self.folder / "go").touch()

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

    def submitted(self) -> list[str]:
        """Return the ids that qsub has given."""
        path = self.folder / "ids"
        return path.read_text().splitlines() if path.exists() else []

    def live(self) -> list[str]:
        """Return the ids of this folder's jobs that live: the user may have others."""
        ours = set(map(number, self.submitted()))
        ids = run("qselect -u $(id -un)", self.folder).stdout.split()
        return [job_id for job_id in ids if number(job_id) in ours]
