"""What the executor makes of the plain one's methods. With a Snakemake around it: test_workflow."""

import asyncio
import logging
import re
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import snakemake_executor_plugin_slurm
from snakemake_interface_executor_plugins import utils
from snakemake_interface_executor_plugins.executors.base import AbstractExecutor
from snakemake_interface_executor_plugins.executors.real import RealExecutor
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

from snakemake_executor_plugin_slurm_steady import UNAVAILABLE, Executor, refusals, step
from standin import script

plain: Any = snakemake_executor_plugin_slurm


def job(**resources: Any) -> Any:
    found = {"cpus_per_task": 2, "cpus_per_gpu": 8} | resources
    namespace = SimpleNamespace(**found, get=resources.get)
    return SimpleNamespace(threads=4, resources=namespace, attempt=1, restart_times=3)


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What the plain plugin would put between double quotes behind sbatch's --wrap."""
    commands: list[str] = []

    def run_job(self: Executor, job: Any) -> None:
        commands.append(self.format_job_exec(job))

    def run_array_jobs(self: Executor, jobs: list[Any]) -> None:
        commands.extend(map(self.format_job_exec, jobs))

    def format_job_exec(self: Executor, job: Any) -> str:
        words = ["module load x &&", self.get_python_executable(), "-m snakemake"]
        target = utils.format_cli_arg("--target", getattr(job, "target", ""))
        return " ".join(filter(None, [*words, self.additional_general_args(), target]))

    monkeypatch.setattr(plain.Executor, "run_job", run_job)
    monkeypatch.setattr(plain.Executor, "run_array_jobs", run_array_jobs)
    monkeypatch.setattr(RealExecutor, "format_job_exec", format_job_exec)
    monkeypatch.setattr(RemoteExecutor, "get_python_executable", lambda _: "/my env/python")
    monkeypatch.setenv("PATH", str(tmp_path))  # no scontrol to ask
    return commands


@pytest.mark.parametrize(
    ("resources", "options"),
    [
        ({}, "--cpus-per-task=4 --nodes=1"),
        ({"gpu": 1, "nodes": 1}, "--cpus-per-task=4 --gpus=1 --nodes=1"),
        ({"gpu": 0, "cpus_per_task": 2}, "--cpus-per-task=2 --nodes=1"),
        ({"gpu": 4, "cpus_per_gpu": 8}, "--cpus-per-gpu=8 --gpus=4 --nodes=1"),
    ],
)
def test_a_job_starts_snakemake_once_below_srun(
    resources: dict[str, int], options: str, executor: Executor, submitted: list[str]
) -> None:
    executor.run_job(job(**resources))
    (command,) = submitted
    assert re.sub(r"-u SLURM_\w+ ", "", command) == (
        f"module load x && env -u SRUN_CPUS_PER_TASK -u SRUN_EXPORT_ENV {step.MARK}=1 "
        f"srun -n1 --cpu-bind=q {options} '/my env/python' -m snakemake"
    )
    assert "-u SLURM_TRES_PER_TASK " in command


def test_arrays_scripts_and_mpi_keep_the_plain_job_step(
    executor: Executor, submitted: list[str]
) -> None:
    executor.run_array_jobs([job()])
    executor.run_job(job(mpi=1))
    executor.executor_settings.pass_command_as_script = True
    executor.run_job(job())
    own = "module load x && '/my env/python' -m snakemake --executor slurm-jobstep --jobs 1"
    assert submitted == [own, own, f"{own} --slurm-jobstep-pass-command-as-script"]


def test_any_name_of_a_file_reaches_the_job(executor: Executor, submitted: list[str]) -> None:
    """The double quotes are the plain plugin's, which escapes those within."""
    name = 'it\'s a $HOME & (co) "x" `x` \\'
    before = utils.format_cli_value
    named = job()
    named.target = name
    executor.run_job(named)
    (command,) = submitted
    escaped = command.replace('"', '\\"')
    wrapped = subprocess.run(
        ["/bin/sh", "-c", f'printf %s "{escaped}"'], capture_output=True, text=True, check=True
    )
    assert wrapped.stdout.endswith(f"--target {shlex.quote(name)}")
    assert utils.format_cli_value is before


