"""What the scheduler says in the environment of its jobs."""

import os


def job_id() -> str:
    """The number of the SLURM or PBS job that this process belongs to; empty outside of jobs."""
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("PBS_JOBID") or ""
