"""`qstat -f` as text: the one format that old and new clients print whole for several ids.

The JSON of new clients holds only the first of several ids, that of old clients is invalid as soon
as anybody's job bears an odd name or variable.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .commands import Answer, number


@dataclass(frozen=True)
class Record:
    """The attributes of one job that decide; None or "" where PBS shows none."""

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
    """The jobs, by number, of one call of `qstat -f`, and its complaint.

    no_history: it was asked with -x, and the server keeps no history. finished: it was asked
    without -x for an id that only the history knows.
    """

    records: dict[str, Record]
    no_history: bool
    finished: bool
    complaint: str


def read_report(answer: Answer) -> Report:
    """Sort the answer of `qstat [-x] -f ID...`.

    The exit code is that of the last bad id; the good ones are printed all the same.
    """
    return Report(
        records={number(record.id): record for record in read_jobs(answer.out)},
        no_history="not configured to maintain job history" in answer.err,
        finished="Job has finished, use -x" in answer.err,
        complaint="" if "Unknown Job Id" in answer.err else answer.words,
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
            substate=_integer(shown.get("substate", "")),
            exit_status=_integer(shown.get("Exit_status", "")),
            hold_types=shown.get("Hold_Types", "n"),
            comment=shown.get("comment", ""),
            walltime=shown.get("Resource_List.walltime", ""),
            cpu_time=shown.get("resources_used.cput", ""),
        )


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?\d+", text) else None
