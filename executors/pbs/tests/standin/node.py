"""What a node does with a job: processes, signals, and where the output goes."""

import contextlib
import os
import subprocess
import time
from pathlib import Path

from .model import Job


def start(job: Job, spool: Path) -> None:
    """Run the script of a job with what PBS gives it, its output in `spool` unless it is to be seen
    live.
    """
    spool.mkdir(parents=True, exist_ok=True)
    script, scratch = spool / "job.SC", spool / "tmp"
    script.write_text(job.script, encoding="utf-8")
    script.chmod(0o700)
    scratch.mkdir(exist_ok=True)
    (spool / "nodefile").write_text("".join(f"node{node + 1:02}\n" for node in job.ranks()))
    threads = job.threads()
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(Path.home()),
        "USER": job.owner,
        "LOGNAME": job.owner,
        "SHELL": "/bin/bash",
        "ENVIRONMENT": "BATCH",
        "NCPUS": threads,
        "OMP_NUM_THREADS": threads,
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_JOBDIR": str(Path.home()),
        "PBS_NODENUM": "0",
        "PBS_TASKNUM": "1",
        "PBS_JOBID": job.id,
        "PBS_JOBNAME": job.name,
        "PBS_QUEUE": job.queue,
        "PBS_NODEFILE": str(spool / "nodefile"),
        "TMPDIR": str(scratch),
        **({"PBS_ACCOUNT": job.account} if job.account else {}),
        **job.environment,
    }
    live = "d" in job.keep
    out = job.output if live else spool / "out"
    err = out if job.join else job.error if live else spool / "err"
    command = [*job.shell_args] if job.shell_args else ["/bin/bash", "-c", f"{script}; exit $?"]
    job.started, job.ended = time.time(), None
    for path in {out, err}:
        if not path.exists():
            path.touch(0o666 & ~(0o077 if job.umask is None else job.umask))
    with out.open("ab") as stdout, err.open("ab") as stderr:
        try:
            job.process = subprocess.Popen(
                command,
                cwd=Path.home(),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                umask=0o077 if job.umask is None else job.umask,
            )
        except FileNotFoundError:
            job.process = subprocess.Popen(["/bin/sh", "-c", "exit 254"], start_new_session=True)


def deliver(job: Job, spool: Path) -> bool:
    """Put the output of an ended job where it belongs; whether that went well."""
    if "d" in job.keep or (job.removes and job.exit_status == 0):
        return True
    for source, target in [
        (spool / "out", job.output),
        *([] if job.join else [(spool / "err", job.error)]),
    ]:
        kept = Path.home() / target.name if job.keep == "oe" else target
        final = (
            kept / f"{job.id}.{'OU' if source.name == 'out' else 'ER'}" if kept.is_dir() else kept
        )
        try:
            with os.fdopen(
                os.open(final, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), "wb"
            ) as handle:
                handle.write(source.read_bytes())
            if final.is_file():
                final.chmod(0o666 & ~(0o077 if job.umask is None else job.umask))
        except OSError:
            return False
    return True


def say_in_output(job: Job, spool: Path, words: str) -> None:
    """Add what the node has to say to a running job's output."""
    live = "d" in job.keep
    target = (
        (job.output if live else spool / "out")
        if job.join
        else (job.error if live else spool / "err")
    )
    with target.open("a") as handle:
        handle.write(words)


def session(leader: int) -> list[int]:
    """The living processes of a session, youngest first."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] != "Z":
                members.append(int(entry.name))
    return sorted(members, reverse=True)


def signal_session(leader: int, number: int) -> None:
    """Signal every process of a session, children first, as the daemon of a node does."""
    for pid in session(leader):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
