"""Looks at all jobs, one per interval, in two PBS commands, three at most.

`qselect -u USER` names the jobs that live, for all of them at once and cheaply for the server.
`qstat -x -f ID...` is asked only for those that have left that list (once in a job's life). Beside
that, every other look asks it for a few living ones, so that the user sees why they wait and which
do nothing; the looks between ask `qselect -h s` which ones the system holds, so that a job held for
ever is noticed.
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
KILLED = 256  # and more: Exit_status of a job that a signal ended
ASK_AT_ONCE = 100  # ids in one qstat: each is a request of its own to the server
INSPECT_AT_ONCE = 40  # living jobs looked into in every other look ...
INSPECT_EVERY = 300.0  # ... and seconds until the same one's turn comes again
IDLE_AFTER = 1800.0  # seconds without CPU time before the user hears of a running job
REPEAT_AFTER = 1800.0  # seconds until it is said again that PBS does not answer


@dataclass
class Job:
    """A job under watch. Times are of `time.monotonic`."""

    id: str
    name: str
    queue: str
    log: str
    inspected: float = field(default_factory=lambda: time.monotonic() - INSPECT_EVERY + 20)
    comment: str = ""
    cpu_time: str = ""
    busy: float = field(default_factory=time.monotonic)  # when its CPU time last changed
    idle: bool = False
    denials: int = 0  # looks in a row that left open how it ended ...
    denied_since: float = 0.0  # ... and when the first of them was


class Watch:
    """Judge of jobs; remembers between looks whether PBS keeps a history and what was said."""

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
        self._away_said = 0.0
        self._comments: set[str] = set()
        self._comments_said = -INSPECT_EVERY

    def look(self, jobs: Iterable[Job]) -> dict[str, Verdict]:
        """Return {id: verdict} for every job. While the server is away every job counts as running,
        however long it takes.
        """
        jobs = list(jobs)
        verdicts = dict.fromkeys((job.id for job in jobs), RUNNING)
        now = time.monotonic()
        try:
            live = self.pbs.live()
            gone = [job for job in jobs if number(job.id) not in live]
            due = gone[:ASK_AT_ONCE]
            due += self._to_inspect([job for job in jobs if number(job.id) in live], now)
            report = self._ask(due) if due else None
        except AwayError as away:
            self._report_away(str(away), now)
            return verdicts
        self._report_back(now)
        if report:
            for job in due:
                lives = number(job.id) in live
                verdicts[job.id] = self._decide(job, report, now, lives)
            self._report_waiting(jobs, now)
            records = report.records
            self._report_idle(
                [job for job in due if _becomes_idle(job, records.get(number(job.id)), now)]
            )
        return verdicts

    def _to_inspect(self, living: list[Job], now: float) -> list[Job]:
        """Return the living jobs whose turn it is to be looked into."""
        self._looks += 1
        if not living:
            return []
        if self._looks % 2 == 0:
            held = self.pbs.held()
            return [job for job in living if number(job.id) in held]
        due = sorted(living, key=lambda job: job.inspected)[:INSPECT_AT_ONCE]
        return [job for job in due if now - job.inspected >= INSPECT_EVERY]

    def _ask(self, jobs: list[Job]) -> Report:
        """Call qstat for these jobs. Raises AwayError.

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
        return report

    def _decide(self, job: Job, report: Report, now: float, lives: bool) -> Verdict:
        record = report.records.get(number(job.id))
        job.inspected = now
        job.comment = record.comment if record and record.state in {"Q", "H", "W"} else ""
        if record is None:
            return RUNNING if lives else self._decide_unknown(job, report, now)
        verdict = judge(record)
        if verdict.kind == "running":
            # one that was moved to another server does not live here and has not ended
            job.denials = 0
            return RUNNING if lives else self._by_end_record(job) or RUNNING
        if verdict.kind == "success":
            return self._confirmed(job, verdict, now)
        if (record.exit_status or 0) > KILLED and (node := node_that_ended_it(job.log)):
            return Verdict(
                "failed",
                f"PBS killed it, because its node {node} was lost or came back (see its log)",
            )
        return verdict

    def _decide_unknown(self, job: Job, report: Report, now: float) -> Verdict:
        """Judge a job that does not live and of which qstat shows nothing: by its own record; else
        it has failed, after some looks.
        """
        decided = self._by_end_record(job)
        if decided:
            return decided
        if self._patience(job, now, LOOKS_BEFORE_LOST):
            return RUNNING
        if not self.history:
            words = (
                "it has ended without leaving its own record of success (this PBS keeps no "
                "history, so nothing more is known)"
            )
        elif number(job.id) not in report.unknown:
            words = f"it has ended, and PBS does not say how but: {report.words}"
        elif self.ledger.began(job.name, job.id):
            words = (
                "it ran, and is gone from PBS's history: deleted together with it (qdel -x), or "
                "purged"
            )
        else:
            words = (
                "PBS does not know it any more. A routing queue drops a job without a word when "
                "none of its destinations takes the job: check nodes and walltime against the "
                f"limits of queue {job.queue or 'in use'}"
            )
        return Verdict("failed", words)

    def _confirmed(self, job: Job, verdict: Verdict, now: float) -> Verdict:
        """Exit_status 0 counts with the record that the script wrote as its last act; a network
        filesystem may show that a little late."""
        if self._by_end_record(job):
            return verdict
        if self._patience(job, now, 1):
            return RUNNING
        words = (
            "PBS says exit status 0, but the job did not run to its end: its own record is missing"
        )
        return Verdict("failed", verdict.words or words)

    def _patience(self, job: Job, now: float, looks: int) -> bool:
        """Return whether a job that left open how it ended is looked at once more."""
        job.denials += 1
        if job.denials == 1:
            job.denied_since = now
        return job.denials < looks or now - job.denied_since < self.unknown_seconds

    def _by_end_record(self, job: Job) -> Verdict | None:
        code = self.ledger.exit_code(job.name, job.id)
        if code is None:
            return None
        return Verdict("failed", f"it ended with exit code {code}") if code else Verdict("success")

    def _report_waiting(self, jobs: list[Job], now: float) -> None:
        """Say PBS's own comments when they change, at most every few minutes: they hold numbers
        that change at once.
        """
        waiting = {job.comment: job for job in jobs if job.comment}
        if waiting.keys() == self._comments or now - self._comments_said < INSPECT_EVERY:
            return
        self._comments, self._comments_said = set(waiting), now
        for comment, job in waiting.items():
            self.say(f"PBS on waiting jobs, such as {job.id} ({job.name}): {comment}")

    def _report_idle(self, idle: list[Job]) -> None:
        """Name running jobs that use no CPU time: nothing else tells of a job whose processes or
        whose node are gone while PBS keeps it in R.
        """
        if idle:
            self.say(
                f"PBS shows {', '.join(f'{job.id} ({job.name})' for job in idle)} as running, but "
                f"has counted no CPU time for {IDLE_AFTER / 60:.0f} minutes: the processes or the "
                f"node may be gone. Look into the log ({idle[0].log}); "
                f"`qdel {' '.join(job.id for job in idle)}` gives up, and --retries follow."
            )

    def _report_away(self, words: str, now: float) -> None:
        if self._away_since is None:
            self._away_since = now
        elif now - self._away_said < REPEAT_AFTER:
            return
        self._away_said = now
        self.say(f"PBS does not answer ({words}). Jobs that run go on; asking again until it does.")

    def _report_back(self, now: float) -> None:
        if self._away_since is not None:
            self.say(f"PBS answers again, after {now - self._away_since:.0f} s.")
            self._away_since = None


def _becomes_idle(job: Job, record: Record | None, now: float) -> bool:
    """Note the CPU time of a job that was asked about; True when it first is idle for long."""
    if record is None or record.state != "R" or record.cpu_time != job.cpu_time:
        job.cpu_time, job.busy, job.idle = record.cpu_time if record else "", now, False
        return False
    before, job.idle = job.idle, now - job.busy >= IDLE_AFTER
    return job.idle and not before
