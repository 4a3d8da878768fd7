"""What the user may set: `--pbs-site polaris`, or `pbs-site: polaris` in a profile."""

# ruff: noqa: UP045 -- Snakemake reads the option types and understands Optional[str], not "str | None"

from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from snakemake_interface_executor_plugins.settings import ExecutorSettingsBase


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Settings of the PBS executor; the help texts say what each one does."""

    site: Optional[str] = field(
        default=None,
        metadata={
            "help": "Site data: a shipped name (generic, polaris, sophia, "
            "gadi) or the path of a YAML file. "
            "Default: recognized by the name of the PBS server, else generic."
        },
    )
    account: Optional[str] = field(
        default=None,
        metadata={
            "help": "Account or project to charge; the resource "
            "pbs_account of a rule goes before it."
        },
    )
    queue: Optional[str] = field(
        default=None,
        metadata={
            "help": "Queue, instead of the site's default; the resource "
            "pbs_queue of a rule goes before it."
        },
    )
    logdir: Optional[Path] = field(
        default=None,
        metadata={"help": "Folder of the jobs' own output, by rule. Default: .snakemake/pbs_logs."},
    )
    status_interval: Optional[int] = field(
        default=30,
        metadata={
            "help": "Seconds between two looks at all jobs; a look is at most two PBS commands."
        },
    )
    unknown_seconds: Optional[int] = field(
        default=60,
        metadata={
            "help": "How long PBS has to deny all knowledge of a job "
            "before the job counts as failed."
        },
    )
    command_timeout: Optional[int] = field(
        default=60,
        metadata={"help": "Seconds after which a PBS command that does not answer is given up."},
    )
