"""The commands: a client's request in, (exit code, stdout, stderr) out, in the words of the
recorded ones.
"""

import getopt
import getpass
import re
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .model import SERVER, Job, Queue

if TYPE_CHECKING:
    from .server import StandIn

Answer = tuple[int, str, str]
_USAGE = "usage: qsub [-a date_time] [-A account_string] [-c interval]\n"
_RESOURCES = {"ncpus", "ngpus", "mem", "walltime", "select", "place", "filesystems", "system"}
_NO_HISTORY = "PBS is not configured to maintain job history"


class RefusalError(Exception):
    """A refusal by qsub: its exit code and its words."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


def qsub(pbs: "StandIn", request: dict[str, Any]) -> Answer:
    """Check the request in the server's order, then queue the job."""
    try:
        job = _read_job(pbs, request)
        _check_queue(pbs, job)
    except RefusalError as refusal:
        return refusal.code, "", f"qsub: {refusal}\n"
    pbs.jobs[job.number] = job
    return 0, f"{job.id}\n", ""


def _read_job(pbs: "StandIn", request: dict[str, Any]) -> Job:
    try:
        options, _ = getopt.getopt(request["words"], "A:P:N:q:o:j:k:r:l:W:hV")
    except getopt.GetoptError as error:
        raise RefusalError(2, f"invalid option -- '{error.opt}'\n{_USAGE}") from error
    words = {key: value for key, value in options if key != "-l"}
    name, output = words.get("-N", "STDIN"), words.get("-o", "job.log")
    if not re.fullmatch(r"[A-Za-z0-9_.+-]+", name):
        raise RefusalError(2, f"illegal -N value\n{_USAGE}")
    if not (output.isascii() and output.isprintable()):
        raise RefusalError(2, f"illegal -o value\n{_USAGE}")
    limits = dict(value.split("=", 1) for key, value in options if key == "-l")
    for key in limits:
        if key not in _RESOURCES:
            raise RefusalError(187, f"Unknown resource Resource_List.{key}")
    pbs.last += 1
    return Job(
        number=pbs.last,
        name=name,
        owner=getpass.getuser(),
        queue=words.get("-q", pbs.config.default_queue),
        script=request["script"],
        arguments=shlex.join(request["words"]).replace("'", ""),
        output=Path(request["cwd"], output),
        resources=limits,
        chunks=_chunks(limits),
        walltime=_seconds(limits["walltime"]) if "walltime" in limits else None,
        live_output="d" in words.get("-k", ""),
        rerunable=words.get("-r", "y") == "y",
        umask=int(words.get("-W", "umask=077").removeprefix("umask="), 8),
        held="u" if "-h" in words else "n",
        state="H" if "-h" in words else "Q",
    )


def _chunks(limits: dict[str, str]) -> list[dict[str, int]]:
    count, *parts = limits.get("select", "1").split(":")
    values = dict(part.split("=", 1) for part in parts)
    chunk = {key: int(values.get(key, least)) for key, least in (("ncpus", 1), ("ngpus", 0))}
    return [chunk] * int(count)


def _seconds(text: str) -> int:
    fields = text.split(":")
    if len(fields) > 3 or not all(field.isdigit() for field in fields):
        raise RefusalError(166, "Illegal attribute or resource value Resource_List.walltime")
    return sum(int(field) * 60**power for power, field in enumerate(reversed(fields)))


def _check_queue(pbs: "StandIn", job: Job) -> None:
    queue = pbs.config.queues.get(job.queue)
    if queue is None:
        raise RefusalError(170, "Unknown queue")
    if not queue.enabled:
        raise RefusalError(173, "Queue is not enabled")
    if not _fits(job, queue):
        raise RefusalError(188, "Job violates queue and/or server resource limits")
    held = Counter(other.queue for other in pbs.jobs.values() if other.state != "F")
    if queue.max_queued is not None and held[queue.name] >= queue.max_queued:
        raise RefusalError(38, "would exceed queue generic's per-user limit")


