"""The plain plugin below this one: whether it is the one that was tested, and the one function of
it that is replaced.

Its classes are subclassed; everything that needs to know its insides is here.
"""

import contextlib
from collections.abc import Iterator
from importlib import metadata
from logging import Logger
from typing import Any

import snakemake_executor_plugin_slurm
from snakemake_interface_common.exceptions import WorkflowError

from . import step

plugin: Any = snakemake_executor_plugin_slurm

NAME = "snakemake-executor-plugin-slurm"
TESTED = "2.8.0"
METHODS = (
    "additional_general_args",
    "cancel_jobs",
    "check_active_jobs",
    "format_job_exec",
    "get_account_arg",
    "get_python_executable",
    "report_job_error",
    "run_array_jobs",
    "run_job",
    "run_jobs",
)
"""Of the plain executor, overridden here."""
CALLS = (
    ("check_active_jobs", "query_job_status", "states (it may wait for a job that is gone)"),
    ("run_job", "format_job_exec", "the start below srun (paths with $ may fail)"),
)
"""Where the plain plugin has to call what is overridden or replaced, and else what is lost."""


def check(logger: Logger) -> None:
    """Say in one line, aloud, when the plain plugin is not the tested one, and what that means.

    Raises WorkflowError, of one line too, when it lacks what is overridden here.
    """
    version, remedy = _version(), f"pip install {NAME}=={TESTED}"
    lacking = [name for name in METHODS if not hasattr(plugin.Executor, name)]
    lacking += [name for name in ("query_job_status",) if not hasattr(plugin, name)]
    if lacking:
        raise WorkflowError(
            f"slurm-steady builds on {NAME} {TESTED}; {version} is installed, which lacks "
            f"{', '.join(lacking)}: {remedy}, or use `executor: slurm` without the corrections."
        )
    lost = [words for method, called, words in CALLS if not _calls(method, called)]
    if not step.possible():
        lost.append("the start below srun (each job starts Snakemake twice)")
    if version == TESTED and not lost:
        return
    kept = f"all but those of {'; '.join(lost)}" if lost else "all, as far as can be seen"
    logger.warning(
        f"slurm-steady was tested with {NAME} {TESTED}; {version} is installed. Corrections that "
        f"still apply: {kept}. To have the tested one: {remedy}"
    )


def _version() -> str:
    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return "an unknown version"


def _calls(method: str, called: str) -> bool:
    """Whether the code of a method of the plain executor names a function."""
    code = getattr(getattr(plugin.Executor, method), "__code__", None)
    return code is not None and called in code.co_names


@contextlib.contextmanager
def asked_through(query: Any) -> Iterator[None]:
    """Within it, the plain plugin asks for the states of its jobs by `query`.

    It calls a function of its module, and offers no method to override.
    """
    original = plugin.query_job_status
    plugin.query_job_status = query
    try:
        yield
    finally:
        plugin.query_job_status = original
