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


@dataclass(frozen=True)
class Record:
    """The attributes of one job that the status rules need; None or "" where PBS shows none."""

    id: str
    state: str
    substate: int | None
    exit_status: int | None
    hold_types: str
    comment: str
    walltime: str
    cpu_time: str


@dataclass(frozen=True)
class Report:
    """Jobs and unknown jobs, by number, of one call of `qstat -f`.

    no_history: it was asked with -x, and the server keeps no history. finished: it was asked
    without -x for an id that only the history knows. `words` is its complaint.
    """

    records: dict[str, Record]
    unknown: frozenset[str]
    no_history: bool
    finished: bool
    words: str


def read_report(answer: Answer) -> Report:
    """Sort the answer of `qstat [-x] -f ID...`.

    The exit code is that of the last bad id; the good ones are printed all the same.
    """
    return Report(
        records={number(record.id): record for record in read_jobs(answer.out)},
        unknown=frozenset(map(number, _UNKNOWN.findall(answer.err))),
        no_history="not configured to maintain job history" in answer.err,
        finished="Job has finished, use -x" in answer.err,
        words=answer.words,
    )


def read_jobs(text: str) -> Iterator[Record]:
    """Yield the jobs of a `qstat -f` text. Long values are folded by a newline and a tab."""
    for block in re.split(r"^Job Id: ", text.replace("\n\t", ""), flags=re.MULTILINE)[1:]:
        first, *lines = block.splitlines()
        shown: dict[str, str] = {}
        for line in lines:
            key, equals, value = line.partition(" = ")
            if equals and key.startswith("    "):
                shown.setdefault(key.strip(), value.strip())
        yield Record(
            id=first.strip(),
            state=shown.get("job_state", ""),
            substate=_integer(shown.get("substate")),
            exit_status=_integer(shown.get("Exit_status")),
            hold_types=shown.get("Hold_Types", "n"),
            comment=shown.get("comment", ""),
            walltime=shown.get("Resource_List.walltime", ""),
            cpu_time=shown.get("resources_used.cput", ""),
        )


def _integer(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
