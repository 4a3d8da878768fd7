"""Deletion of every job of a run, with retries; those that could not be deleted are named."""

import contextlib
import re
import time
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from .commands import AwayError, Pbs, number
from .ledger import Entry, Ledger

_AT_ONCE = 50
_LOOKS_FOR_LOST = 2
_COMPLAINT = re.compile(r"^qdel: (?P<words>.*?)\s+(?P<id>\d\S*)$", re.MULTILINE)
_GONE = ("Unknown Job Id", "has finished", "invalid for state")  # the last: it is already exiting
_NO_NODE = "could not connect to MOM"


def delete_all(
    pbs: Pbs,
    ledger: Ledger,
    names: Iterable[str],
    *,
    patience: float,
    pause: float,
    say: Callable[[str], None],
) -> list[str]:
    """Delete the living jobs of these names; return what is left after `patience` seconds, by id or
    name.

    A job whose qsub gave no answer is looked for by its name. Deleted jobs stay in the ledger as
    such: PBS lets them live for some seconds, and a new run must not submit in their place before
    they are gone.
    """
    entries = map(ledger.read, names)
    left = {entry.name: entry for entry in entries if entry and not entry.deleted}
    looks = dict.fromkeys(left, 0)
    force = False
    deadline = time.monotonic() + patience
    while left:
        with contextlib.suppress(AwayError):
            _find_ids(pbs, ledger, left, looks)
            force = _delete(pbs, ledger, left, force)
        if not left or time.monotonic() >= deadline:
            break
        say(f"{len(left)} jobs are not deleted yet; trying again.")
        time.sleep(pause)
    return [entry.id or entry.name for entry in left.values()]


def _find_ids(pbs: Pbs, ledger: Ledger, left: dict[str, Entry], looks: dict[str, int]) -> None:
    """Fill in ids of jobs whose qsub gave no answer; drop those that PBS has denied often enough.
    Raises AwayError.
    """
    for name in [name for name, entry in left.items() if not entry.id]:
        ids = pbs.named(name)
        looks[name] += 1
        if ids:
            left[name] = replace(left[name], id=ids[0])
            ledger.write(left[name])
        elif looks[name] >= _LOOKS_FOR_LOST:
            ledger.remove(name)
            del left[name]


def _delete(pbs: Pbs, ledger: Ledger, left: dict[str, Entry], force: bool) -> bool:
    """Call qdel, and take out what is gone. Return whether the next call has to be by force: plain
    qdel waits for the node of a job. Raises AwayError.
    """
    without_node = False
    by_id = {entry.id: entry for entry in left.values() if entry.id}
    for start in range(0, len(by_id), _AT_ONCE):
        ids = list(by_id)[start : start + _AT_ONCE]
        answer = pbs.call("qdel", *(["-W", "force"] if force else []), *ids)
        complaints = {
            number(match["id"]): match["words"] for match in _COMPLAINT.finditer(answer.err)
        }
        if answer.code and not complaints:
            continue
        for job_id in ids:
            words = complaints.get(number(job_id), "")
            without_node = without_node or _NO_NODE in words
            if not words or any(reason in words for reason in _GONE):
                ledger.write(replace(by_id[job_id], deleted=True))
                del left[by_id[job_id].name]
    return without_node
