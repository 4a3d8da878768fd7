"""What SLURM is asked of single jobs beside the one look at all: state, limits, why it waits."""

import asyncio
import re
from collections.abc import Iterable
from contextlib import suppress

SECONDS_FOR_AN_ANSWER = 60
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?:(?:(?P<hours>\d+):)?(?P<minutes>\d+):)?(?P<rest>\d+)")


async def said(*command: str) -> str:
    """What a command of SLURM printed; nothing when it is not here or does not answer in time."""
    with suppress(OSError, TimeoutError):
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        out, _ = await asyncio.wait_for(process.communicate(), timeout=SECONDS_FOR_AN_ANSWER)
        return out.decode()
    return ""


async def state_by_number(job: str) -> str:
    """What squeue, or else accounting, knows of a job that the look at all did not find."""
    squeue = ("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}")
    sacct = ("sacct", "--allocations", "--noheader", "--parsable2", "--format=State")
    for command in (squeue, (*sacct, f"--jobs={job}")):
        words = (await said(*command)).split()
        if words:
            return words[0].rstrip("+")
    return ""


async def at_most(job: str, cause: str) -> int | None:
    """What a job's partition gives at most, in minutes for "time" and MB for "memory".

    None where it is not known, or where there is no limit.
    """
    asked = ("squeue", "--noheader", "--states=all", "--format=%P", f"--jobs={job}")
    partition = (await said(*asked)).strip()
    if not partition:
        return None
    field = "%l" if cause == "time" else "%m"
    limits = ("sinfo", "--noheader", f"--format={field}", f"--partition={partition}")
    words = (await said(*limits)).split()
    found = [minutes(word) if cause == "time" else _megabytes(word) for word in words]
    known = [limit for limit in found if limit is not None]
    return max(known) if known and len(known) == len(found) else None


async def why_they_wait(jobs: Iterable[str]) -> list[tuple[str, str, str]]:
    """Reason, job and comment (the rule) of jobs that wait; none without an answer."""
    asked = ("squeue", "--noheader", "--format=%r|%i|%k", f"--jobs={','.join(jobs)}")
    lines = (f"{line}||".split("|") for line in (await said(*asked)).splitlines())
    return [(reason, job, rule) for reason, job, rule, *_ in lines]


def minutes(limit: str) -> int | None:
    """SLURM's '2-00:00:00', '30:00' or '60' in whole minutes; None for 'infinite'."""
    found = _TIME.fullmatch(limit)
    if found is None:
        return None
    days, hours, full = (int(found[name] or 0) for name in ("days", "hours", "minutes"))
    rest = 0 if found["minutes"] else int(found["rest"])  # seconds, or minutes of a bare number
    return 1440 * days + 60 * hours + full + rest


def _megabytes(word: str) -> int | None:
    """None for '64000+', where the nodes of a partition differ."""
    return int(word) if word.isdigit() else None
