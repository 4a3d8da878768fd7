"""Submission in a thread of its own: one at a time, patient, and never twice.

Whatever PBS refuses for now (full queue, absent or hung server) is tried again later with growing
pauses. A job that may already live is looked for before qsub (`adopt`).
"""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from snakemake_interface_common.exceptions import WorkflowError

from .adopt import Living
from .commands import AwayError, Pbs
from .ledger import Entry, Ledger
from .refusals import RefusedError, WaitError, passes, refusal
from .request import Request

_LONGEST_PAUSE = 300.0
_REPEAT_AFTER = 1800.0  # seconds until the same reason to wait is told again


class WithdrawnError(RefusedError):
    """The request was still waiting when Snakemake stopped."""


@dataclass(eq=False)
class _Pending:
    request: Request
    in_doubt: bool = False  # qsub was called and gave no answer: the job may be in the queue

    @property
    def scopes(self) -> tuple[str, str, str]:
        """Return the scopes of the pauses that hold it back: the server, its queue, itself."""
        return "", self.request.queue, self.request.name


class _Pause(NamedTuple):
    until: float
    length: float


@dataclass
class Submitter:
    """Queue of requests that calls back with ledger entries or refusals.

    `submitted(request, entry, adopted)` and `refused(request, error)` are called from the
    submitting thread, `crashed(error)` when that thread can't go on; `in_queue(queue)` tells how
    many of our jobs a queue holds now. `pause` is the first pause in seconds.
    """

    pbs: Pbs
    ledger: Ledger
    submitted: Callable[[Request, Entry, bool], None]
    refused: Callable[[Request, RefusedError], None]
    in_queue: Callable[[str], int]
    crashed: Callable[[Exception], None]
    say: Callable[[str], None]
    pause: float
    _pending: list[_Pending] = field(default_factory=list)
    _pauses: dict[str, _Pause] = field(default_factory=dict)
    _told: dict[str, float] = field(default_factory=dict)  # reason to wait: when it was told
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stopped: bool = False
    _withdrawn: str = ""
    _refused_for_good: dict[tuple[str, ...], RefusedError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.living = Living(self.pbs, self.ledger, self.say)
        self._thread = threading.Thread(target=self._run, name="pbs-submit", daemon=True)

    def start(self) -> None:
        """Begin; the thread ends with `stop`."""
        self._thread.start()

    def add(self, request: Request) -> None:
        """Queue a request. Returns at once."""
        with self._changed:
            self._pending.append(_Pending(request))
            self._changed.notify()

    def poke(self, queue: str) -> None:
        """Try a queue again at once, since a job of ours has left it."""
        with self._changed:
            self._pauses.pop(queue, None)
            self._changed.notify()

    def withdraw(self, why: str) -> None:
        """Submit nothing new and refuse what waits, in these words. Only a job whose qsub gave no
        answer is still looked for: it may be in the queue."""
        with self._changed:
            self._withdrawn = self._withdrawn or why
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
            while (pending := self._next()) is not None:
                self._handle(pending)
        except WorkflowError as error:
            self.crashed(error.with_traceback(None))  # Snakemake would print its frames
        except Exception as error:
            self.crashed(error)  # otherwise Snakemake would wait for ever
            raise

    def _next(self) -> _Pending | None:
        """Return the first request that nothing holds back; block until there is one, None after
        `stop`.
        """
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                earliest = None
                for pending in self._pending:
                    pauses = (self._pauses.get(scope) for scope in pending.scopes)
                    until = max((pause.until for pause in pauses if pause), default=0.0)
                    if until <= now or (self._withdrawn and not pending.in_doubt):
                        return pending
                    earliest = until if earliest is None else min(earliest, until)
                self._changed.wait(None if earliest is None else earliest - now)
            return None

    def _handle(self, pending: _Pending) -> None:
        request = pending.request
        try:
            entry, adopted = self._attempt(pending)
        except AwayError as away:
            self._postpone(pending, WaitError("", f"PBS does not answer ({away})"))
        except WaitError as wait:
            self._postpone(pending, wait)
        except RefusedError as error:
            self._drop(pending)
            if not isinstance(error, WithdrawnError):  # its entry, if any, is for the next run
                self.ledger.remove(request.name)
                if error.for_good:
                    self._refused_for_good[request.options] = error
            self.refused(request, error)
        except OSError as error:
            self._drop(pending)
            words = f"its log folder or its entry in the ledger cannot be written: {error}"
            self.refused(request, RefusedError(words))
        else:
            self._drop(pending)
            self.submitted(request, entry, adopted)

    def _drop(self, pending: _Pending) -> None:
        with self._changed:
            self._pending.remove(pending)
            for scope in pending.scopes:
                self._pauses.pop(scope, None)

    def _postpone(self, pending: _Pending, wait: WaitError) -> None:
        now = time.monotonic()
        with self._changed:
            known = self._pauses.get(wait.scope)
            length = min(known.length * 2, _LONGEST_PAUSE) if known else self.pause
            self._pauses[wait.scope] = _Pause(now + length, length)
        if now - self._told.get(str(wait), -_REPEAT_AFTER) >= _REPEAT_AFTER:
            self._told[str(wait)] = now
            self.say(
                f"Submission of {pending.request.name} waits: {wait}. Trying again in {length:g} "
                f"s, then after growing pauses of up to {_LONGEST_PAUSE:g} s."
            )

    def _attempt(self, pending: _Pending) -> tuple[Entry, bool]:
        """Return (entry, whether the job was there already). Raises AwayError, WaitError,
        RefusedError.
        """
        request = pending.request
        if self._withdrawn and not pending.in_doubt:
            raise WithdrawnError(self._withdrawn)
        existing = self.living.find(request)
        if existing:
            return existing, True
        if self._withdrawn:
            raise WithdrawnError(self._withdrawn)
        if request.options in self._refused_for_good:
            raise self._refused_for_good[request.options]
        if request.max_jobs is not None and self.in_queue(request.queue) >= request.max_jobs:
            words = f"queue {request.queue} is to hold {request.max_jobs} of our jobs at most"
            raise WaitError(request.queue, words)
        # PBS holds for ever, or loses, what it cannot log
        request.log.parent.mkdir(parents=True, exist_ok=True)
        self.ledger.end(request.name).unlink(missing_ok=True)
        entry = request.entry(time.time())
        self.ledger.write(entry)
        entry = replace(entry, id=self._qsub(pending))
        with contextlib.suppress(OSError):
            # the job is there; without its id in the ledger its name finds it
            self.ledger.write(entry)
        return entry, False

    def _qsub(self, pending: _Pending) -> str:
        request = pending.request
        pending.in_doubt = True
        answer = self.pbs.call("qsub", *request.words, str(request.script))
        full = passes(answer)
        if full or (answer.away and answer.code is not None):
            # not after a time-out: a server that hung may have queued the job all the same
            pending.in_doubt = False
            self.ledger.remove(request.name)
        if answer.away:
            raise AwayError(answer.words)
        if full:
            raise WaitError(request.queue, f"queue {request.queue or '(default)'}: {answer.words}")
        if answer.code:
            raise refusal(answer)
        ids = [
            line.strip() for line in answer.out.splitlines() if line[:1].isdigit() and "." in line
        ]
        if not ids:  # a wrapper that prints no id; the name finds the job, at the next attempt
            words = f"qsub printed no job id but {answer.out.strip()[:200]!r}"
            raise WaitError(request.name, words)
        return ids[-1]
