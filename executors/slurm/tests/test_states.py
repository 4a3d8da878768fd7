"""What the SLURM plugin is told of its jobs. The plugin itself at work: tests/slurm."""

import asyncio
import logging
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from plm_embed import slurm_plugin, slurm_states
from plm_embed.slurm_plugin import Controller, mend
from plm_embed.slurm_states import Answer, States

log = logging.getLogger(__name__)


def told(answers: list[dict[str, str] | None], *jobs: str) -> list[dict[str, str]]:
    """What the plugin is told of `jobs`, when squeue answers so, one look after the other."""

    async def ask(command: str, logger: logging.Logger) -> Answer:
        del command, logger
        answer = answers.pop(0)
        return (answer, 0.1) if answer is not None else (None, None)

    async def look(states: States) -> list[dict[str, str]]:
        found = []
        while answers:
            states.await_(jobs)
            found.append((await states.query("squeue --name x", log))[0])
        return found

    return asyncio.run(look(States(ask)))


def test_states_are_passed_on() -> None:
    states = {"1": "RUNNING", "2": "CANCELLED by 1234", "3": "COMPLETED", "4": "OUT_OF_MEMORY"}
    assert told([dict(states)], *states) == [states | {"2": "CANCELLED"}]


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL", "REVOKED"])
def test_a_job_that_does_not_come_back_has_failed(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    came_back = told([{"1": state}, {"1": "RUNNING"}], "1")
    assert came_back == [{"1": "PENDING"}, {"1": "RUNNING"}]
    monkeypatch.setattr(slurm_states, "SECONDS_TO_COME_BACK", 0)
    assert told([{"1": state}], "1") == [{"1": "FAILED"}]


def test_a_forgotten_job_is_asked_for_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that no list holds is new or gone; then squeue and accounting are asked, and else its output decides."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert told([{}], "1") == [{"1": "PENDING"}]
    monkeypatch.setattr(slurm_states, "SECONDS_TO_COME_BACK", 0)
    assert told([{}], "1") == [{"1": "UNKNOWN"}]
    script(tmp_path / "squeue", "exit 1")
    script(tmp_path / "sacct", "echo 'CANCELLED by 0'")
    assert told([{}], "1") == [{"1": "CANCELLED"}]


def test_a_job_that_can_never_start_is_named_once_and_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At the second look that finds it so. One that is held may be released; of one that waits nothing is said."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(slurm_states, "SECONDS_TO_COME_BACK", 0)
    reasons = ("Priority", "PartitionTimeLimit", "QOSMaxWallDurationPerJobLimit", "JobHeldUser", "PartitionTimeLimit")
    script(tmp_path / "squeue", *(f"echo '{reason}|{job}|rule_embed'" for job, reason in enumerate(reasons)))
    script(tmp_path / "scancel", f"echo $1 >> {tmp_path}/cancelled")
    jobs = dict.fromkeys("01234", "PENDING")
    assert told([dict(jobs)], *jobs) == [jobs]
    assert not (tmp_path / "cancelled").exists()
    caplog.clear()
    assert told([dict(jobs), dict(jobs)], *jobs) == [jobs, jobs]
    assert (tmp_path / "cancelled").read_text().split() == ["1", "2", "4"]
    assert [record.message.partition(". ")[0] for record in caplog.records] == [
        "SLURM job 1, rule_embed can never start: PartitionTimeLimit",
        "SLURM job 2, rule_embed can never start: QOSMaxWallDurationPerJobLimit",
        "SLURM job 3, rule_embed is held: JobHeldUser",
    ]


def script(path: Path, *lines: str) -> None:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("state", "limits", "why"),
    [
        ("TIMEOUT", "30:00", {"cause": "time", "at_most": 30}),
        ("TIMEOUT", "1-00:00:00", {"cause": "time", "at_most": 1440}),
        ("TIMEOUT", "infinite", {"cause": "time", "at_most": None}),
        ("OUT_OF_MEMORY", "64000", {"cause": "memory", "at_most": 64000}),
        ("OUT_OF_MEMORY", "64000+", {"cause": "memory", "at_most": None}),
    ],
)
def test_what_was_short_is_known_with_what_the_partition_gives(
    state: str, limits: str, why: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    script(tmp_path / "squeue", "echo gpu")
    script(tmp_path / "sinfo", f"echo '{limits}'")

    async def ask(command: str, logger: logging.Logger) -> Answer:
        del command, logger
        return {"1": state, "2": "FAILED"}, 0.1

    states = States(ask)
    states.await_(["1", "2"])
    asyncio.run(states.query("squeue", log))
    assert states.why == {"1": why}


def test_a_refusal_for_good_is_told_and_explained_once() -> None:
    class Executor(Formatting): ...

    mend(SimpleNamespace(query_job_status=len, validate_account=len, Executor=Executor), None)
    executor = Executor()
    call = "\n    sbatch call:\n        sbatch -p nosuch --qos=invalid"
    refused = f"SLURM sbatch failed. The error message was 'Invalid partition name specified'.{call}"
    passing = f"SLURM sbatch failed. The error message was 'Unable to contact slurm controller'.{call}"
    infos = [SimpleNamespace(external_jobid=None, aux=None) for _ in range(3)]
    for info, words in zip(infos, (refused, refused, passing), strict=True):
        executor.report_job_error(info, msg=words)  # type: ignore[call-arg]
    assert [info.aux for info in infos] == [{"cause": "refused"}, {"cause": "refused"}, {}]
    assert [words for _, words in executor.reported] == [refused, "SLURM refuses it for the same reason. ", passing]


def test_waiting_tasks_of_an_array_are_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_states, "SECONDS_TO_COME_BACK", 0)
    (found,) = told([{"7_[3-9]": "PENDING", "7_2": "RUNNING", "8": "RUNNING"}], "7_2", "7_3", "8_1")
    assert (found["7_2"], found["7_3"], found["8_1"]) == ("RUNNING", "PENDING", "RUNNING")