def _fits(job: Job, queue: Queue) -> bool:
    fewest, most = queue.nodes
    shortest, longest = queue.walltime
    time_fits = job.walltime is None or shortest <= job.walltime <= longest
    return time_fits and fewest <= len(job.chunks) <= most


def qselect(pbs: "StandIn", request: dict[str, Any]) -> Answer:
    """Ids of living jobs by user, name, or hold types."""
    options = dict(getopt.getopt(request["words"], "u:N:h:")[0])
    ids = [
        f"{job.id}\n"
        for _, job in sorted(pbs.jobs.items())
        if job.state != "F"
        and job.owner == options.get("-u", job.owner)
        and job.name == options.get("-N", job.name)
        and job.held == options.get("-h", job.held)
    ]
    return 0, "".join(ids), ""


def qstat(pbs: "StandIn", request: dict[str, Any]) -> Answer:
    """`[-x] -f ID...`; one bad id does not hide the others. `-Q -f`: the queues."""
    options, ids = getopt.getopt(request["words"], "fxQ")
    if ("-Q", "") in options:
        return 0, "".join(map(_described, pbs.config.queues.values())), ""
    history, kept = ("-x", "") in options, pbs.config.history
    code, out, err = 0, "", ""
    for named in ids:
        job, full = _lookup(pbs, named)
        if history and not kept:
            err += f"qstat: {_NO_HISTORY} {full}\n"
        elif job is None or (job.state == "F" and not kept):
            code, err = 153, err + f"qstat: Unknown Job Id {full}\n"
        elif job.state == "F" and not history:
            hint = "use -x or -H to obtain historical job information"
            code, err = 35, err + f"qstat: {full} Job has finished, {hint}\n"
        else:
            out += f"{job.text()}\n\n"
    return code, out, err


def _described(queue: Queue) -> str:
    state = f"    enabled = {queue.enabled}\n    started = {queue.started}\n"
    return f"Queue: {queue.name}\n    queue_type = Execution\n{state}\n"


def qdel(pbs: "StandIn", request: dict[str, Any]) -> Answer:
    """Delete the jobs that can be; the exit code is that of the last id that could not."""
    options, ids = getopt.getopt(request["words"], "W:x")
    force, purge = ("-W", "force") in options, ("-x", "") in options
    code, err = 0, ""
    for named in ids:
        job, full = _lookup(pbs, named)
        refused, words = 0, ""
        if job is None or (job.state == "F" and not pbs.config.history):
            refused, words = 153, f"Unknown Job Id {full}"
        elif job.state == "F" and purge:
            pbs.purged.add(job.number)
        elif job.state == "F":
            refused, words = 35, f"Job has finished {full}"
        elif job.state == "E":
            refused, words = 168, f"Request invalid for state of job {full}"
        elif job.state == "R" and not force and pbs.down_nodes & set(job.where):
            refused, words = 222, f"Server could not connect to MOM {full}"
        else:
            pbs.delete(job, force=force)
        if refused:
            code, err = refused, err + f"qdel: {words}\n"
    return code, "", err


def _lookup(pbs: "StandIn", named: str) -> tuple[Job | None, str]:
    """The job of an id, and the id in full."""
    number = int(named.removesuffix(f".{SERVER}"))
    job = None if number in pbs.purged else pbs.jobs.get(number)
    return job, f"{number}.{SERVER}"


COMMANDS = {"qsub": qsub, "qselect": qselect, "qstat": qstat, "qdel": qdel}


def install(folder: Path) -> None:
    """Write the commands, as clients of the server, into a new folder."""
    folder.mkdir()
    source = Path(__file__).with_name("client.py").read_text(encoding="utf-8")
    for name in COMMANDS:
        command = folder / name
        command.write_text(f"#!{sys.executable} -SE\n{source}", encoding="utf-8")
        command.chmod(0o755)
