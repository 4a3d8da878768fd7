"""The states of SLURM jobs, as snakemake-executor-plugin-slurm should take them: what has really ended, why, and what
will never begin.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from logging import Logger
from typing import Any

from plm_embed.sites.slurm import minutes

SECONDS_TO_COME_BACK = 30.0
"""A job that is preempted, lost its node or is unknown to squeue may be back in the queue after this."""
LIMBO = {"PREEMPTED", "NODE_FAIL", "REVOKED"}
SHORTEST_INTERVAL, LONGEST_INTERVAL = 2.0, 60.0
"""Seconds between two looks. Well below the MinJobAge of 120 s from which on the plugin relies on squeue."""
INTERVAL_PER_AGE = 0.25
"""Time between two looks by the time since a job was submitted or started: an end is seen at most so much later."""

REMEDIES = {
    "OUT_OF_MEMORY": "out of main memory. The next attempt asks for more; mem_mb in the profile is for all",
    "TIMEOUT": "its time was up. The next attempt asks for more, if the partition gives more, and does only the rest",
    "CANCELLED": "somebody cancelled it (scancel, or the site)",
    "PREEMPTED": "preempted and not put back into the queue",
    "NODE_FAIL": "its node failed, and it was not put back into the queue",
    "REVOKED": "SLURM took it away",
    "UNKNOWN": "SLURM has forgotten it; its output says how it ended",
}

CAUSES = {"TIMEOUT": "time", "OUT_OF_MEMORY": "memory"}
"""Told to `retries`, with what the partition gives at most."""
NEVER = re.compile("PartitionTimeLimit|PerJob|BadConstraints|Invalid|NotAllowed")
HELD = re.compile("JobHe|JobHold|held", re.IGNORECASE)
"""Reasons to wait, by squeue, that do not pass with time."""

Answer = tuple[dict[str, str] | None, float | None]
Ask = Callable[[str, Logger], Awaitable[Answer]]


class States:
    """The states of the jobs that the plugin waits for, as it should take them."""

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
        """Of jobs that failed: "cause" and "at_most", as `retries` understands them."""

    def await_(self, jobs: Iterable[str]) -> None:
        now = time.monotonic()
        self._active = {job: self._active.get(job, ("", now)) for job in jobs}

    def interval(self, left: int) -> float:
        """Seconds until the next look, when `left` of the jobs have not ended. Short when something is new."""
        if left < len(self._active):
            return SHORTEST_INTERVAL
        latest = max((since for _, since in self._active.values()), default=time.monotonic())
        return min(max(INTERVAL_PER_AGE * (time.monotonic() - latest), SHORTEST_INTERVAL), LONGEST_INTERVAL)

    async def query(self, command: str, logger: Logger) -> tuple[dict[str, str], float]:
        """States by job. No answer is an empty one, so that all jobs are looked at again later."""
        states, seconds = await self._ask(command, logger)
        if states is None:
            if self._silent is None:
                logger.warning(
                    f"SLURM does not answer ({command.split(maxsplit=1)[0]}). The campaign waits; its jobs go on."
                )
            self._silent = self._silent or time.monotonic()
            return {}, 0.0
        if self._silent is not None:
            logger.warning(f"SLURM answers again, after {time.monotonic() - self._silent:.0f} s.")
            self._silent = None
        # sacct says "CANCELLED by 1234"
        found = {job: words.split()[0].rstrip("+") if words.split() else "" for job, words in states.items()}
        for job in self._active:
            found[job] = await self._settled(job, _state_of(job, found))
            if found[job] in CAUSES:
                self.why[job] = {"cause": CAUSES[found[job]], "at_most": await _at_most(job, CAUSES[found[job]])}
            if found[job] in REMEDIES and job not in self._hopeless:
                logger.warning(f"SLURM job {job}: {REMEDIES[found[job]]}.")
            if found[job] in LIMBO:
                found[job] = "FAILED"
        waiting = [job for job in self._active if found[job] == "PENDING"]
        if waiting and time.monotonic() - self._asked_why > SECONDS_TO_COME_BACK:
            self._asked_why = time.monotonic()
            await self._say_why(waiting, logger)
        return found, seconds or 0.0

    async def _say_why(self, jobs: list[str], logger: Logger) -> None:
        """Name, once each, the reasons for which jobs would wait for ever: SLURM takes such jobs, and says nothing.

        Those that nobody can release are cancelled when a second look finds them so, and not submitted again.
        """
        before, self._hopeless = self._hopeless, set()
        for line in (await _said("squeue", "--noheader", "--format=%r|%i|%k", f"--jobs={','.join(jobs)}")).splitlines():
            reason, job, rule = f"{line}||".split("|")[:3]
            held = HELD.search(reason)
            if not held and NEVER.search(reason):
                self._hopeless.add(job)
                if job in before:
                    self.why[job] = {"cause": "refused"}
                    await _said("scancel", job)
            if reason in self._told:
                continue
            if held:
                logger.warning(f"SLURM job {job}, {rule} is held: {reason}. To let it go on: scontrol release {job}")
            elif job in self._hopeless:
                logger.warning(
                    f"SLURM job {job}, {rule} can never start: {reason}. It will be cancelled. Ask for what the "
                    "partition and your account allow (runtime, mem_mb, slurm_partition, at the top of the profile)."
                )
            else:
                continue
            self._told.add(reason)

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
        # The plugin takes UNKNOWN for an end, and Snakemake then looks for the job's output.
        return state or await _asked_by_number(job) or "UNKNOWN"


def _state_of(job: str, states: dict[str, str]) -> str:
    """The state of a job, or of the array that holds it; "" if there is none. Waiting tasks are listed as 12_[3-9]."""
    parent = job.split("_", maxsplit=1)[0]
    waiting = any(other.startswith(f"{parent}_[") for other in states)
    return states.get(job) or states.get(parent) or ("PENDING" if waiting and "_" in job else "")


async def _asked_by_number(job: str) -> str:
    """What squeue, or else accounting, knows of a job that the look at all jobs did not find."""
    squeue = ("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}")
    sacct = ("sacct", "--allocations", "--noheader", "--parsable2", "--format=State", f"--jobs={job}")
    for command in (squeue, sacct):
        words = (await _said(*command)).split()
        if words:
            return words[0].rstrip("+")
    return ""


async def _at_most(job: str, cause: str) -> int | None:
    """What a job's partition gives at most, in minutes for "time" and MB for "memory"; None where it is not known."""
    partition = (await _said("squeue", "--noheader", "--states=all", "--format=%P", f"--jobs={job}")).strip()
    if not partition:
        return None
    field = "%l" if cause == "time" else "%m"
    words = (await _said("sinfo", "--noheader", f"--format={field}", f"--partition={partition}")).split()
    found = [minutes(word) if cause == "time" else int(word) if word.isdigit() else None for word in words]
    known = [limit for limit in found if limit is not None]
    return max(known) if known and len(known) == len(found) else None


async def _said(*command: str) -> str:
    """What a command of SLURM printed; nothing when it is not here or does not answer within a minute."""
    with suppress(OSError, TimeoutError):
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        return (await asyncio.wait_for(process.communicate(), timeout=60))[0].decode()
    return ""
