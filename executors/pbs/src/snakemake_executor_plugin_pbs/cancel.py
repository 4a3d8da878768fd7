"""Deleting every job of a run, with retries, and naming those that could not be deleted. What an
impatient user is told meanwhile.
"""

import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from .commands import AwayError, Pbs, number
from .ledger import Entry, Ledger
from .scheduler import after_messages

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
    left = {
        entry.name: entry
        for entry in map(ledger.read, names)
        if entry is not None and not entry.deleted
    }
    looks = dict.fromkeys(left, 0)
    force = False
    deadline = time.monotonic() + patience
    while left:
        _find_ids(pbs, ledger, left, looks)
        without_node = False
        ids = [entry.id for entry in left.values() if entry.id]
        for start in range(0, len(ids), _AT_ONCE):
            some = ids[start : start + _AT_ONCE]
            answer = pbs.call("qdel", *(["-W", "force"] if force else []), *some)
            if answer.away:
                continue
            complaints = {
                number(found["id"]): found["words"] for found in _COMPLAINT.finditer(answer.err)
            }
            if answer.code and not complaints:
                continue
            for entry in [entry for entry in left.values() if entry.id in some]:
                words = complaints.get(number(entry.id or ""), "")
                without_node = without_node or _NO_NODE in words
                if not words or any(known in words for known in _GONE):
                    ledger.write(replace(entry, deleted=True))
                    del left[entry.name]
        if not left or time.monotonic() >= deadline:
            break
        force = without_node  # plain qdel waits for the node of the job; force does not
        say(f"{len(left)} jobs are not deleted yet; trying again.")
        time.sleep(pause)
    return [entry.id or entry.name for entry in left.values()]


def _find_ids(pbs: Pbs, ledger: Ledger, left: dict[str, Entry], looks: dict[str, int]) -> None:
    """Fill in ids of jobs whose qsub gave no answer; drop those that PBS has denied often
    enough.
    """
    for name, entry in list(left.items()):
        if entry.id:
            continue
        try:
            ids = pbs.named(name)
        except AwayError:
            continue
        if ids:
            left[name] = replace(entry, id=ids[0])
            ledger.write(left[name])
            continue
        looks[name] += 1
        if looks[name] >= _LOOKS_FOR_LOST:
            ledger.remove(name)
            del left[name]


@contextmanager
def second_interrupt_explained(
    say: Callable[[str], None], leave: Callable[[], None]
) -> Iterator[None]:
    """An impatient second Ctrl-C is answered in words, a third one ends the deleting: `leave` is
    called, and the jobs go on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    presses = 0

    def on_interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        if presses > 1:
            leave()
            raise KeyboardInterrupt
        say("Still deleting PBS jobs. Press Ctrl-C again to stop that and leave them running.")

    before = signal.signal(signal.SIGINT, after_messages(on_interrupt))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
