"""qsub: its arguments read and refused in the order and the words of the recorded server and
client.
"""

import getopt
import getpass
import re
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .asked import RefusalError, read_chunks, read_resources, read_seconds
from .model import SERVER, Job, Queue

if TYPE_CHECKING:
    from .server import StandIn

Answer = tuple[int, str, str]
_QSUB_OPTIONS = "a:A:c:C:e:fhIj:J:k:l:m:M:N:o:p:P:q:r:R:S:u:v:VW:XzG:"
_USAGE = """usage: qsub [-a date_time] [-A account_string] [-c interval]
\t[-C directive_prefix] [-e path] [-f ] [-h ] [-I [-X]] [-j oe|eo] [-J X-Y[:Z]]
\t[-k keep] [-l resource_list] [-m mail_options] [-M user_list]
\t[-N jobname] [-o path] [-p priority] [-P project] [-q queue] [-r y|n]
\t[-R o|e|oe] [-S path] [-u user_list] [-W otherattributes=value...]
\t[-v variable_list] [-V ] [-z] [script | -- command [arg1 ...]]
       qsub --version
"""
_LEGAL_NAME = re.compile(r"[A-Za-z0-9_.+-]+")
_MOST_IN_ARRAY = 10000
_LIMITS = (188, "", "qsub: Job violates queue and/or server resource limits\n")


def qsub(pbs: "StandIn", request: dict[str, Any]) -> Answer:
    """Check everything the recorded server checked, in its order, then queue the job."""
    try:
        job = _read_job(pbs, request)
        queue = _checked_queue(pbs, job)
    except RefusalError as refusal:
        return refusal.code, "", refusal.words
    if queue.route_to is not None:
        target = pbs.config.queues[queue.route_to]
        if not _within_limits(job, target):  # accepted, then dropped without a word
            return 0, f"{job.id}\n", ""
        job.queue = target.name
    pbs.jobs[job.number] = job
    return 0, f"{job.id}\n", ""


def _read_job(pbs: "StandIn", request: dict[str, Any]) -> Job:
    words = request["words"]
    try:
        options, rest = getopt.getopt(words, _QSUB_OPTIONS)
    except getopt.GetoptError as error:
        raise RefusalError(2, f"qsub: invalid option -- '{error.opt}'\n{_USAGE}") from error
    options = [*_directives(request.get("file") or ""), *options]
    found = {key: value for key, value in options if key != "-l"}
    name = found.get("-N", Path(rest[0]).name if rest else "STDIN")
    if "-N" in found and (not _LEGAL_NAME.fullmatch(name)):
        raise RefusalError(2, f"qsub: illegal -N value\n{_USAGE}")
    if len(name) > 230:
        raise RefusalError(2, "qsub: Job name is too long \n")
    _check_paths(found)
    script, arguments = _program(rest, request)
    umask = after = None
    for key, value in options:
        if key == "-W":
            attribute, _, text = value.partition("=")
            if attribute == "umask":
                umask = int(text, 8)
            elif attribute == "depend":
                after = _dependency(text)
            elif attribute not in {"block", "sandbox", "tolerate_node_failures", "group_list"}:
                raise RefusalError(154, "qsub: Error (15002) submitting job\n")
    if "-J" in found:
        _check_range(found["-J"])
    _check_variables(found.get("-v", ""), request)
    resources = read_resources([value for key, value in options if key == "-l"])
    state, substate, held = "Q", 10, "n"
    if "-h" in found:
        state, substate, held = "H", 20, "u"
    elif after:
        state, substate, held = "H", 22, "s"
    elif "-a" in found:
        state, substate = "W", 30
    cwd = Path(request["cwd"])
    number = pbs.next_number()
    queue = found.get("-q", pbs.config.default_queue)
    output, errors = (
        _path(found.get(f"-{letter}"), cwd, f"{name}.{letter}{number}") for letter in "oe"
    )
    return Job(
        number=number,
        name=name,
        owner=getpass.getuser(),
        queue=queue,
        script=script,
        shell_args=arguments,
        cwd=cwd,
        arguments=shlex.join(words).replace("'", ""),
        walltime=read_seconds(resources["walltime"]) if "walltime" in resources else None,
        chunks=read_chunks(resources),
        resources=resources,
        output=output,
        error=errors,
        account=found.get("-A"),
        join="-j" in found,
        keep=found.get("-k", "n"),
        rerunable=found.get("-r", "y") == "y",
        umask=umask,
        held=held,
        after=after,
        not_before=_moment(found["-a"]) if "-a" in found else None,
        removes=found.get("-R"),
        index="[]" if "-J" in found else "",
        state=state,
        substate=substate,
        environment={
            "PBS_O_HOME": str(Path.home()),
            "PBS_O_LANG": "C.UTF-8",
            "PBS_O_PATH": request["path"],
            "PBS_O_INTERACTIVE_ENCRYPT_METHOD": "",
            "PBS_O_WORKDIR": str(cwd),
            "PBS_O_QUEUE": queue,
            "PBS_O_HOST": SERVER,
        },
    )


