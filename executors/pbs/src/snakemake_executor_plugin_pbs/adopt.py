"""Search for jobs that live already: of an earlier start of Snakemake, or of a qsub that gave no
answer.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from snakemake_interface_common.exceptions import WorkflowError

from .commands import AwayError, Pbs, number
from .ledger import Entry, Ledger
from .parse import read_report
from .refusals import WaitError
from .request import Request

_LOOKS_FOR_LOST = 2  # answers without the job's name before a qsub that was cut counts as not done
# seconds after which an entry without an id, which nobody asks for, is cleaned away
_FORGOTTEN = 86400.0


@dataclass
class Living:
    """Finds the living job of a request, so that none is submitted twice."""

    pbs: Pbs
    ledger: Ledger
    say: Callable[[str], None]
    _at_start: Mapping[str, str] | None = None
    _strangers: bool = False
    _looks: dict[str, int] = field(default_factory=dict)

    def find(self, request: Request) -> Entry | None:
        """Return the living job that does the work of the request, if any.

        Raises AwayError; WaitError where an older job has to go first, or has to be looked for once
        more; WorkflowError where the first question shows that PBS will never answer.
        """
        if self._at_start is None:
            self._at_start = self._first_look()
        entry = self.ledger.read(request.name)
        if entry is None or entry.id is None:
            entry = self._by_name(request, entry)
            if entry is None:
                return None
        elif number(entry.id) not in self._at_start and not entry.deleted:
            return None  # it ended while nobody looked; Snakemake has seen by its outputs how
        job_id = entry.id or ""
        if not entry.deleted:
            problem = self._unlike(request, entry, job_id)
            if problem is None:
                return entry
            self.say(
                f"{job_id} ({entry.name}) {problem}; it is deleted, and the job is submitted anew."
            )
            self.ledger.write(replace(entry, deleted=True))
        elif number(job_id) not in self.pbs.live():
            return None
        # again at every attempt: an earlier one may have met no server
        self.pbs.call("qdel", job_id)
        words = f"{job_id} of the same name is being deleted and is not gone yet"
        raise WaitError(request.name, words)

    def forget_ended(self) -> None:
        """Clean away what the ledger holds of jobs that ended and that nobody asked for."""
        if self.ledger.entries():
            self._forget(self.pbs.live())

    def _first_look(self) -> Mapping[str, str]:
        try:
            live = self.pbs.live()
        except AwayError as away:
            if away.refused:
                raise WorkflowError(
                    f"{away}. The PBS executor needs the commands of PBS Pro or OpenPBS; are these "
                    "on PATH?"
                ) from away
            raise
        known = self._forget(live)
        self._strangers = bool(live.keys() - known)
        return live

    def _forget(self, live: Mapping[str, str]) -> set[str]:
        """Remove entries of jobs that do not live; return the numbers that were in the ledger."""
        entries = self.ledger.entries()
        for entry in entries:
            lost = time.time() - entry.submitted > _FORGOTTEN
            if number(entry.id) not in live if entry.id else lost:
                self.ledger.remove(entry.name)
        return {number(entry.id) for entry in entries if entry.id}

    def _unlike(self, request: Request, entry: Entry, job_id: str) -> str | None:
        """Return why a living job can't be taken over for the request; None when it can. A running
        job is kept though it asked for another queue, time or account: its work so far is worth
        more."""
        if entry.work != request.work:
            return "still lives with other parameters or inputs"
        if entry.options == request.options:
            return None
        answer = self.pbs.call("qstat", "-f", job_id)
        if answer.away:
            raise AwayError(answer.words)
        record = read_report(answer).records.get(number(job_id))
        if record is None:
            return None  # it has just ended
        had, now = _values(entry.options, request.options), _values(request.options, entry.options)
        if record.state in {"Q", "H", "W"}:
            return f"waits in PBS with {had}, where {now} is asked for now"
        self.say(
            f"{job_id} ({entry.name}) runs already and is kept with {had}, though {now} is asked "
            "for now."
        )
        return None

    def _by_name(self, request: Request, entry: Entry | None) -> Entry | None:
        """Return the living job of this name; delete further ones, which write the same files. An
        `entry` without an id is a call of qsub that left no answer: a server that hung may have
        queued the job all the same."""
        if entry is None and not self._strangers:
            return None
        ids = self.pbs.named(request.name)
        if not ids:
            if entry is not None and self._looks.setdefault(request.name, 0) < _LOOKS_FOR_LOST:
                self._looks[request.name] += 1
                raise WaitError(
                    request.name,
                    "a call of qsub left no answer; looking whether the job was queued all the "
                    "same",
                )
            self._looks.pop(request.name, None)
            return None
        if ids[1:]:
            self.say(
                f"{', '.join(ids)} bear the same name {request.name}; keeping the first, deleting "
                "the others."
            )
            self.pbs.call("qdel", *ids[1:])
        # without an entry the ledger is lost, and with it what the job asked for
        entry = replace(entry or request.entry(0.0), id=ids[0])
        self.ledger.write(entry)
        return entry


def _values(words: tuple[str, ...], others: tuple[str, ...]) -> str:
    """Return, for a message, the words of one call of qsub that the other call lacks."""
    return (
        ", ".join(word for word in words if word not in others and not word.startswith("-"))
        or "less"
    )
