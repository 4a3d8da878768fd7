"""One look at all jobs per interval, in two PBS commands, three at most.

`qselect -u USER` names the jobs that live, for all of them at once and cheaply for the server.
`qstat -x -f ID...` is asked only for those that have left that list (once in a job's life). Beside
that, every other look asks it for a few waiting ones, so that the user sees why they wait; the
looks between ask `qselect -h s` which ones the system holds, so that a job held for ever is
noticed.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .commands import AwayError, Pbs, number
from .ledger import Ledger
from .logs import node_that_ended_it
from .parse import Record, Report, read_report
from .verdict import RUNNING, Verdict, judge

LOOKS_BEFORE_LOST = 3
LOOKS_NOT_UNDERSTOOD = 10  # answers that are neither yes nor no before they count as denials
KILLED = 256  # and more: Exit_status of a job that a signal ended
ASK_AT_ONCE = 100  # ids in one qstat: each is a request of its own to the server
INSPECT_AT_ONCE = 40  # living jobs looked into in every other look ...
INSPECT_EVERY = 300.0  # ... and seconds until the same one's turn comes again


@dataclass
class Job:
    """A job under watch. Times are of `time.monotonic`."""

    id: str
    name: str
    queue: str
    log: str
    inspected: float = field(default_factory=lambda: time.monotonic() - INSPECT_EVERY + 20)
    comment: str = ""
    unclear: int = 0
    denials: int = 0
    denied_since: float = 0.0
    without_end_since: float | None = None


class Watch:
    """Decides for jobs; remembers between looks whether PBS keeps a history and how often it denied
    a job.
    """

    def __init__(
        self, pbs: Pbs, ledger: Ledger, unknown_seconds: float, say: Callable[[str], None]
    ) -> None:
        self.pbs = pbs
        self.ledger = ledger
        self.unknown_seconds = unknown_seconds
        self.say = say
        self.history = True
        self._looks = 0
        self._away_since: float | None = None
        self._unclear_at = -INSPECT_EVERY
        self._said: set[str] = set()
        self._said_at = -INSPECT_EVERY

    def look(self, jobs: Iterable[Job]) -> dict[str, Verdict]:
        """{id: verdict} for every job. While the server is away every job counts as running,
        however long it takes.
        """
        jobs = list(jobs)
        verdicts = dict.fromkeys((job.id for job in jobs), RUNNING)
        try:
            live = self.pbs.live()
        except AwayError as away:
            self._report_away(str(away))
            return verdicts
        now = time.monotonic()
        gone = [job for job in jobs if number(job.id) not in live]
        asked = gone[:ASK_AT_ONCE] + self._to_inspect(
            [job for job in jobs if number(job.id) in live], now
        )
        if asked:
            try:
                report, words = self._ask(asked)
            except AwayError as away:
                self._report_away(str(away))
                return verdicts
            for job in asked:
                verdicts[job.id] = self._decide(
                    job, report, words, now, lives=number(job.id) in live
                )
            self._report_waiting(jobs)
        self._report_back()
        return verdicts

    def _to_inspect(self, living: list[Job], now: float) -> list[Job]:
        """Which of the living jobs are asked about now."""
        self._looks += 1
        if not living:
            return []
        if self._looks % 2 == 0:
            held = self.pbs.held()
            return [job for job in living if number(job.id) in held]
        due = sorted(living, key=lambda job: job.inspected)[:INSPECT_AT_ONCE]
        return [job for job in due if now - job.inspected >= INSPECT_EVERY]

    def _ask(self, jobs: list[Job]) -> tuple[Report, str]:
        """What PBS says of these jobs, and its words where it complains. Raises AwayError.

        The history may be switched off and on at any time. Without it, -x shows no job at all, not
        even one that runs; with it, an ended job is shown with -x only. Both are said, and the
        other way is taken at once.
        """
        for _ in range(2):
            answer = self.pbs.call(
                "qstat", *(["-x"] if self.history else []), "-f", *(job.id for job in jobs)
            )
            if answer.away:
                raise AwayError(answer.words)
            report = read_report(answer)
            if not (report.no_history if self.history else report.finished):
                break
            self.history = not self.history
        return report, answer.words

    def _decide(self, job: Job, report: Report, words: str, now: float, lives: bool) -> Verdict:
        record = report.records.get(number(job.id))
        if record is None:
            job.comment = ""
            job.inspected = now
            if lives:
                return RUNNING
            if number(job.id) in report.unknown:
                return self._decide_unknown(job, now)
            return self._decide_unclear(job, words, now)
        job.unclear = job.denials = 0
        job.inspected = now
        job.comment = _why_it_waits(record)
        if record.state == "M":  # moved to another server, which this one cannot speak for
            return self._by_end_record(job) or RUNNING
        verdict = judge(record)
        if verdict.kind == "success":
            return self._confirmed(job, verdict, now)
        if (record.exit_status or 0) > KILLED and (node := node_that_ended_it(job.log)):
            return Verdict(
                "failed",
                f"PBS killed it, because its node {node} was lost or came back (see its log)",
            )
        return verdict

    def _decide_unknown(self, job: Job, now: float) -> Verdict:
        decided = self._by_end_record(job)
        if decided:
            return decided
        job.denials += 1
        if job.denials == 1:
            job.denied_since = now
        if job.denials < LOOKS_BEFORE_LOST or now - job.denied_since < self.unknown_seconds:
            return RUNNING
        if not self.history:
            return Verdict(
                "failed",
                "it has ended without leaving its own record of success (this PBS keeps no "
                "history, so nothing more is known)",
            )
        if self.ledger.began(job.name, job.id):
            return Verdict(
                "failed",
                "it ran, and is gone from PBS's history: deleted together with it (qdel -x), or "
                "purged",
            )
        return Verdict(
            "failed",
            "PBS does not know it any more. A routing queue drops a job without a word when none "
            "of its destinations takes the job: check nodes and walltime against the limits of "
            f"queue {job.queue or 'in use'}",
        )

    def _decide_unclear(self, job: Job, words: str, now: float) -> Verdict:
        """Not alive, and PBS says neither what became of it nor that it knows no such job."""
        job.unclear += 1
        if now - self._unclear_at >= INSPECT_EVERY:
            self._unclear_at = now
            self.say(
                f"PBS gave an answer on {job.id} ({job.name}) that is not understood: {words}. "
                f"Asking again; a job that gets no other answer in {LOOKS_NOT_UNDERSTOOD} looks "
                "counts as unknown to PBS."
            )
        if job.unclear < LOOKS_NOT_UNDERSTOOD:
            return self._by_end_record(job) or RUNNING
        return self._decide_unknown(job, now)

    def _confirmed(self, job: Job, verdict: Verdict, now: float) -> Verdict:
        """Exit_status 0 counts with the record that the script wrote as its last act; a network
        filesystem may show that a little late."""
        if self._by_end_record(job):
            return verdict
        if job.without_end_since is None:
            job.without_end_since = now
        if now - job.without_end_since < self.unknown_seconds:
            return RUNNING
        words = (
            "PBS says exit status 0, but the job did not run to its end: its own record is missing"
        )
        return Verdict("failed", verdict.words or words)

    def _by_end_record(self, job: Job) -> Verdict | None:
        code = self.ledger.exit_code(job.name, job.id)
        if code is None:
            return None
        return (
            Verdict("success")
            if code == 0
            else Verdict("failed", f"it ended with exit code {code}")
        )

    def _report_waiting(self, jobs: list[Job]) -> None:
        """Say PBS's own comments when they change, at most every few minutes: they hold numbers
        that change at once.
        """
        waiting = {job.comment: job for job in jobs if job.comment}
        now = time.monotonic()
        if waiting.keys() == self._said or now - self._said_at < INSPECT_EVERY:
            return
        self._said, self._said_at = set(waiting), now
        for comment, job in waiting.items():
            self.say(f"PBS on waiting jobs, such as {job.id} ({job.name}): {comment}")

    def _report_away(self, words: str) -> None:
        if self._away_since is None:
            self._away_since = time.monotonic()
            self.say(
                f"PBS does not answer ({words}). Jobs that run go on; asking again until it does."
            )

    def _report_back(self) -> None:
        if self._away_since is not None:
            self.say(f"PBS answers again, after {time.monotonic() - self._away_since:.0f} s.")
            self._away_since = None


def _why_it_waits(record: Record) -> str:
    return record.comment if record.state in {"Q", "H", "W"} else ""