def test_no_answer_ends_nothing_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert told([{"1": "RUNNING"}, None, None, {"1": "RUNNING"}], "1")[1:3] == [{}, {}]
    assert [re.split(r" \(|, after", record.message)[0] for record in caplog.records] == [
        "SLURM does not answer",
        "SLURM answers again",
    ]


def test_looks_are_frequent_only_while_something_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(slurm_states.time, "monotonic", lambda: now)
    states = States(lambda *_: None)  # type: ignore[arg-type,return-value]
    states.await_(["1", "2"])
    assert states.interval(2) == slurm_states.SHORTEST_INTERVAL
    now = 40.0
    assert states.interval(2) == 10.0
    assert states.interval(1) == slurm_states.SHORTEST_INTERVAL
    now = 4000.0
    assert states.interval(2) == slurm_states.LONGEST_INTERVAL
    states.await_(["1", "2", "3"])
    assert states.interval(3) == slurm_states.SHORTEST_INTERVAL


def test_submissions_wait_for_the_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(slurm_plugin, "SHORTEST_INTERVAL", 0.05)
    scontrol = tmp_path / "scontrol"
    enough = f"[ $(wc -l < {tmp_path}/asked) -gt 2 ] && echo 'Slurmctld(primary) at head is UP'"
    scontrol.write_text(f"#!/bin/sh\necho x >> {tmp_path}/asked\n{enough}\n")
    scontrol.chmod(0o755)
    Controller().wait(log)
    assert (tmp_path / "asked").read_text() == "x\n" * 3


def test_an_unknown_plugin_is_left_alone() -> None:
    mend(None, None)
    other = SimpleNamespace(query_job_status=len)
    mend(other, None)
    assert other.query_job_status is len


