"""Questions to SLURM by its commands."""

import math
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from logging import Logger

from snakemake_interface_common.exceptions import WorkflowError

from .call import call
from .reasons import AWAY

SECONDS_FOR_AN_ANSWER = 60.0
SECONDS_OF_REFUSALS = 600.0
"""Until a run ends whose squeue fails, though somebody answers."""
SECONDS_TO_REPEAT = 1800.0
"""Between two warnings of the same words."""
SECONDS_TO_COME_BACK = 30.0
"""After a preemption or a lost node; a new job, too, may be unknown to squeue for a while."""
LIMBO = {"", "PREEMPTED", "NODE_FAIL", "REVOKED"}
FAILED = {
    "BOOT_FAIL",
    "CANCELLED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
}
SHORTEST_INTERVAL, LONGEST_INTERVAL = 2.0, 60.0
"""Seconds between two looks."""
INTERVAL_PER_AGE = 0.25
"""Time between two looks, divided by the time since a job was last submitted or started."""


class SlurmError(Exception):
    """A command of SLURM failed; its own words, on one line.

    away: nobody answered. SLURM may have done all the same what it was told to.
    """

    def __init__(self, words: str, *, away: bool) -> None:
        super().__init__(words)
        self.away = away


def ask(*command: str, stdin: str = "", name: str = "") -> str:
    """Return what a command of SLURM, of this name, prints. Raises SlurmError."""
    code, out, err = call(*command, timeout=SECONDS_FOR_AN_ANSWER, stdin=stdin)
    if code == 0:
        return out
    words = err.strip() or f"failed without a word (exit status {code})"
    words = re.sub(r"^(\w+: )error: ", r"\1", words)
    words = re.sub(r"\s*\n\s*(\w+: error: )?", " ", words).rstrip(".")
    if not re.match(r"\w+: |slurm_", words):
        words = f"{name or command[0]}: {words}"
    raise SlurmError(words, away=code is None or bool(AWAY.search(words)))


def cancel(end: str, but: str = "") -> None:
    """Cancel the live jobs, but one, whose names end with these words. Raises SlurmError."""
    lines = ask("squeue", "--me", "--noheader", "--format=%i| %j").splitlines()
    names = {number: name for number, _, name in (line.partition("|") for line in lines)}
    jobs = [job for job, name in names.items() if name.endswith(f" {end}") and job != but]
    if jobs:
        ask("scancel", *jobs)


def batch_start_timeout() -> float:
    """Return the seconds that the site grants for the launch of a script, with its prolog;
    infinitely many where SLURM does not say.
    """
    try:
        match = re.search(
            r"^BatchStartTimeout\s*=\s*(\d+)", ask("scontrol", "show", "config"), re.MULTILINE
        )
    except SlurmError:
        match = None
    return float(match[1]) if match else math.inf


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
        self._warned = 0.0

    def look(self, jobs: Iterable[str]) -> dict[str, Job]:
        """Return the jobs by their numbers, none while SLURM does not answer, and say so.

        A job that may come back into the queue is PENDING. One that SLURM has forgotten is UNKNOWN:
        neither squeue nor accounting knows how it ended. Raises WorkflowError where squeue can't be
        used.
        """
        try:
            lines = ask("squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%N|%r")
        except SlurmError as error:
            self._wait_for_slurm(error)
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
                # what a killed controller has lost stays as it was in accounting, for ever
                end = ends.get(number, "")
                seen[number] = Job(end if end in {"COMPLETED", *FAILED} else "UNKNOWN")
            elif job.state in LIMBO and number not in gone:
                seen[number] = replace(job, state="PENDING")
        return seen

    def _wait_for_slurm(self, error: SlurmError) -> None:
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since, self._warned = now, now - SECONDS_TO_REPEAT
        if not error.away and now - self._silent_since >= SECONDS_OF_REFUSALS:
            raise WorkflowError(f"{error}. The run ends, its jobs go on.")
        if now - self._warned >= SECONDS_TO_REPEAT:
            self._warned = now
            self._logger.warning(f"SLURM does not answer ({error}). The run waits; its jobs go on.")

    def seconds_running(self, number: str) -> float:
        """Return for how long a job has been seen RUNNING."""
        state, since = self._since[number]
        return time.monotonic() - since if state == "RUNNING" else 0.0

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
    try:
        lines = ask("sacct", "-X", "--noheader", "--parsable2", "--format=JobIDRaw,State", which)
    except SlurmError:
        return
    for line in lines.splitlines():
        number, _, state = line.partition("|")
        yield number, state.partition(" ")[0]  # it says "CANCELLED by 1234"
