"""What Snakemake's scheduler tells no executor, read from it: that it takes no more jobs; and how not to try again."""

from typing import Any


def stop_reason(scheduler: Any) -> str:
    """Why no more jobs are taken, "" while they are. The scheduler then waits for every job that it has handed out,
    also for those that were never submitted."""
    if getattr(scheduler, "_user_kill", None):
        return "Snakemake was told to stop"
    if getattr(scheduler, "_errors", False) and not getattr(scheduler, "keepgoing", True):
        return "Snakemake stops, since another job has failed"
    return ""


def fail_for_good(scheduler: Any, job: Any) -> None:
    """Let a job fail without the block of text that Snakemake prints for a failed command, and without a retry.

    Snakemake tries again while restart_times > attempt - 1. The property `attempt` would also evaluate the job's
    resources anew, and the scheduler would then take back other amounts than it gave.
    """
    job._attempt = max(job.attempt, job.restart_times + 1)
    scheduler.error_callback(job)
