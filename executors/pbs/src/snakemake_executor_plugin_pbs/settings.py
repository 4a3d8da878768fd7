"""Options of the user: `--pbs-site polaris`, or `pbs-site: polaris` in a profile."""

# ruff: noqa: RUF009, UP045 -- Snakemake reads the option types and understands Optional[str], not "str | None"

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from snakemake_interface_executor_plugins.settings import ExecutorSettingsBase


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Settings of the PBS executor; the help texts say what each one does."""

    site: Optional[str] = _option(
        None,
        "Site data: a shipped name (generic, polaris) or the path of a YAML file. Default: "
        "recognized by the name of the PBS server, else generic.",
    )
    account: Optional[str] = _option(
        None,
        "Account or project to charge; the resource pbs_account of a rule overrides it. "
        "Default: the environment variable PBS_ACCOUNT.",
    )
    queue: Optional[str] = _option(
        None,
        "Queue, instead of the site's default; the resource pbs_queue of a rule overrides it.",
    )
    logdir: Optional[Path] = _option(
        None, "Folder of the jobs' own output, by rule. Default: .snakemake/pbs_logs."
    )
    status_interval: Optional[int] = _option(
        30, "Seconds between two checks of all jobs; a check is two PBS commands."
    )
    unknown_seconds: Optional[int] = _option(
        60, "Seconds after which a job that PBS does not know counts as failed."
    )
    command_timeout: Optional[int] = _option(60, "Seconds to wait for the answer of a PBS command.")
