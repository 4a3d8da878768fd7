"""Submission: one job at a time, patient, and never twice."""

import contextlib
import time
from collections.abc import Iterable

from msgspec.structs import replace

from .commands import AwayError, Notices, Pbs, number
from .ledger import Entry, Ledger
from .parse import read_report
from .refusals import RefusedError, WaitError, passes, refusal
from .request import Request

_LOOKS_FOR_LOST = 2  # answers without the job's name before a qsub that was cut counts as not done
_FORGOTTEN = 86400.0  # seconds until an entry without an id, which nobody asks for, is removed


class Submitter:
    """Submits requests. What PBS refuses for now is tried again after `pause` seconds."""

    def __init__(self, pbs: Pbs, ledger: Ledger, notices: Notices, pause: float) -> None:
        self.pbs = pbs
        self.ledger = ledger
        self.notices = notices
        self.pause = pause
        self._waits: dict[str, float] = {}  # name of a job, or "queue NAME": until when
        self._looks: dict[str, int] = {}
        self._refused: dict[tuple[str, ...], RefusedError] = {}

    def open_queue(self, queue: str) -> None:
        """Try a queue again at once, since a job of ours has left it."""
        self._waits.pop(f"queue {queue}", None)

    def is_in_doubt(self, name: str) -> bool:
        """Return whether qsub was called for a job and gave no answer: it may be in the queue."""
        entry = self.ledger.read(name)
        return entry is not None and entry.id is None

    def submit(self, request: Request, withdrawn: str = "") -> tuple[Entry, bool] | None:
        """Return (entry, whether the job was there already); None when it has to wait.

        withdrawn: why a job that is not there is not submitted any more. Raises AwayError and
        RefusedError.
        """
        now = time.monotonic()
        scopes = (request.name, f"queue {request.queue}")
        if any(self._waits.get(scope, now) > now for scope in scopes):
            return None
        try:
            if living := self._living(request):
                return living, True
            if withdrawn:
                raise RefusedError(withdrawn)
            return self._submit_new(request), False
        except WaitError as wait:
            self._waits[wait.scope] = now + self.pause
            self.notices(f"Submission of {request.name} waits: {wait}.", key=str(wait))
            return None
        except OSError as error:
            words = f"its log folder or its entry in the ledger cannot be written: {error}"
            raise RefusedError(words) from error

    def _submit_new(self, request: Request) -> Entry:
        if request.options in self._refused:
            raise self._refused[request.options]
        # PBS holds for ever, or loses, what it cannot log
        request.log.parent.mkdir(parents=True, exist_ok=True)
        self.ledger.end(request.name).unlink(missing_ok=True)
        entry = request.entry(time.time())
        self.ledger.write(entry)
        try:
            entry = replace(entry, id=self._qsub(request))
        except RefusedError as error:
            self.ledger.remove(request.name)
            if error.for_good:
                self._refused[request.options] = error
            raise
        with contextlib.suppress(OSError):
            # the job is there; without its id in the ledger its name finds it
            self.ledger.write(entry)
        return entry

    def _qsub(self, request: Request) -> str:
        try:
            answer = self.pbs.call("qsub", *request.words, str(request.script))
        except AwayError as away:
            if not away.hung:  # a server that hung may have queued the job all the same
                self.ledger.remove(request.name)
            raise
        if passes(answer):
            self.ledger.remove(request.name)
            words = f"queue {request.queue or '(default)'}: {answer.words}"
            raise WaitError(f"queue {request.queue}", words)
        if answer.code:
            raise refusal(answer)
        lines = map(str.strip, answer.out.splitlines())
        ids = [line for line in lines if line[:1].isdigit() and "." in line]
        if not ids:  # a wrapper that prints no id; the name finds the job, at the next attempt
            words = f"qsub printed no job id but {answer.out.strip()[:200]!r}"
            raise WaitError(request.name, words)
        return ids[-1]

    def _living(self, request: Request) -> Entry | None:
        """Return the living job that does the work of the request, if any: of an earlier start of
        Snakemake, or of a qsub that gave no answer.

        Raises AwayError; WaitError where an older job has to go first, or has to be looked for once
        more.
        """
        entry = self.ledger.read(request.name)
        ids = self.pbs.named(request.name)
        if not ids:
            looks = self._looks.pop(request.name, 0)
            if entry is not None and entry.id is None and looks < _LOOKS_FOR_LOST:
                self._looks[request.name] = looks + 1
                words = "a call of qsub left no answer; looking whether the job was queued"
                raise WaitError(request.name, words)
            return None
        if ids[1:]:  # they write the same files
            names = ", ".join(ids)
            self.notices(f"{names} bear the same name {request.name}; keeping the first one.")
            self.pbs.call("qdel", *ids[1:])
        # without an entry the ledger is lost, and with it what the job asked for
        living = replace(entry or request.entry(0.0), id=ids[0])
        problem = "" if living.deleted else self._unlike(request, living)
        if problem:
            living = replace(living, deleted=True)
            self.notices.say(
                f"{ids[0]} ({living.name}) {problem}; it is deleted, and the job is submitted "
                "again."
            )
        if living != entry:
            self.ledger.write(living)
        if not living.deleted:
            return living
        # again at every attempt: an earlier one may have met no server
        self.pbs.call("qdel", ids[0])
        words = f"{ids[0]} of the same name is being deleted and is not gone yet"
        raise WaitError(request.name, words)

    def _unlike(self, request: Request, entry: Entry) -> str:
        """Return why a living job can't be taken over for the request; "" when it can. A running
        job is kept though it asked for another queue, time or account: its work so far is worth
        more.
        """
        if entry.work != request.work:
            return "still lives with other parameters or inputs"
        if entry.options == request.options:
            return ""
        answer = self.pbs.call("qstat", "-f", entry.id or "")
        record = read_report(answer).records.get(number(entry.id or ""))
        if record is None:
            return ""  # it has just ended
        before = _difference(entry.options, request.options)
        after = _difference(request.options, entry.options)
        if record.state in {"Q", "H", "W"}:
            return f"waits in PBS with {before}, where {after} is asked for now"
        self.notices.say(
            f"{entry.id} ({entry.name}) runs already and is kept with {before}, though {after} is "
            "asked for now."
        )
        return ""

    def forget_ended(self) -> None:
        """Remove entries of jobs that ended and that nobody asked for. Raises AwayError."""
        entries = self.ledger.entries()
        live = set(map(number, self.pbs.living())) if entries else set()
        for entry in entries:
            lost = time.time() - entry.submitted > _FORGOTTEN
            if number(entry.id) not in live if entry.id else lost:
                self.ledger.remove(entry.name)


def _difference(words: Iterable[str], reference: tuple[str, ...]) -> str:
    """Return, for a message, the words of one call of qsub that the other call lacks."""
    lacking = (word for word in words if word not in reference and not word.startswith("-"))
    return ", ".join(lacking) or "less"
