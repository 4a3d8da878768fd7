"""The commands themselves: arguments in, (exit code, stdout, stderr) out, in the words of the
recorded ones.
"""

import getopt
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import render
from .model import SERVER, Job
from .qsub import Answer, qsub

if TYPE_CHECKING:
    from .server import StandIn


def qselect(pbs: "StandIn", request: dict[str, Any]) -> Answer:
    """Ids by user, name, state, queue or hold types; ended jobs with -x only."""
    options = dict(getopt.getopt(request["words"], "u:N:s:q:h:x")[0])
    history = "-x" in options
    if history and not pbs.config.history:
        return 0, "", "qselect: PBS is not configured to maintain job history\n"
    lines = []
    for job in _known(pbs):
        if job.state == "F" and not history:
            continue
        if job.owner != options.get("-u", job.owner) or job.name != options.get("-N", job.name):
            continue
        if job.state not in options.get("-s", job.state) or job.queue != options.get(
            "-q", job.queue
        ):
            continue
        if job.held != options.get("-h", job.held):
            continue
        lines.append(f"{job.id}\n")
    return 0, "".join(lines), ""


def qstat(pbs: "StandIn", request: dict[str, Any]) -> Answer:
    """`-f` of ids as text, JSON or DSV; tables; one bad id does not hide the others."""
    options, ids = getopt.getopt(request["words"], "fF:D:xwu:aHsn1tBQ")
    found = dict(options)
    if "-B" in found:
        return 0, f"Server: {SERVER}\n    server_state = Active\n    server_host = {SERVER}\n", ""
    if "-Q" in found:
        return 0, "".join(map(render.queue, pbs.config.queues.values())), ""
    history = "-x" in found or "-H" in found
    if not ids:
        if history and not pbs.config.history:
            return 0, "", "qstat: PBS is not configured to maintain job history \n"
        jobs = [job for job in _known(pbs) if history or job.state != "F"]
        return (
            0,
            _shown(
                pbs, [job for job in jobs if job.owner == found.get("-u", job.owner)], found, None
            ),
            "",
        )
    code, errors, jobs, first = 0, [], [], 0
    for asked in ids:
        if not asked:
            continue
        problem, named = _lookup(pbs, asked, "-t" in found)
        hidden = not pbs.config.others_shown and any(
            job.owner != request.get("user", job.owner) for job in named
        )
        if hidden:
            continue
        if history and not pbs.config.history and (named or problem == 153):
            errors.append(f"qstat: PBS is not configured to maintain job history {_full(asked)}\n")
        elif not named:
            code = problem
            what = {
                153: f"Unknown Job Id {_full(asked)}",
                170: f"Unknown queue destination {asked}",
            }
            errors.append(
                f"qstat: {what.get(problem, f'illegally formed job identifier: {asked}')}\n"
            )
        elif named[0].state == "F" and not pbs.config.history:
            code = 153
            errors.append(f"qstat: Unknown Job Id {named[0].id}\n")
        elif named[0].state == "F" and not history:
            code = 35
            errors.append(
                f"qstat: {named[0].id} Job has finished, use -x or -H to obtain historical job "
                "information\n"
            )
        else:
            jobs += named
            first = first or len(named)
    return code, _shown(pbs, jobs, found, first), "".join(errors)


def _shown(pbs: "StandIn", jobs: list[Job], options: dict[str, str], first: int | None) -> str:
    form = options.get("-F")
    if form == "json":
        return render.json_new(jobs, first) if pbs.config.client == "new" else render.json_old(jobs)
    if form == "dsv":
        return "".join(render.dsv(job, options.get("-D", "|")) for job in jobs)
    if "-f" in options:
        return "".join(render.text(job, "-w" in options) for job in jobs)
    if options.keys() & {"-a", "-H", "-n", "-s", "-u"}:
        return render.table_of_requests(jobs, "-w" in options, "-n" in options, "-s" in options)
    return render.table(jobs)


def qdel(pbs: "StandIn", request: dict[str, Any]) -> Answer:
    """Delete what can be deleted; the exit code is that of the last id that could not."""
    options, ids = getopt.getopt(request["words"], "W:x")
    if not ids:
        return (
            2,
            "",
            "usage:\n\tqdel [-W force|suppress_email=X] [-x] job_identifier...\n\tqdel --version\n",
        )
    code, errors = 0, []
    for asked in ids:
        problem, named = _lookup(pbs, asked)
        if not named or (named[0].state == "F" and not pbs.config.history):
            code = 1 if problem in {1, 170} else 153
            errors.append(
                f"qdel: Unknown Job Id {_full(asked)}\n"
                if code == 153
                else f"qdel: illegally formed job identifier: {asked}\n"
            )
            continue
        for job in named:
            refused, words = _delete(pbs, job, options, request.get("user", job.owner))
            code = refused or code
            errors.append(words)
    return code, "", "".join(errors)


def _delete(pbs: "StandIn", job: Job, options: list[tuple[str, str]], user: str) -> tuple[int, str]:
    """Delete one job if that can be: (0, "") or why not."""
    force = ("-W", "force") in options
    if job.owner != user:
        return 159, f"qdel: Unauthorized Request  {job.id}\n"
    if job.state == "F":
        if ("-x", "") not in options:
            return 35, f"qdel: Job has finished {job.id}\n"
        pbs.purged.add(job.number)
    elif job.state == "E":
        return 168, f"qdel: Request invalid for state of job {job.id}\n"
    elif job.state == "R" and any(node in pbs.down_nodes for node, _ in job.where) and not force:
        return 222, f"qdel: Server could not connect to MOM {job.id}\n"
    else:
        pbs.delete(job, force=force)
    return 0, ""


def _known(pbs: "StandIn") -> list[Job]:
    return [job for _, job in sorted(pbs.jobs.items()) if job.number not in pbs.purged]


def _full(asked: str) -> str:
    return asked if "." in asked else f"{asked}.{SERVER}"


def _lookup(pbs: "StandIn", asked: str, whole_arrays: bool = False) -> tuple[int, list[Job]]:
    """The jobs of an id, several for a part of an array ([2-4]) or a whole one; else why there is
    none.
    """
    match = re.fullmatch(rf"(\d+)(?:\[(\d*)(?:-(\d+))?\])?(?:\.{SERVER})?", asked)
    if match is None:
        return (170 if asked[:1].isalpha() else 1), []
    number, low, high = match.groups()
    if low is None:
        wanted = {""}
    elif low:
        wanted = {f"[{at}]" for at in range(int(low), int(high or low) + 1)}
    else:
        wanted = {"[]"}
    found = [job for job in _known(pbs) if job.number == int(number)]
    if not (whole_arrays and low == ""):
        found = [job for job in found if job.index in wanted]
    return 153, found


COMMANDS = {"qsub": qsub, "qselect": qselect, "qstat": qstat, "qdel": qdel}


def install(folder: Path) -> None:
    """Write the commands, as clients of the server, into a new folder."""
    folder.mkdir()
    source = Path(__file__).with_name("client.py").read_text(encoding="utf-8")
    for name in COMMANDS:
        command = folder / name
        command.write_text(f"#!{sys.executable} -SE\n{source}", encoding="utf-8")
        command.chmod(0o755)
