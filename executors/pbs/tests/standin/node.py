"""Jobs on a node: processes, signals, and where the output goes."""

import contextlib
import os
import subprocess
from pathlib import Path

from .model import Job


def start(job: Job, spool: Path) -> None:
    """Run the script of a job with what PBS gives it, its output in `spool` unless it is to be seen
    live.
    """
    spool.mkdir(parents=True, exist_ok=True)
    script = spool / "job.SC"
    script.write_text(job.script, encoding="utf-8")
    script.chmod(0o700)
    (spool / "nodefile").write_text("".join(f"node{node + 1:02}\n" for node in job.where))
    threads = str(job.chunks[0]["ncpus"])
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(Path.home()),
        "USER": job.owner,
        "LOGNAME": job.owner,
        "SHELL": "/bin/bash",
        "NCPUS": threads,
        "OMP_NUM_THREADS": threads,
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_JOBID": job.id,
        "PBS_JOBNAME": job.name,
        "PBS_QUEUE": job.queue,
        "PBS_NODEFILE": str(spool / "nodefile"),
        "TMPDIR": str(spool),
    }
    out = job.output if job.live_output else spool / "out"
    if not out.exists():
        out.touch(0o666 & ~job.umask)
    with out.open("ab") as handle:
        job.process = subprocess.Popen(
            ["/bin/bash", "-c", f"{script}; exit $?"],
            cwd=Path.home(),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            start_new_session=True,
            umask=job.umask,
        )


def deliver(job: Job, spool: Path) -> bool:
    """Put the output of an ended job where it belongs; whether that went well."""
    try:
        if not job.live_output:
            job.output.write_bytes((spool / "out").read_bytes())
            job.output.chmod(0o666 & ~job.umask)
    except OSError:
        return False
    return True


def session(leader: int) -> list[int]:
    """The living processes of a session, youngest first."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                members.append(int(stat.parent.name))
    return sorted(members, reverse=True)


def signal_session(leader: int, number: int) -> None:
    """Signal every process of a session, children first, as the daemon of a node does."""
    for pid in session(leader):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
