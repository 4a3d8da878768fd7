"""How jobs are printed: `qstat -f` as text (folded or wide), as JSON of either client generation, as DSV; tables."""

import json
import re
import time
from typing import Any

from .model import SERVER, Job, flat

_LIMIT = 78
_NUMBER = re.compile(r"(?!0\d)[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|[+-]?(inf|infinity|nan)$", re.IGNORECASE)
_TEXTS = {"Job_Name", "Account_Name", "project"}  # what new clients never take for JSON


def text(job: Job, wide: bool) -> str:
    """`qstat -f`: long values are folded at commas, else anywhere, unless `wide` (-w)."""
    lines = [f"Job Id: {job.id}\n"]
    for key, value in flat(job.attributes()):
        lines.append(f"    {key} = {value if wide else _folded(value, len(key) + 7)}\n")
    return "".join(lines) + "\n"


def dsv(job: Job) -> str:
    """`qstat -f -F dsv` with the delimiter `|`."""
    return "|".join([f"Job Id: {job.id}", *(f"{key}={value}" for key, value in flat(job.attributes()))]) + "\n"


def json_new(jobs: list[Job]) -> str:
    """JSON of clients since 2023-12: only the first of several jobs; values that are JSON change their type."""
    content: dict[str, Any] = _header("23.06.06")
    if jobs:
        content["Jobs"] = {job.id: _typed(job.attributes()) for job in jobs[:1]}
    return (
        re.sub(
            r"^(\t*\"(?:[^\"\\]|\\.)*\":) ", r"\1\t", json.dumps(content, indent="\t", ensure_ascii=False), flags=re.M
        )
        + "\n"
    )


def json_old(jobs: list[Job]) -> str:
    """JSON of clients before that: all jobs; numbers in C's sense go unquoted; an empty variable swallows the next."""
    content = _header("20.0.0")
    lines = [
        f'    "{key}":{value if isinstance(value, int) else _quoted(str(value))}' for key, value in content.items()
    ]
    if jobs:
        inner = ",\n".join(f'        "{job.id}":{_old_object(_swallowed(job.attributes()), 2)}' for job in jobs)
        lines.append('    "Jobs":{\n' + inner + "\n    }")
    return "{\n" + ",\n".join(lines) + "\n}" + ("\n" if jobs else "")


def table_of_user(jobs: list[Job]) -> str:
    """`qstat -u USER`: nothing at all when the user has no jobs."""
    if not jobs:
        return ""
    head = f"\n{SERVER}: \n{'':60}Req'd  Req'd   Elap\n"
    head += "Job ID          Username Queue    Jobname    SessID NDS TSK Memory Time  S Time\n"
    head += "--------------- -------- -------- ---------- ------ --- --- ------ ----- - -----\n"
    return head + "".join(_user_row(job) for job in jobs)


def _user_row(job: Job) -> str:
    shown = dict(flat(job.attributes()))
    session = shown.get("session_id", "--")
    elapsed = "00:00" if job.started else " -- "
    return (
        f"{job.id:15.15} {job.owner:8.8} {job.queue:8.8} {job.name:10.10} {session:>6.6} "
        f"{shown['Resource_List.nodect']:>3.3} {shown['Resource_List.ncpus']:>3.3}    --  "
        f"{shown.get('Resource_List.walltime', '--')[:5]:5} {job.state} {elapsed}\n"
    )


def _folded(value: str, start: int) -> str:
    out, column, first = [], start, True
    pieces = value.split(",")
    for index, piece in enumerate(pieces):
        if len(piece) + column < _LIMIT:
            out.append(piece)
            column += len(piece)
        else:
            if not first:
                out.append("\n\t")
                column = 9
            for letter in piece:
                out.append(letter)
                column += 1
                if column > _LIMIT:
                    out.append("\n\t")
                    column = 8
        if index + 1 < len(pieces):
            first = False
            out.append(",")
            column += 1
    return "".join(out)


def _header(version: str) -> dict[str, Any]:
    return {"timestamp": int(time.time()), "pbs_version": version, "pbs_server": SERVER}


def _typed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: str(inner) if key in _TEXTS else _typed(inner) for key, inner in value.items()}
    try:
        return json.loads(str(value), parse_constant=str)
    except ValueError:
        return str(value)


def _old_object(value: dict[str, Any], depth: int) -> str:
    pad = "    " * (depth + 1)
    rows = []
    for key, inner in value.items():
        shown = _old_object(inner, depth + 1) if isinstance(inner, dict) else _quoted(str(inner))
        rows.append(f'{pad}"{key}":{shown}')
    return "{\n" + ",\n".join(rows) + "\n" + "    " * depth + "}"


def _quoted(value: str) -> str:
    return value if _NUMBER.match(value) else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _swallowed(attributes: dict[str, Any]) -> dict[str, Any]:
    variables: dict[str, str] = {}
    empty = None
    for key, value in attributes.get("Variable_List", {}).items():
        if empty is not None:
            variables[empty] = f",{key}={value}"
            empty = None
            continue
        variables[key] = value
        if value == "":
            empty = key
    return {key: variables if key == "Variable_List" else value for key, value in attributes.items()}
