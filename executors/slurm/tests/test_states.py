"""What the plain plugin is told of its jobs, when SLURM says this or that."""

import asyncio
import logging
import re
import time
from pathlib import Path

import pytest

from snakemake_executor_plugin_slurm_steady import controller
from snakemake_executor_plugin_slurm_steady import states as slurm_states
from snakemake_executor_plugin_slurm_steady.controller import Controller
from snakemake_executor_plugin_slurm_steady.states import Answer, States
from standin import script

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
def test_a_job_that_does_not_come_back_has_failed(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    came_back = told([{"1": state}, {"1": "RUNNING"}], "1")
    assert came_back == [{"1": "PENDING"}, {"1": "RUNNING"}]
    monkeypatch.setattr(slurm_states, "SECONDS_TO_COME_BACK", 0)
    assert told([{"1": state}], "1") == [{"1": "FAILED"}]


def test_a_forgotten_job_is_asked_for_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that no list holds is new or gone; squeue and accounting are asked, else its output."""
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
    """At the second look that finds it so. One that is held may be released."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(slurm_states, "SECONDS_TO_COME_BACK", 0)
    reasons = (
        "Priority",
        "PartitionTimeLimit",
        "QOSMaxWallDurationPerJobLimit",
        "JobHeldUser",
        "PartitionTimeLimit",
    )
    script(
        tmp_path / "squeue",
        *(f"echo '{reason}|{job}|rule_embed'" for job, reason in enumerate(reasons)),
    )
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
    said = states.why["1"].pop("said")
    assert said in ("SLURM job 1: its time was up", "SLURM job 1: out of main memory")
    assert states.why == {"1": why}


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
    monkeypatch.setattr(time, "monotonic", lambda: now)
    states = States(lambda *_: None)  # type: ignore[arg-type]
    states.await_(["1", "2"])
    assert states.interval(2) == slurm_states.SHORTEST_INTERVAL
    now = 40.0
    assert states.interval(2) == 10.0
    assert states.interval(1) == slurm_states.SHORTEST_INTERVAL
    now = 4000.0
    assert states.interval(2) == slurm_states.LONGEST_INTERVAL
    states.await_(["1", "2", "3"])
    assert states.interval(3) == slurm_states.SHORTEST_INTERVAL


def test_submissions_wait_for_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(controller, "SHORTEST_INTERVAL", 0.05)
    scontrol = tmp_path / "scontrol"
    enough = f"[ $(wc -l < {tmp_path}/asked) -gt 2 ] && echo 'Slurmctld(primary) at head is UP'"
    scontrol.write_text(f"#!/bin/sh\necho x >> {tmp_path}/asked\n{enough}\n")
    scontrol.chmod(0o755)
    assert Controller(log).wait()
    assert (tmp_path / "asked").read_text() == "x\n" * 3
