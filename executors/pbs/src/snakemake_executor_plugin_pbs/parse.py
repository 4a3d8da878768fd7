"""`qstat -f` as text: the one format that old and new clients print whole for several ids.

The JSON of new clients holds only the first of several ids, that of old clients is invalid as soon
as anybody's job bears an odd name or variable. The text has neither fault, and nothing here reads
Variable_List.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .commands import Answer, number

_UNKNOWN = re.compile(r"Unknown Job Id (\S+)")
_FINISHED = "Job has finished, use -x"
_NO_HISTORY = "not configured to maintain job history"


@dataclass(frozen=True)
class Record:
    """The attributes of one job that the status rules need; None where PBS shows none."""

    id: str
    state: str
    substate: int | None
    exit_status: int | None
    hold_types: str
    comment: str
    queue: str
    walltime: str


@dataclass(frozen=True)
class Report:
    """What a `qstat -f` call said of the ids it was asked for, by number."""

    records: dict[str, Record]
    unknown: frozenset[str]
    no_history: bool
    finished: bool = False  # an id was asked for without -x that only the history knows


def read_report(answer: Answer) -> Report:
    """Sort the answer of `qstat [-x] -f ID...` into known jobs, unknown jobs, and whether -x was in
    the right place.

    The exit code is that of the last bad id; the good ones are printed all the same.
    """
    return Report(
        records={number(record.id): record for record in read_jobs(answer.out)},
        unknown=frozenset(number(found) for found in _UNKNOWN.findall(answer.err)),
        no_history=_NO_HISTORY in answer.err,
        finished=_FINISHED in answer.err,
    )


def read_jobs(text: str) -> Iterator[Record]:
    """Jobs of a `qstat -f` text. Long values are folded by a newline and a tab."""
    for block in re.split(r"^Job Id: ", text.replace("\n\t", ""), flags=re.MULTILINE)[1:]:
        first, *lines = block.splitlines()
        found: dict[str, str] = {}
        for line in lines:
            key, equals, value = line.partition(" = ")
            if equals and key.startswith("    "):
                found.setdefault(key.strip(), value.strip())
        yield Record(
            id=first.strip(),
            state=found.get("job_state", ""),
            substate=_integer(found.get("substate")),
            exit_status=_integer(found.get("Exit_status")),
            hold_types=found.get("Hold_Types", "n"),
            comment=found.get("comment", ""),
            queue=found.get("queue", ""),
            walltime=found.get("Resource_List.walltime", ""),
        )


def _integer(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
