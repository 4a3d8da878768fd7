"""Submission in a thread of its own: one at a time, patient, and never twice.

Whatever PBS refuses for now (full queue, absent or hung server) is tried again later with growing pauses. A job that
may already live is looked for before qsub: by its id in the ledger after a restart, and by its name when a call of
qsub left no answer, since a server that hung may have queued the job all the same.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from .commands import TIMED_OUT, Answer, AwayError, Pbs, number
from .ledger import Entry, Ledger
from .request import RefusedError, Request

_FULL = frozenset({38, 39, 173})  # over a limit of jobs, over a limit of resources, queue switched off for now
_LONGEST_PAUSE = 300.0
_LOOKS_FOR_LOST = 2  # answers without the job's name before a qsub that was cut counts as not done
_HINTS = {
    "Account_Name": "set --pbs-account",
    "active allocation": "check --pbs-account and the allocation's balance",
    "filesystems": "add `resources: {filesystems: ...}` to the site file",
    "walltime": "set the resource runtime (minutes)",
    "server resource limits": "walltime or nodes are outside the queue's range: `qstat -Qf QUEUE` shows it",
    "Unknown queue": "set --pbs-queue or the resource pbs_queue",
    "Unauthorized": "the queue is not open to you: set --pbs-queue or the resource pbs_queue",
}


class WaitError(Exception):
    """Not now. `scope` is what has to wait: "" for everything (no server), else a queue's or a job's name."""

    def __init__(self, scope: str, words: str) -> None:
        super().__init__(words)
        self.scope = scope


@dataclass
class _Pending:
    request: Request
    looks: int = 0


@dataclass
class _Pause:
    until: float
    length: float


@dataclass
class Submitter:
    """Takes requests and calls back with ids or refusals.

    `submitted(request, id, log, adopted)` and `refused(request, words)` are called from the submitting thread,
    `crashed(error)` when a bug ends that thread; `in_queue(queue)` tells how many of our jobs a queue holds now.
    `pause` is the first pause in seconds.
    """

    pbs: Pbs
    ledger: Ledger
    submitted: Callable[[Request, str, str, bool], None]
    refused: Callable[[Request, str], None]
    in_queue: Callable[[str], int]
    crashed: Callable[[Exception], None]
    say: Callable[[str], None]
    pause: float
    _pending: list[_Pending] = field(default_factory=list)
    _pauses: dict[str, _Pause] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stopped: bool = False
    _first_live: dict[str, str] | None = None
    _strangers: bool = False

    def start(self) -> None:
        """Begin; the thread ends with `stop`."""
        self._thread = threading.Thread(target=self._run, name="pbs-submit", daemon=True)
        self._thread.start()

    def add(self, request: Request) -> None:
        """Queue a request. Returns at once."""
        with self._changed:
            self._pending.append(_Pending(request))
            self._changed.notify()

    def poke(self, queue: str) -> None:
        """A job of ours has left a queue: there may be room again."""
        with self._changed:
            self._pauses.pop(queue, None)
            self._changed.notify()

    def stop(self) -> None:
        """Submit nothing more, wait for a qsub that is under way."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self.crashed(error)  # otherwise Snakemake would wait for ever
            raise

    def _work(self) -> None:
        while (pending := self._next()) is not None:
            request = pending.request
            try:
                job_id, log, adopted = self._attempt(pending)
            except WaitError as wait:
                self._postpone(pending, wait)
            except OSError as error:
                self._drop(pending)
                self.refused(request, f"its log folder or its entry in the ledger cannot be written: {error}")
            except RefusedError as refusal:
                self._drop(pending)
                self.ledger.remove(request.name)
                self.refused(request, str(refusal))
            else:
                self._drop(pending)
                self.submitted(request, job_id, log, adopted)

    def _next(self) -> _Pending | None:
        """The first request that nothing holds back; blocks until there is one, None after `stop`."""
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                earliest = None
                for pending in self._pending:
                    scopes = ("", pending.request.queue, pending.request.name)
                    until = max((self._pauses[scope].until for scope in scopes if scope in self._pauses), default=0.0)
                    if until <= now:
                        return pending
                    earliest = until if earliest is None else min(earliest, until)
                self._changed.wait(None if earliest is None else earliest - now)
            return None

    def _drop(self, pending: _Pending) -> None:
        with self._changed:
            self._pending.remove(pending)
            for scope in ("", pending.request.queue, pending.request.name):
                self._pauses.pop(scope, None)

    def _postpone(self, pending: _Pending, wait: WaitError) -> None:
        with self._changed:
            known = self._pauses.get(wait.scope)
            length = min(known.length * 2, _LONGEST_PAUSE) if known else self.pause
            self._pauses[wait.scope] = _Pause(time.monotonic() + length, length)
        if known is None:
            self.say(f"Submission of {pending.request.name} waits: {wait}. Trying again until it works.")

    def _attempt(self, pending: _Pending) -> tuple[str, str, bool]:
        """(id, log, whether the job was there already). Raises WaitError or RefusedError."""
        request = pending.request
        try:
            existing = self._existing(pending)
        except AwayError as away:
            raise WaitError("", f"PBS does not answer ({away})") from away
        if existing:
            return existing.id or "", existing.log, True
        if request.max_jobs is not None and self.in_queue(request.queue) >= request.max_jobs:
            raise WaitError(request.queue, f"queue {request.queue} is to hold {request.max_jobs} of our jobs at most")
        request.log.parent.mkdir(parents=True, exist_ok=True)  # PBS holds for ever, or loses, what it cannot log
        self.ledger.end(request.name).unlink(missing_ok=True)
        entry = Entry(request.name, request.work, request.queue, str(request.log), time.time())
        self.ledger.write(entry)
        job_id = self._qsub(request)
        with contextlib.suppress(OSError):  # the job is there; without its id in the ledger its name finds it
            self.ledger.write(replace(entry, id=job_id))
        return job_id, str(request.log), False

    def _qsub(self, request: Request) -> str:
        answer = self.pbs.call("qsub", *request.words, str(request.script))
        if answer.away:
            if answer.code != TIMED_OUT:  # then the entry stays: a server that hung may have queued the job
                self.ledger.remove(request.name)
            raise WaitError("", f"PBS does not answer ({answer.words})")
        if answer.code in _FULL or (answer.code and "would exceed" in answer.err):
            self.ledger.remove(request.name)
            raise WaitError(request.queue, f"queue {request.queue or '(default)'}: {answer.words}")
        if answer.code:
            raise RefusedError(_refusal(answer))
        ids = [line.strip() for line in answer.out.splitlines() if line[:1].isdigit() and "." in line]
        if not ids:  # a wrapper that prints no id; the name finds the job, at the next attempt
            raise WaitError(request.name, f"qsub printed no job id but {answer.out.strip()[:200]!r}")
        return ids[-1]

    def _existing(self, pending: _Pending) -> Entry | None:
        """The living job of the same name and work, if any. Raises AwayError; WaitError while an old one goes."""
        request = pending.request
        if self._first_live is None:
            self._first_live = self.pbs.live()
            known = {number(entry.id) for entry in self.ledger.entries() if entry.id}
            self._strangers = bool(self._first_live.keys() - known)
        entry = self.ledger.read(request.name)
        if entry is None:
            if not self._strangers:
                return None
            return self._by_name(request, Entry(request.name, request.work, request.queue, str(request.log), 0.0))
        if entry.id is None:
            found = self._by_name(request, entry)
            if found is None and pending.looks < _LOOKS_FOR_LOST:
                pending.looks += 1
                raise WaitError(
                    request.name, "a call of qsub left no answer; looking whether the job was queued all the same"
                )
            return found
        if number(entry.id) not in self._first_live and not entry.deleted:
            return None  # it ended while nobody looked; Snakemake has seen by its outputs how
        if not entry.deleted and entry.work == request.work:
            return entry
        if number(entry.id) not in self.pbs.live():
            return None
        if not entry.deleted:
            self.say(f"{entry.id} ({entry.name}) still lives with other parameters or inputs; deleting it.")
            self.ledger.write(replace(entry, deleted=True))
        self.pbs.call("qdel", entry.id)  # again at every attempt: an earlier one may have met no server
        raise WaitError(request.name, f"{entry.id} of the same name is being deleted and is not gone yet")

    def _by_name(self, request: Request, entry: Entry) -> Entry | None:
        """A living job found by its name; further ones of that name would write the same files and are deleted."""
        ids = self.pbs.named(request.name)
        if not ids:
            return None
        if ids[1:]:
            self.say(f"{', '.join(ids)} bear the same name {request.name}; keeping the first, deleting the others.")
            self.pbs.call("qdel", *ids[1:])
        found = replace(entry, id=ids[0])
        self.ledger.write(found)
        return found


def _refusal(answer: Answer) -> str:
    hint = next((hint for key, hint in _HINTS.items() if key in answer.err), None)
    return f"PBS refused it (exit code {answer.code}): {answer.words}{f' -> {hint}' if hint else ''}"