def test_a_refusal_for_good_is_told_and_explained_once(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(AbstractExecutor, "report_job_error", lambda *words: told.append(words[2]))
    call = "\n    sbatch call:\n        sbatch -p nosuch --qos=invalid"
    failed = "SLURM sbatch failed. The error message was"
    refused = f"{failed} 'Invalid partition name specified'.{call}"
    passing = f"{failed} 'Unable to contact slurm controller'.{call}"
    infos: list[Any] = [SimpleNamespace(external_jobid=None, aux=None, job=job()) for _ in "123"]
    for info, words in zip(infos, (refused, refused, passing), strict=True):
        executor.report_job_error(info, msg=words)
    said = {"cause": "refused", "said": "sbatch: Invalid partition name specified"}
    busy = {"said": "sbatch: Unable to contact slurm controller"}
    assert [info.aux for info in infos] == [said, said, busy]
    assert told == [refused, refusals.AGAIN, passing]
    # Snakemake tries again while restart_times > attempt - 1
    assert [getattr(info.job, "_attempt", info.job.attempt) for info in infos] == [4, 4, 1]


def test_a_reason_that_was_told_takes_one_line(
    executor: Executor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole: list[str] = []
    monkeypatch.setattr(RemoteExecutor, "print_job_error", lambda *words: whole.append(words[2]))
    info: Any = SimpleNamespace(job="embed")
    executor.print_job_error(info, "all of it")
    with caplog.at_level(logging.ERROR):
        executor.print_job_error(info, refusals.AGAIN)
    assert whole == ["all of it"]
    assert caplog.messages == [f"embed: {refusals.AGAIN}"]


def test_why_a_job_failed_is_told_in_aux(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(
        AbstractExecutor, "report_job_error", lambda *words, **_: told.append(words[2])
    )
    executor._states.why["7"] = {"cause": "time", "at_most": 30}
    info: Any = SimpleNamespace(external_jobid="7", aux={"slurm_logfile": "x"}, job=job())
    executor.report_job_error(info, msg=f"failed.{UNAVAILABLE}", aux_logs=["x"])
    assert told == ["failed."]
    assert info.aux == {"slurm_logfile": "x", "cause": "time", "at_most": 30}
    assert not executor._states.why


def test_only_an_account_that_accounting_knows_to_be_wrong_is_refused(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = ""

    def validate(account: str, logger: object) -> str:
        del logger
        raise RuntimeError(f"{account} {said}")

    monkeypatch.setattr(plain, "validate_account", validate)
    monkeypatch.setattr(plain, "get_account", lambda _: "guessed")
    executor._fallback_account_arg = None
    said = "appears to be invalid"
    with pytest.raises(RuntimeError, match="invalid"):
        list(executor.get_account_arg(job(slurm_account="lab")))
    said = "sacctmgr: Connection refused"
    named = job(slurm_account="lab, x y")
    named.resources.slurm_account = "lab, x y"
    assert list(executor.get_account_arg(named)) == [" -A lab", " -A x", " -A y"]
    assert list(executor.get_account_arg(job())) == [""]


def test_a_look_asks_through_the_states_and_sets_the_interval(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function of the plain plugin is its own again afterwards."""
    before, asked = plain.query_job_status, []

    async def look(_: Executor, jobs: list[Any]) -> Any:
        asked.append(plain.query_job_status)
        for one in jobs[1:]:
            yield one

    monkeypatch.setattr(plain.Executor, "check_active_jobs", look)
    infos: list[Any] = [SimpleNamespace(external_jobid=name, aux={}) for name in "12"]

    async def left() -> list[Any]:
        return [info async for info in executor.check_active_jobs(infos)]

    assert asyncio.run(left()) == infos[1:]
    assert asked == [executor._states.query]
    assert plain.query_job_status is before
    assert executor.next_seconds_between_status_checks == 2.0


def test_after_ctrl_c_nothing_is_submitted_and_all_of_the_run_is_cancelled(
    executor: Executor,
    submitted: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Also what the status loop looks at just now, which Snakemake does not name."""
    script(tmp_path / "scancel", f'echo "$*" >> {tmp_path}/cancelled')
    monkeypatch.setattr(executor, "_submitted_job_clusters", set(), raising=False)
    monkeypatch.setattr(executor, "run_uuid", "run-1", raising=False)
    pool = SimpleNamespace(shutdown=lambda **_: executor.run_job(job()))
    monkeypatch.setattr(executor, "_job_submission_executor", pool, raising=False)
    info: Any = SimpleNamespace(external_jobid="5")
    executor.cancel_jobs([info])
    assert (tmp_path / "cancelled").read_text() == "5\n--name=run-1\n"
    executor.run_array_jobs([job()])
    assert not submitted
