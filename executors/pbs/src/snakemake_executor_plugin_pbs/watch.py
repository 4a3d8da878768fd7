"""Looks at all jobs, in two PBS commands.

`qselect -u USER` names the jobs that live, for all of them at once and cheaply for the server.
`qstat -x -f ID...` shows those that have left that list (once in a job's life), and now and then
living ones, so that the user hears why they wait, which do nothing, and which are held.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from .commands import Notices, Pbs, number
from .ledger import Entry, Ledger
from .parse import Record, Report, read_report
from .verdict import Verdict, judge

ASK_AT_ONCE = 100  # ids in one qstat: each is a request of its own to the server
INSPECT_AT_ONCE = 40  # living jobs that one look inspects ...
INSPECT_EVERY = 300.0  # ... and seconds until the same one's turn comes again
IDLE_AFTER = 1800.0  # seconds without CPU time before the user hears of a running job


@dataclass(eq=False)
class Job:
    """A submitted job under watch. Times are of `time.monotonic`."""

    entry: Entry
    inspected: float = field(default_factory=lambda: time.monotonic() - INSPECT_EVERY + 20)
    cpu_time: str = ""
    busy: float = field(default_factory=time.monotonic)  # when its CPU time last changed
    unknown_since: float | None = None  # when a look first left open how it ended

    @property
    def id(self) -> str:
        """Return the id in PBS."""
        return self.entry.id or ""


class Watch:
    """Judge of jobs; remembers whether PBS keeps a history."""

    def __init__(self, pbs: Pbs, ledger: Ledger, unknown_seconds: float, notices: Notices) -> None:
        self.pbs = pbs
        self.ledger = ledger
        self.unknown_seconds = unknown_seconds
        self.notices = notices
        self.history = True

    def look(self, jobs: Sequence[Job]) -> dict[str, Verdict]:
        """Return the verdicts on the jobs that have ended, by their ids. Raises AwayError."""
        live = set(map(number, self.pbs.living()))
        now = time.monotonic()
        gone = [job for job in jobs if number(job.id) not in live][:ASK_AT_ONCE]
        living = [job for job in jobs if number(job.id) in live]
        due = [job for job in living if now - job.inspected >= INSPECT_EVERY]
        due = sorted(due, key=lambda job: job.inspected)[:INSPECT_AT_ONCE]
        for job in living:
            job.unknown_since = None
        if not gone and not due:
            return {}
        report = self._ask([*gone, *due])
        verdicts = {job.id: self._judge_gone(job, report, now) for job in gone}
        for job in due:
            job.inspected = now
            if record := report.records.get(number(job.id)):
                verdicts[job.id] = self._inspect(job, record, now)
        return {job_id: verdict for job_id, verdict in verdicts.items() if verdict}

    def _ask(self, jobs: list[Job]) -> Report:
        """Call qstat for these jobs. Raises AwayError.

        The history may be switched off and on at any time. Without it, -x shows no job at all, not
        even one that runs; with it, an ended job is shown with -x only. Both are said, and the
        other way is taken at once.
        """
        for _ in range(2):
            option = ["-x"] if self.history else []
            answer = self.pbs.call("qstat", *option, "-f", *(job.id for job in jobs))
            report = read_report(answer)
            if not (report.no_history if self.history else report.finished):
                break
            self.history = not self.history
        return report

    def _judge_gone(self, job: Job, report: Report, now: float) -> Verdict | None:
        """Judge a job that does not live. Exit status 0 counts with the end record of the job,
        which a network filesystem may show a little late.
        """
        record = report.records.get(number(job.id))
        verdict = judge(record) if record else None
        if verdict and not verdict.success:
            return verdict
        code = self.ledger.exit_code(job.entry)
        if code is not None:
            return Verdict(code == 0, f"it ended with exit code {code}")
        if record and not verdict:
            return None  # it was moved to another server, and ends there
        job.unknown_since = now if job.unknown_since is None else job.unknown_since
        if now - job.unknown_since < self.unknown_seconds:
            return None
        if verdict:
            words = "PBS says exit status 0, but the job did not run to its end: its own record is "
            return Verdict(False, verdict.words or f"{words}missing")
        return Verdict(False, self._why_unknown(job.entry, report))

    def _why_unknown(self, entry: Entry, report: Report) -> str:
        if not self.history:
            return (
                "it has ended without leaving its own record of success (this PBS keeps no "
                "history, so nothing more is known)"
            )
        if report.complaint:
            return f"it has ended, and PBS does not say how but: {report.complaint}"
        if self.ledger.began(entry):
            return "it ran, and is gone from PBS's history: deleted with it (qdel -x), or purged"
        return (
            "PBS does not know it any more. A routing queue drops a job without a word when none "
            "of its destinations takes the job: check nodes and walltime against the limits of "
            f"queue {entry.queue or 'in use'}"
        )

    def _inspect(self, job: Job, record: Record, now: float) -> Verdict | None:
        """Say why a living job waits, and that a running one uses no CPU time: nothing else tells
        of a job whose processes or node are gone. Return the verdict on one that is held for ever.
        """
        name = f"{job.id} ({job.entry.name})"
        if record.state != "R" or record.cpu_time != job.cpu_time:
            job.cpu_time, job.busy = record.cpu_time, now
        elif now - job.busy >= IDLE_AFTER:
            self.notices(
                f"PBS shows {name} as running, but has counted no CPU time for "
                f"{IDLE_AFTER / 60:.0f} minutes: its processes or its node may be gone. Its log: "
                f"{job.entry.log} . `qdel {job.id}` gives it up, and --retries follow.",
                key=f"idle {job.id}",
            )
        if record.state in {"Q", "H", "W"} and record.comment:
            # the numbers in a comment change at once
            key = re.sub(r"\d+", "", record.comment)
            self.notices(f"PBS on waiting jobs, such as {name}: {record.comment}", key)
        verdict = judge(record)
        return verdict if verdict and verdict.held else None
