"""Deletion of every job of a run, with retries; those that could not be deleted are named."""

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

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
    force: list[str] = []
    deadline = time.monotonic() + patience
    while left:
        _find_ids(pbs, ledger, left, looks)
        without_node = False
        by_id = {entry.id: entry for entry in left.values() if entry.id}
        for start in range(0, len(by_id), _AT_ONCE):
            ids = list(by_id)[start : start + _AT_ONCE]
            answer = pbs.call("qdel", *force, *ids)
            complaints = {
                number(match["id"]): match["words"] for match in _COMPLAINT.finditer(answer.err)
            }
            if answer.away or (answer.code and not complaints):
                continue
            for job_id in ids:
                words = complaints.get(number(job_id), "")
                without_node = without_node or _NO_NODE in words
                if not words or any(known in words for known in _GONE):
                    ledger.write(replace(by_id[job_id], deleted=True))
                    del left[by_id[job_id].name]
        if not left or time.monotonic() >= deadline:
            break
        # plain qdel waits for the node of the job; force does not
        force = ["-W", "force"] if without_node else []
        say(f"{len(left)} jobs are not deleted yet; trying again.")
        time.sleep(pause)
    return [entry.id or entry.name for entry in left.values()]


def _find_ids(pbs: Pbs, ledger: Ledger, left: dict[str, Entry], looks: dict[str, int]) -> None:
    """Fill in ids of jobs whose qsub gave no answer; drop those that PBS has denied often
    enough.
    """
    for name in [name for name, entry in left.items() if not entry.id]:
        try:
            ids = pbs.named(name)
        except AwayError:
            continue
        if ids:
            left[name] = replace(left[name], id=ids[0])
            ledger.write(left[name])
            continue
        looks[name] += 1
        if looks[name] >= _LOOKS_FOR_LOST:
            ledger.remove(name)
            del left[name]
