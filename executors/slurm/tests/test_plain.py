"""Which plain plugin lies below, and what is said when it is not the tested one."""

import logging

import pytest
import snakemake_executor_plugin_slurm as plugin
import snakemake_executor_plugin_slurm_jobstep as jobstep
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_slurm_steady import plain

log = logging.getLogger("snakemake")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        plain.check(log)
    return [record.message for record in caplog.records]


def test_of_the_tested_version_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog) == []


def test_another_version_is_named_with_what_still_applies(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "_version", lambda: "2.9.1")
    (line,) = told(caplog)
    assert "tested with snakemake-executor-plugin-slurm 2.8.0; 2.9.1 is installed" in line
    assert "still apply: all, as far as can be seen. " in line
    assert line.endswith("pip install snakemake-executor-plugin-slurm==2.8.0")

    async def asks_otherwise(self: object, jobs: list[object]) -> None: ...

    monkeypatch.setattr(plugin.Executor, "check_active_jobs", asks_otherwise)
    monkeypatch.delattr(jobstep, "get_gpu_setting")
    (line,) = told(caplog)
    assert "all but those of states (it may wait for a job that is gone); the start below" in line
    assert "\n" not in line


def test_what_is_overridden_and_is_not_there_ends_the_run_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(plugin, "query_job_status")
    monkeypatch.delattr(plugin.Executor, "get_account_arg")
    with pytest.raises(WorkflowError) as error:
        plain.check(log)
    assert "which lacks get_account_arg, query_job_status: pip install" in str(error.value)
    assert "\n" not in str(error.value)
