"""Questions to SLURM by its commands."""

import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from logging import Logger

SECONDS_FOR_AN_ANSWER = 60.0
SECONDS_TO_COME_BACK = 30.0
"""After a preemption or a lost node; a new job, too, may be unknown to squeue for a while."""
LIMBO = {"", "PREEMPTED", "NODE_FAIL", "REVOKED"}
SHORTEST_INTERVAL, LONGEST_INTERVAL = 2.0, 60.0
"""Seconds between two looks."""
INTERVAL_PER_AGE = 0.25
"""Time between two looks, divided by the time since a job was last submitted or started."""


def answer(*command: str) -> str | None:
    """Return what a command of SLURM prints; None if it fails, is not here or takes too long."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=SECONDS_FOR_AN_ANSWER,
            start_new_session=True,  # a Ctrl-C is not meant for it
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def cancel_jobs_of(run: str) -> bool:
    """Cancel the jobs whose names end with `run`; False if SLURM does not answer."""
    lines = answer("squeue", "--me", "--noheader", "--format=%i|%j")
    if lines is None:
        return False
    names = (line.split("|", 1) for line in lines.splitlines())
    jobs = [job for job, name in names if name.endswith(run)]
    return not jobs or answer("scancel", *jobs) is not None


@dataclass(frozen=True)
class Job:
    """A job as squeue shows it: its state, why it is in that state, and its nodes."""

    state: str
    reason: str = ""
    nodes: str = ""


class Queue:
    """The jobs of a run in SLURM's queue, by one short question a look."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        self._since: dict[str, tuple[str, float]] = {}
        """State of each job at the last look, and since when it has had it."""
        self._silent_since: float | None = None

    def look(self, jobs: Iterable[str]) -> dict[str, Job]:
        """Return the jobs by their numbers, none while SLURM does not answer, and say so once.

        A job that may come back into the queue is PENDING. One that SLURM has forgotten is UNKNOWN.
        """
        lines = answer("squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%N|%r")
        if lines is None:
            if self._silent_since is None:
                self._silent_since = time.monotonic()
                self._logger.warning(
                    "SLURM does not answer (squeue). The run waits; its jobs go on."
                )
            return {}
        if self._silent_since is not None:
            silence = time.monotonic() - self._silent_since
            self._logger.warning(f"SLURM answers again, after {silence:.0f} s.")
            self._silent_since = None
        known = dict(_jobs(lines))
        seen = {number: known.get(number, Job("")) for number in jobs}
        now = time.monotonic()
        before, self._since = self._since, {}
        for number, job in seen.items():
            state, since = before.get(number, (job.state, now))
            self._since[number] = job.state, since if state == job.state else now
        gone = {
            number
            for number, (state, since) in self._since.items()
            if state in LIMBO and now - since >= SECONDS_TO_COME_BACK
        }
        forgotten = sorted(number for number in gone if not seen[number].state)
        ends = dict(_ends(forgotten)) if forgotten else {}
        for number, job in seen.items():
            if number in forgotten:
                seen[number] = Job(ends.get(number, "UNKNOWN"))
            elif job.state in LIMBO and number not in gone:
                seen[number] = replace(job, state="PENDING")
        return seen

    def interval(self, left: int) -> float:
        """Return the seconds until the next look, when `left` of the jobs have not ended.

        Few when something is new.
        """
        if left < len(self._since):
            return SHORTEST_INTERVAL
        now = time.monotonic()
        latest = max((since for _, since in self._since.values()), default=now)
        return min(max(INTERVAL_PER_AGE * (now - latest), SHORTEST_INTERVAL), LONGEST_INTERVAL)


def _jobs(lines: str) -> Iterator[tuple[str, Job]]:
    for line in lines.splitlines():
        number, *words = line.split("|", 3)
        if len(words) == 3:  # else a site's own words
            state, nodes, reason = words
            yield number, Job(state, reason, nodes)


def _ends(jobs: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the states that accounting knows, if there is any."""
    which = f"--jobs={','.join(jobs)}"
    lines = answer("sacct", "-X", "--noheader", "--parsable2", "--format=JobIDRaw,State", which)
    for line in (lines or "").splitlines():
        number, state = line.split("|", 1)
        yield number, state.split()[0]  # it says "CANCELLED by 1234"
