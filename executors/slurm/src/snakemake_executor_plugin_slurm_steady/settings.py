"""What the user may set: the options of the plain plugin, with `--slurm-steady-` before them.

`--slurm-requeue` is `--slurm-steady-requeue` here, or `slurm-steady-requeue: true` in a profile.
"""

from dataclasses import dataclass

from snakemake_executor_plugin_slurm import ExecutorSettings as PlainSettings


@dataclass
class ExecutorSettings(PlainSettings):
    """The plain plugin's settings; it reads them from here and checks them as it does by itself."""
