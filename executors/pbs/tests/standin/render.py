"""How jobs are printed: `qstat -f` as text (folded or wide), as JSON of either client generation,
as DSV; tables.
"""

import contextlib
import json
import re
import time
from typing import Any

from .model import SERVER, Job, Queue, flat

_LIMIT = 78
_NUMBER = re.compile(
    r"(?!0\d)[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|[+-]?(inf|infinity|nan)$", re.IGNORECASE
)
_DIGITS = re.compile(r"-?\d[\d.eE+-]*")  # read by strtod: 007 is 7
_ESCAPED = {
    ord(plain): f"\\{letter}" for plain, letter in zip('\\"\n\r\t\b\f', '\\"nrtbf', strict=True)
}
_TEXTS = {"Job_Name", "Account_Name", "project"}  # what new clients never take for JSON


def text(job: Job, wide: bool) -> str:
    """`qstat -f`: long values are folded at commas, else anywhere, unless `wide` (-w)."""
    lines = [f"Job Id: {job.id}\n"]
    for key, value in flat(job.attributes(), lambda text: text.replace(",", r"\,")):
        lines.append(f"    {key} = {value if wide else _folded(value, len(key) + 7)}\n")
    return "".join(lines) + "\n"


def queue(queue: Queue) -> str:
    """`qstat -Q -f`, the attributes that matter to users."""
    longest = queue.walltime[1]
    minutes, seconds = divmod(longest or 0, 60)
    attributes = {
        "queue_type": "Route" if queue.route_to else "Execution",
        "state_count": _folded(
            "Transit:0 Queued:0 Held:0 Waiting:0 Running:0 Exiting:0 Begun:0", 18
        ),
        **({"resources_max.nodect": queue.nodes[1]} if queue.nodes[1] else {}),
        **(
            {"resources_max.walltime": f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"}
            if longest
            else {}
        ),
        "enabled": queue.enabled,
        "started": queue.started,
    }
    lines = [f"    {key} = {value}\n" for key, value in attributes.items()]
    return f"Queue: {queue.name}\n{''.join(lines)}\n"


def dsv(job: Job, delimiter: str = "|") -> str:
    """`qstat -f -F dsv`: one line a job; commas and line ends within variables are escaped."""
    fields = [f"Job Id: {job.id}"]
    for key, value in flat(
        job.attributes(), lambda text: text.replace(r"\\", r"\\\\").replace(",", r"\,")
    ):
        fields.append(f"{key}={value}".replace("\n", r"\n"))
    return delimiter.join(fields) + "\n"


def json_new(jobs: list[Job], shown: int | None = 1) -> str:
    """JSON of clients since 2023-12: the `shown` jobs of the first id only, all where no id was
    given (None).

    Values that are JSON change their type.
    """
    content = _header("23.06.06")
    if jobs:
        content["Jobs"] = {job.id: job.attributes() for job in jobs[:shown]}
    return f"{_new_value(content, 0)}\n"


def json_old(jobs: list[Job]) -> str:
    """JSON of clients before that: all jobs; numbers in C's sense go unquoted; an empty variable
    swallows the next.

    It may be invalid: what the C locale cannot print becomes a caret and the byte plus 64, which
    can be a quote.
    """
    content = _header("20.0.0")
    lines = [
        f'    "{key}":{value if isinstance(value, int) else _quoted(str(value))}'
        for key, value in content.items()
    ]
    if jobs:
        inner = ",\n".join(
            f'        "{job.id}":{_old_object(_swallowed(job.attributes()), 2)}' for job in jobs
        )
        lines.append('    "Jobs":{\n' + inner + "\n    }")
    return "{\n" + ",\n".join(lines) + "\n}" + ("\n" if jobs else "")


def table(jobs: list[Job]) -> str:
    """`qstat` without -f; nothing at all when there are no jobs."""
    if not jobs:
        return ""
    head = "Job id            Name             User              Time Use S Queue\n"
    head += "----------------  ---------------- ----------------  -------- - -----\n"
    return head + "".join(_row(job) for job in jobs)


def table_of_requests(
    jobs: list[Job], wide: bool = False, nodes: bool = False, comments: bool = False
) -> str:
    """`qstat -u`, `-a`, `-H`: what was asked for, `wide` (-w), with `nodes` (-n1) and `comments`
    (-s).
    """
    if not jobs:
        return ""
    titles = [
        "Job ID",
        "Username",
        "Queue",
        "Jobname",
        "SessID",
        "NDS",
        "TSK",
        "Memory",
        "Time",
        "S",
        "Time",
    ]
    widths = [30, 15, 15, 15, 8, 4, 5, 6, 5, 1, 5] if wide else [15, 8, 8, 10, 6, 3, 3, 6, 5, 1, 5]
    before = sum(widths[:7]) + 7
    head = f"\n{SERVER}: \n{'':{before}}Req'd  Req'd   Elap\n"
    head += (
        " ".join(f"{title:{width}}" for title, width in zip(titles, widths, strict=True)).rstrip()
        + "\n"
    )
    head += " ".join("-" * width for width in widths) + "\n"
    rows = []
    for job in jobs:
        shown = dict(flat(job.attributes()))
        row = _request_row(job.id, shown, widths)
        rows.append(f"{row} {shown.get('exec_host', '--')}\n" if nodes else f"{row}\n")
        if comments:
            rows.append(f"   {shown.get('comment', '--')}\n")
    return head + "".join(rows)


def _row(job: Job) -> str:
    shown = dict(flat(job.attributes()))
    owner, used = shown["Job_Owner"].partition("@")[0], shown.get("resources_used.cput", "0")
    left = f"{job.id:17.17} {shown['Job_Name']:16.16} {owner:16.16} "
    return f"{left} {used:>8} {shown['job_state']} {shown['queue']:16.16}\n"


def _request_row(job_id: str, shown: dict[str, str], widths: list[int]) -> str:
    texts = [job_id, shown["Job_Owner"].partition("@")[0], shown["queue"], shown["Job_Name"]]
    left = [f"{text:{width}.{width}}" for text, width in zip(texts, widths[:4], strict=True)]
    values = [
        shown.get("session_id"),
        shown["Resource_List.nodect"],
        shown["Resource_List.ncpus"],
        shown.get("Resource_List.mem"),
        shown.get("Resource_List.walltime", "")[:5],
        shown["job_state"],
        shown.get("resources_used.walltime", "")[:5],
    ]
    right = [f"{value or '-- ':>{width}}" for value, width in zip(values, widths[4:], strict=True)]
    return " ".join([*left, *right])


def _folded(value: str, start: int) -> str:
    out, column, first = [], start, True
    pieces = value.split(",")
    for index, piece in enumerate(pieces):
        if len(piece) + column < _LIMIT:
            out.append(piece)
            column = len(piece.rpartition("\n")[2]) + (0 if "\n" in piece else column)
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


def _new_value(value: Any, depth: int, key: str = "") -> str:
    if isinstance(value, dict):
        pad = "\t" * depth
        rows = ",\n".join(
            f'{pad}\t"{name}":\t{_new_value(inner, depth + 1, name)}'
            for name, inner in value.items()
        )
        return f"{{\n{rows}\n{pad}}}"
    text = str(value)
    if key not in _TEXTS:
        with contextlib.suppress(ValueError):
            return (
                _new_number(float(text))
                if _DIGITS.fullmatch(text)
                else json.dumps(_only_json(text))
            )
    return json.dumps(text, ensure_ascii=False)


def _new_number(value: float) -> str:
    if value == int(value) and abs(value) < 2**31:
        return str(int(value))
    short = f"{value:.15g}"
    return short if float(short) == value else f"{value:.17g}"


def _only_json(value: str) -> Any:
    """A value that JSON knows. Raises ValueError for others, also for those that only Python takes
    for JSON.
    """
    if value.lstrip("-") in {"NaN", "Infinity"}:
        raise ValueError(value)
    return json.loads(value)


def _old_object(value: dict[str, Any], depth: int) -> str:
    pad = "    " * (depth + 1)
    rows = []
    for key, inner in value.items():
        shown = _old_object(inner, depth + 1) if isinstance(inner, dict) else _quoted(str(inner))
        rows.append(f'{pad}"{key}":{shown}')
    return "{\n" + ",\n".join(rows) + "\n" + "    " * depth + "}"


def _quoted(value: str) -> str:
    if _NUMBER.match(value):
        return value
    # the server's own escapes are taken off first
    plain = re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)
    return (
        '"'
        + "".join(
            _ESCAPED.get(byte) or _printable(byte)
            for byte in plain.encode(errors="surrogateescape")
        )
        + '"'
    )


def _printable(byte: int) -> str:
    return chr(byte) if 32 <= byte < 128 else f"^{chr((byte + 64) % 256)}"


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
    return {
        key: variables if key == "Variable_List" else value for key, value in attributes.items()
    }
