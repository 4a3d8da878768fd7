"""One look at all jobs per interval, in at most two PBS commands.

`qselect -u USER` names the jobs that live, for all of them at once and cheaply for the server. `qstat -x -f ID...`
is asked only for those that have left that list (once in a job's life) and, a few at a time, for waiting ones, so
that the user sees why they wait and that a job held for ever is noticed.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .commands import AwayError, Pbs, number
from .ledger import Ledger
from .parse import Record, Report, read_report
from .verdict import RUNNING, Verdict, judge

LOOKS_BEFORE_LOST = 3
ASK_AT_ONCE = 100  # ids in one qstat: each is a request of its own to the server
INSPECT_AT_ONCE = 20  # living jobs looked into per interval ...
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
    denials: int = 0
    denied_since: float = 0.0
    without_end_since: float | None = None


class Watch:
    """Decides for jobs; remembers between looks whether PBS keeps a history and how often it denied a job."""

    def __init__(self, pbs: Pbs, ledger: Ledger, unknown_seconds: float, say: Callable[[str], None]) -> None:
        self.pbs = pbs
        self.ledger = ledger
        self.unknown_seconds = unknown_seconds
        self.say = say
        self.history = True
        self._away_since: float | None = None
        self._said: set[str] = set()
        self._said_at = -INSPECT_EVERY

    def look(self, jobs: Iterable[Job]) -> dict[str, Verdict]:
        """{id: verdict} for every job. While the server is away every job counts as running, however long it takes."""
        jobs = list(jobs)
        verdicts = dict.fromkeys((job.id for job in jobs), RUNNING)
        try:
            live = self.pbs.live()
        except AwayError as away:
            self._report_away(str(away))
            return verdicts
        gone = [job for job in jobs if number(job.id) not in live]
        now = time.monotonic()
        due = sorted((job for job in jobs if number(job.id) in live), key=lambda job: job.inspected)
        due = [job for job in due[:INSPECT_AT_ONCE] if now - job.inspected >= INSPECT_EVERY]
        asked = gone[:ASK_AT_ONCE] + due
        if not asked:
            self._report_back()
            return verdicts
        answer = self.pbs.call("qstat", *(["-x"] if self.history else []), "-f", *(job.id for job in asked))
        report = read_report(answer)
        if answer.away or not (report.records or report.unknown or report.no_history):
            self._report_away(answer.words)
            return verdicts
        self._report_back()
        if report.no_history:
            self.history = False
        for job in asked:
            verdicts[job.id] = self._decide(job, report, now)
        self._report_waiting(jobs)
        return verdicts

    def _decide(self, job: Job, report: Report, now: float) -> Verdict:
        key = number(job.id)
        record = report.records.get(key)
        if record is None:
            job.comment = ""
            return self._decide_unknown(job, now) if key in report.unknown else RUNNING
        job.denials = 0
        job.inspected = now
        job.comment = _why_it_waits(record)
        if record.state == "M":  # moved to another server, which this one cannot speak for
            return self._by_end_record(job) or RUNNING
        verdict = judge(record)
        if verdict.kind == "success":
            return self._confirmed(job, verdict, now)
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
                "it has ended without leaving its own record of success (this PBS keeps no history, so nothing more "
                "is known)",
            )
        return Verdict(
            "failed",
            f"PBS does not know it any more. A routing queue drops a job without a word when none of its destinations "
            f"takes the job: check nodes and walltime against the limits of queue {job.queue or 'in use'}",
        )

    def _confirmed(self, job: Job, verdict: Verdict, now: float) -> Verdict:
        """Exit_status 0 counts with the record that the script wrote as its last act; a network filesystem may show
        that a little late."""
        if self._by_end_record(job):
            return verdict
        if job.without_end_since is None:
            job.without_end_since = now
        if now - job.without_end_since < self.unknown_seconds:
            return RUNNING
        words = "PBS says exit status 0, but the job did not run to its end: its own record is missing"
        return Verdict("failed", verdict.words or words)

    def _by_end_record(self, job: Job) -> Verdict | None:
        code = self.ledger.exit_code(job.name, job.id)
        if code is None:
            return None
        return Verdict("success") if code == 0 else Verdict("failed", f"it ended with exit code {code}")

    def _report_waiting(self, jobs: list[Job]) -> None:
        """Say PBS's own comments when they change, at most every few minutes: they hold numbers that change at once."""
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
            self.say(f"PBS does not answer ({words}). Jobs that run go on; asking again until it does.")

    def _report_back(self) -> None:
        if self._away_since is not None:
            self.say(f"PBS answers again, after {time.monotonic() - self._away_since:.0f} s.")
            self._away_since = None


def _why_it_waits(record: Record) -> str:
    return record.comment if record.state in {"Q", "H", "W"} else ""