def _dependency(text: str) -> tuple[str, int]:
    match = re.fullmatch(rf"(afterok|afternotok|afterany):(\d+)(?:\.{SERVER})?", text)
    if match is None:
        raise RefusalError(2, f"qsub: illegal -W value\n{_USAGE}")
    return match[1], int(match[2])


def _check_paths(options: dict[str, str]) -> None:
    """Paths after -o and -e are of printable ASCII letters."""
    for letter in "oe":
        path = options.get(f"-{letter}", "")
        if not (path.isascii() and path.isprintable()):
            raise RefusalError(2, f"qsub: illegal -{letter} value\n{_USAGE}")


def _check_range(text: str) -> None:
    """Take -J FIRST-LAST[:STEP][%LIMIT] or raise RefusalError."""
    match = re.fullmatch(r"(\d+)-(\d+)(:\d+)?(%\d+)?", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise RefusalError(2, f"qsub: illegal -J value\n{_USAGE}")
    if int(match[2]) - int(match[1]) >= _MOST_IN_ARRAY:
        raise RefusalError(3, "qsub: Array job exceeds server or queue size limit\n")


def _check_variables(text: str, request: dict[str, Any]) -> None:
    for variable in re.split(r"(?<!\\),", text):
        name, equals, value = variable.partition("=")
        lost = variable and not equals and name not in request.get("variables", [name])
        if lost or value.count('"') % 2:
            raise RefusalError(1, "qsub: cannot send environment with the job\n")


def _moment(text: str) -> float:
    """The time of -a [[[[CC]YY]MM]DD]hhmm[.SS] in seconds since the epoch."""
    minutes, _, seconds = text.partition(".")
    whole = time.strftime("%Y%m%d%H%M")[: 12 - len(minutes)] + minutes
    return time.mktime(time.strptime(whole + (seconds or "00"), "%Y%m%d%H%M%S"))


def _program(rest: list[str], request: dict[str, Any]) -> tuple[str, list[str] | None]:
    if "--" in request["words"]:
        return "", rest
    if not rest:
        return "", None
    path = Path(request["cwd"]) / rest[0]
    problem = request.get("problem")
    if problem == "FileNotFoundError":
        raise RefusalError(1, "qsub: script file:: No such file or directory\n")
    if path.is_dir():
        raise RefusalError(1, "qsub: script not a file\n")
    if problem == "PermissionError":
        raise RefusalError(8, "qsub: opening script file:: Permission denied\n")
    text = str(request["file"])
    if "\r\n" in text:
        raise RefusalError(1, "qsub: script contains cr, lf\n")
    return text, None


def _directives(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("#PBS "):
            found += getopt.getopt(shlex.split(line[5:]), _QSUB_OPTIONS)[0]
        elif line and not line.startswith("#"):
            break
    return found


def _path(given: str | None, cwd: Path, default: str) -> Path:
    if given is None:
        return cwd / default
    return cwd / (given.removeprefix(f"{SERVER}:") if given.startswith(f"{SERVER}:") else given)


def _checked_queue(pbs: "StandIn", job: Job) -> Queue:
    queue = pbs.config.queues.get(job.queue)
    if queue is None:
        raise RefusalError(170, "qsub: Unknown queue\n")
    if pbs.config.hook:
        _hook(job)
    if not queue.enabled:
        raise RefusalError(173, "qsub: Queue is not enabled\n")
    if not queue.open_to_user:
        raise RefusalError(159, "qsub: Unauthorized Request \n")
    if queue.route_to is None and not _within_limits(job, queue):
        raise RefusalError(_LIMITS[0], _LIMITS[2])
    held = sum(
        other.queue == queue.name and other.state not in {"F", "X"} for other in pbs.jobs.values()
    )
    if queue.max_queued is not None and held >= queue.max_queued:
        raise RefusalError(38, "qsub: would exceed queue generic's per-user limit\n")
    return queue


def _hook(job: Job) -> None:
    if job.account != "proj":
        raise RefusalError(
            32,
            "qsub: Request rejected.  Reason: No active allocation found for project "
            f"{job.account} and resource polaris\n",
        )
    for key in ("walltime", "filesystems"):
        if key not in job.resources:
            raise RefusalError(32, f"qsub: Resource: {key} is required to be set.\n")


def _within_limits(job: Job, queue: Queue) -> bool:
    nodes = sum(count for count, _ in job.chunks)
    return all(
        (low is None or value is None or value >= low)
        and (high is None or value is None or value <= high)
        for value, (low, high) in ((nodes, queue.nodes), (job.walltime, queue.walltime))
    )
