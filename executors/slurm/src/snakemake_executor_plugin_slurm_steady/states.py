"""The states of SLURM jobs, as the plain plugin should take them: what has really ended, why, and
what will never begin."""

import re
import time
from collections.abc import Awaitable, Callable, Iterable
from logging import Logger
from typing import Any

from .questions import at_most, said, state_by_number, why_they_wait

SECONDS_TO_COME_BACK = 30.0
"""A job that is preempted, lost its node or is unknown to squeue may be in the queue again after
this."""
LIMBO = {"PREEMPTED", "NODE_FAIL", "REVOKED"}
SHORTEST_INTERVAL, LONGEST_INTERVAL = 2.0, 60.0
"""Seconds between two looks. Well below the MinJobAge of 120 s from which on the plain plugin
relies on squeue."""
INTERVAL_PER_AGE = 0.25
"""Time between two looks by the time since a job was submitted or started: an end is seen at most
so much later."""

REMEDIES = {
    "OUT_OF_MEMORY": "out of main memory. The next attempt asks for more, if mem_mb grows with "
    "`attempt`",
    "TIMEOUT": "its time was up. The next attempt asks for more, if runtime grows with `attempt`",
    "CANCELLED": "somebody cancelled it (scancel, or the site)",
    "PREEMPTED": "preempted and not put back into the queue",
    "NODE_FAIL": "its node failed, and it was not put back into the queue",
    "REVOKED": "SLURM took it away",
    "UNKNOWN": "SLURM has forgotten it; its output says how it ended",
}
CAUSES = {"TIMEOUT": "time", "OUT_OF_MEMORY": "memory"}
"""Told in `aux` of what is reported, with what the partition gives at most."""
NEVER = re.compile("PartitionTimeLimit|PerJob|BadConstraints|Invalid|NotAllowed")
HELD = re.compile("JobHe|JobHold|held", re.IGNORECASE)
"""Reasons to wait, by squeue, that do not pass with time."""

Answer = tuple[dict[str, str] | None, float | None]
Ask = Callable[[str, Logger], Awaitable[Answer]]


class States:
    """The states of the jobs that the plain plugin waits for, as it should take them."""

    def __init__(self, ask: Ask) -> None:
        """`ask` runs squeue or sacct; its answer is None when there was none."""
        self._ask = ask
        self._active: dict[str, tuple[str, float]] = {}
        """Jobs that are waited for: their state, and since when."""
        self._silent: float | None = None
        self._asked_why = time.monotonic()
        self._told: set[str] = set()
        self._hopeless: set[str] = set()
        self.why: dict[str, dict[str, Any]] = {}
        """Of jobs that failed: "cause", "at_most" and "said", as `aux` has them."""

    def await_(self, jobs: Iterable[str]) -> None:
        """Take these jobs for those that are waited for, and keep what is known of them."""
        now = time.monotonic()
        self._active = {job: self._active.get(job, ("", now)) for job in jobs}

    def interval(self, left: int) -> float:
        """Seconds until the next look, when `left` of the jobs have not ended.

        Short when something is new.
        """
        if left < len(self._active):
            return SHORTEST_INTERVAL
        now = time.monotonic()
        latest = max((since for _, since in self._active.values()), default=now)
        return min(max(INTERVAL_PER_AGE * (now - latest), SHORTEST_INTERVAL), LONGEST_INTERVAL)

    async def query(self, command: str, logger: Logger) -> tuple[dict[str, str], float]:
        """States by job. No answer is an empty one, so that all are looked at again later."""
        states, seconds = await self._ask(command, logger)
        if states is None:
            self._say_silent(command.split(maxsplit=1)[0], logger)
            return {}, 0.0
        if self._silent is not None:
            silence = time.monotonic() - self._silent
            logger.warning(f"SLURM answers again, after {silence:.0f} s.")
            self._silent = None
        # sacct says "CANCELLED by 1234"
        found = {job: _first_word(words) for job, words in states.items()}
        for job in self._active:
            found[job] = await self._settled(job, _state_of(job, found))
            cause, remedy = CAUSES.get(found[job]), REMEDIES.get(found[job], "")
            if remedy and found[job] != "UNKNOWN":
                words = {"said": f"SLURM job {job}: {remedy.partition('. ')[0]}"}
                self.why[job] = words | self.why.get(job, {})
            if cause:
                self.why[job] |= {"cause": cause, "at_most": await at_most(job, cause)}
            if found[job] in REMEDIES and job not in self._hopeless:
                logger.warning(f"SLURM job {job}: {REMEDIES[found[job]]}.")
            if found[job] in LIMBO:
                found[job] = "FAILED"
        waiting = [job for job in self._active if found[job] == "PENDING"]
        if waiting and time.monotonic() - self._asked_why > SECONDS_TO_COME_BACK:
            self._asked_why = time.monotonic()
            await self._say_why(waiting, logger)
        return found, seconds or 0.0

    def _say_silent(self, command: str, logger: Logger) -> None:
        """Once for each silence."""
        if self._silent is None:
            self._silent = time.monotonic()
            logger.warning(f"SLURM does not answer ({command}). The run waits; its jobs go on.")

    async def _say_why(self, jobs: list[str], logger: Logger) -> None:
        """Name, once each, the reasons for which jobs would wait for ever: SLURM takes such jobs,
        and says nothing.

        Those that nobody can release are cancelled when a second look finds them so, and are not
        submitted again.
        """
        before, self._hopeless = self._hopeless, set()
        for reason, job, rule in await why_they_wait(jobs):
            held = HELD.search(reason)
            if not held and NEVER.search(reason):
                self._hopeless.add(job)
                if job in before:
                    said_of_it = f"SLURM job {job} can never start: {reason}"
                    self.why[job] = {"cause": "refused", "said": said_of_it}
                    await said("scancel", job)
            if reason in self._told or not (held or job in self._hopeless):
                continue
            self._told.add(reason)
            if held:
                told = f"is held: {reason}. To let it go on: scontrol release {job}"
            else:
                told = (
                    f"can never start: {reason}. It will be cancelled. Ask for what the partition "
                    "and your account allow (runtime, mem_mb, slurm_partition, in your profile)."
                )
            logger.warning(f"SLURM job {job}, {rule} {told}")

    async def _settled(self, job: str, state: str) -> str:
        """The state itself, or PENDING as long as SLURM may put the job back into the queue."""
        before, since = self._active[job]
        if state != before:
            since = time.monotonic()
            self._active[job] = state, since
        if state and state not in LIMBO:
            return state
        if time.monotonic() - since < SECONDS_TO_COME_BACK:
            return "PENDING"
        # The plain plugin takes UNKNOWN for an end, and Snakemake then looks for the job's output.
        return state or await state_by_number(job) or "UNKNOWN"


def _first_word(words: str) -> str:
    return next(iter(words.split()), "").rstrip("+")


def _state_of(job: str, states: dict[str, str]) -> str:
    """The state of a job, or of the array that holds it; "" if there is none.

    Tasks that wait are listed as 12_[3-9].
    """
    parent = job.split("_", maxsplit=1)[0]
    waiting = any(other.startswith(f"{parent}_[") for other in states)
    in_array = "PENDING" if waiting and "_" in job else ""
    return states.get(job) or states.get(parent) or in_array
