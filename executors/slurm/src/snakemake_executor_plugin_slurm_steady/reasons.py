"""Reasons in words: why SLURM does not take a job, why one waits for ever, and why one failed."""

import re
from pathlib import Path

from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from .job_script import END

NODE_FAULT = 75
"""Exit status (EX_TEMPFAIL of sysexits.h) of a rule's command that cannot work on its node."""
CONFIG_FAULT = 78
"""Exit status (EX_CONFIG) of a rule's command that cannot work anywhere."""

FULL = re.compile(r"\w*Submit\w*Limit|not available \(inactive or drain\)")
"""Words of sbatch when it will take the same request later: after a job has ended, for example."""
AWAY = re.compile(
    "Unable to contact|timed out|Connection|Zero Bytes|standby|temporarily|authentication",
    re.IGNORECASE,
)
"""Words of a command when nobody answered; a job may have been taken all the same."""
FOR_GOOD = re.compile(
    "invalid|unrecognized|not permitted|not allowed|can not be satisfied", re.IGNORECASE
)
"""Words of sbatch when it will refuse the same request again."""
NO_NODE = "node configuration is not available"
"""Words of sbatch when no node is left, or none has the resources of the request."""
LAUNCH_FAILED = "launch failed"
"""Words of squeue for a job that SLURM itself holds, since a node did not start it."""

_NEVER = re.compile("PartitionTimeLimit|PerJob|MaxMemPerLimit|BadConstraints|Invalid|NotAllowed")
_HELD = re.compile("JobHe|JobHold|held", re.IGNORECASE)
_USED_UP = re.compile(r"Grp\w*(?<!Run)Minutes|GrpWall")
"""Reasons of squeue for waiting that do not pass when the jobs of others end."""

_ENDS = {
    "TIMEOUT": "its time limit was over",
    "CANCELLED": "somebody cancelled it (scancel, or the site)",
    "PREEMPTED": "preempted and not put back into the queue",
    "NODE_FAIL": "its node failed, and it was not put back into the queue",
    "REVOKED": "SLURM took it away",
    "FAILED": "its log says why",
}
_OUT_OF_MEMORY = re.compile(rb"oom[-_ ]kill|exceeded memory limit", re.IGNORECASE)
_STATUS = re.compile(rb"non-zero exit status (\d+)\b")
_END = re.compile(rb"^%s(\d+)\n\Z" % END.encode(), re.MULTILINE)
_TAIL_BYTES = 65536


def of_waiting(reason: str) -> tuple[bool, str]:
    """Return, for a reason of squeue, if the job can never start, and the remedy or ""."""
    if LAUNCH_FAILED in reason:
        return False, ""
    if _HELD.search(reason):
        return False, "it is held. To let it go on: scontrol release, with its number"
    if _USED_UP.search(reason):
        return False, (
            "it waits until the site grants more, since the hours of its account or QOS are used "
            "up. Ask the site, or name another one (slurm_account, qos, in your profile)"
        )
    if _NEVER.search(reason):
        return True, (
            "it can never start, and is cancelled. Ask for what the partition and your account "
            "allow (mem_mb, runtime, slurm_partition, in your profile; scontrol show partition)"
        )
    return False, ""


def tail(log: Path) -> bytes:
    """Return the end of a log; nothing if it is not there."""
    try:
        with log.open("rb") as lines:
            lines.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return lines.read()
    except OSError:
        return b""


def exit_status(log: bytes) -> int | None:
    """Return the exit status of a job's script; None while it has not ended."""
    match = _END.search(log)
    return int(match[1]) if match else None


def command_status(log: bytes) -> int:
    """Return the exit status of the rule's command as Snakemake writes it; 0 without one."""
    statuses = _STATUS.findall(log)
    return int(statuses[-1]) if statuses else 0


def last_words(job: JobExecutorInterface) -> str:
    """Return the last lines of the rule's log, on lines of their own; "" without one."""
    lines = [line for path in getattr(job, "log", ()) for line in tail(Path(path)).splitlines()]
    return "".join(f"\n    {line.decode(errors='replace')}" for line in lines[-4:])


def of_failure(state: str, log: bytes, job: JobExecutorInterface) -> str:
    """Return why a job failed.

    SLURM calls a job FAILED when one of its steps, not its script, ran out of memory; slurmstepd
    says so in the job's log.
    """
    if state == "OUT_OF_MEMORY" or _OUT_OF_MEMORY.search(log):
        return (
            f"out of main memory (mem_mb={job.resources.get('mem_mb')}). The next attempt asks for "
            "more, if mem_mb grows with `attempt`"
        )
    status = command_status(log)
    if status == NODE_FAULT:
        return f"fault of the node (exit status {NODE_FAULT}), as on the others that were tried"
    if status == CONFIG_FAULT:
        return f"no node can do it (exit status {CONFIG_FAULT}). It is not tried again"
    return _ENDS.get(state, f"SLURM says {state}")