def test_the_plugin_that_is_pinned_is_mended_once() -> None:
    plugin = pytest.importorskip("snakemake_executor_plugin_slurm")
    jobstep = pytest.importorskip("snakemake_executor_plugin_slurm_jobstep")
    mend(plugin, jobstep)
    mended = plugin.Executor.check_active_jobs
    mend(plugin, jobstep)
    assert plugin.Executor.check_active_jobs is mended
    assert plugin.query_job_status.__self__.__class__ is States


class Formatting:
    """An executor that submits what it formats, as the plugin's does."""

    logger = log
    name = ""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.reported: list[tuple[object, str]] = []
        self.workflow = SimpleNamespace(executor_settings=SimpleNamespace(pass_command_as_script=False))

    def check_active_jobs(self, jobs: list[object]) -> None: ...

    def report_job_error(self, info: object, msg: str) -> None:
        self.reported.append((info, msg))

    def additional_general_args(self) -> str:
        return "--executor slurm-jobstep --jobs 1"

    def get_python_executable(self) -> str:
        return "python"

    def format_job_exec(self, job: object) -> str:
        del job
        words = ["module load x &&", self.get_python_executable(), "-m snakemake", self.additional_general_args()]
        return " ".join(filter(None, [*words, shlex.quote(self.name) if self.name else ""]))

    def run_job(self, job: object) -> None:
        self.submitted.append(self.format_job_exec(job))

    def run_array_jobs(self, jobs: list[object]) -> None:
        self.submitted += map(self.format_job_exec, jobs)


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
    resources: dict[str, int], options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobstep = pytest.importorskip("snakemake_executor_plugin_slurm_jobstep")
    monkeypatch.setenv("PATH", str(tmp_path))  # no scontrol to ask

    class Executor(Formatting): ...

    mend(SimpleNamespace(query_job_status=len, validate_account=len, Executor=Executor), jobstep)
    job = SimpleNamespace(threads=4, resources=SimpleNamespace(cpus_per_task=2, cpus_per_gpu=8, get=resources.get))
    executor = Executor()
    executor.run_job(job)
    (command,) = executor.submitted
    assert re.sub(r"-u SLURM_\w+ ", "", command) == (
        f"module load x && env -u SRUN_CPUS_PER_TASK -u SRUN_EXPORT_ENV srun -n1 --cpu-bind=q {options} "
        "python -m snakemake"
    )
    assert "-u SLURM_TRES_PER_TASK " in command
    # what the plugin puts between double quotes means the same to the shell there
    executor.name = "it's a $HOME & (co) `x` \\"  # a file of a job
    executor.run_job(job)
    assert executor.submitted.pop().endswith(r"""'it'"'"'s a \$HOME & (co) \`x\` \\'""")
    executor.name = ""
    executor.run_array_jobs([job])
    executor.workflow.executor_settings.pass_command_as_script = True
    executor.run_job(job)
    executor.workflow.executor_settings.pass_command_as_script = False
    executor.run_job(SimpleNamespace(resources={"mpi": 1}))
    own = "module load x && python -m snakemake --executor slurm-jobstep --jobs 1"
    assert executor.submitted[1:] == [own] * 3


def test_only_an_account_that_accounting_knows_to_be_wrong_is_refused() -> None:
    said = ""

    def validate(account: str, logger: logging.Logger) -> str:
        del logger
        raise RuntimeError(f"{account} {said}")

    class Executor:
        check_active_jobs = run_job = additional_general_args = get_python_executable = staticmethod(len)
        format_job_exec = report_job_error = staticmethod(len)

    plugin = SimpleNamespace(validate_account=validate, query_job_status=len, Executor=Executor)
    mend(plugin, None)
    said = "appears to be invalid"
    with pytest.raises(RuntimeError, match="invalid"):
        plugin.validate_account("lab", log)
    said = "sacctmgr: Connection refused"
    assert plugin.validate_account("lab", log) == "lab"
