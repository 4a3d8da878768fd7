"""What several tests need: an executor without a Snakemake around it."""

import logging
import signal
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake_executor_plugin_slurm import Executor as PlainExecutor
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

from snakemake_executor_plugin_slurm_steady import Executor

log = logging.getLogger("snakemake")

# what starts the tests in the background may ignore it, and so would all that the tests start
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Executor:
    """One that was made as Snakemake makes it, but for the interface's part: no thread looks."""

    def made(self: Any, workflow: Any, logger: logging.Logger) -> None:
        self.workflow, self.logger = workflow, logger
        self.executor_settings = workflow.executor_settings

    monkeypatch.setattr(RemoteExecutor, "__init__", made)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    settings = SimpleNamespace(pass_command_as_script=False, init_seconds_before_status_checks=40)
    workflow: Any = SimpleNamespace(executor_settings=settings)
    assert issubclass(Executor, PlainExecutor)
    return Executor(workflow, log)
