"""Snakemake's command, except that the SLURM plugin asks for the jobs' states every second.

Its own interval grows by ten seconds each time that no job has ended.
"""

from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor


def _set_interval(executor: Executor, seconds: int) -> None:
    """Keep the interval as it is."""
    del executor, seconds


Executor.next_seconds_between_status_checks = property(lambda _: 1, _set_interval)

if __name__ == "__main__":
    main()
