"""What a look at SLURM's queue makes of its answers."""

import logging
import time
from pathlib import Path

import pytest

from snakemake_executor_plugin_slurm_steady import queue
from snakemake_executor_plugin_slurm_steady.queue import Job, Queue, cancel_jobs_of
from standin import script

log = logging.getLogger(__name__)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH: no command of SLURM is there yet."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def squeue(slurm: Path, *lines: str) -> None:
    script(slurm / "squeue", f'echo "$*" >> {slurm}/calls', *(f"echo '{line}'" for line in lines))


def test_one_question_tells_the_state_of_each_job(slurm: Path) -> None:
    squeue(
        slurm, "1|RUNNING|g1|None", "2|PENDING||Priority", "3|FAILED|g[1-2]|A|b", "9|RUNNING|g1|"
    )
    assert Queue(log).look(["1", "2", "3"]) == {
        "1": Job("RUNNING", "None", "g1"),
        "2": Job("PENDING", "Priority"),
        "3": Job("FAILED", "A|b", "g[1-2]"),
    }
    (question,) = (slurm / "calls").read_text().splitlines()
    assert question.startswith("--me ")


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL", "REVOKED"])
def test_a_job_that_does_not_come_back_has_ended(
    state: str, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Queue(log)
    squeue(slurm, f"1|{state}|g1|None")
    assert jobs.look(["1"])["1"].state == "PENDING"
    squeue(slurm, "1|RUNNING|g1|None")
    assert jobs.look(["1"])["1"].state == "RUNNING"
    squeue(slurm, f"1|{state}|g1|None")
    assert jobs.look(["1"])["1"].state == "PENDING"
    monkeypatch.setattr(queue, "SECONDS_TO_COME_BACK", 0)
    assert jobs.look(["1"])["1"].state == state


def test_accounting_is_asked_for_forgotten_jobs_if_there_is_any(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where MinJobAge is short, squeue forgets a job before it is seen to end."""
    squeue(slurm)
    assert Queue(log).look(["1"]) == {"1": Job("PENDING")}
    monkeypatch.setattr(queue, "SECONDS_TO_COME_BACK", 0)
    assert Queue(log).look(["1"]) == {"1": Job("UNKNOWN")}
    script(slurm / "sacct", "exit 1")
    assert Queue(log).look(["1"]) == {"1": Job("UNKNOWN")}
    script(slurm / "sacct", f'echo "$*" > {slurm}/sacct_calls', "echo '1|CANCELLED by 0'")
    assert Queue(log).look(["1", "2"]) == {"1": Job("CANCELLED"), "2": Job("UNKNOWN")}
    assert "--jobs=1,2" in (slurm / "sacct_calls").read_text()


def test_no_answer_ends_nothing_and_is_said_once(
    slurm: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = Queue(log)
    with caplog.at_level(logging.WARNING):
        assert jobs.look(["1"]) == jobs.look(["1"]) == {}
        squeue(slurm, "1|RUNNING|g1|None")
        assert set(jobs.look(["1"])) == {"1"}
    warnings = [message.partition(" (")[0].partition(", after")[0] for message in caplog.messages]
    assert warnings == ["SLURM does not answer", "SLURM answers again"]


def test_looks_are_frequent_only_while_something_is_new(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    squeue(slurm, "1|RUNNING|g1|None", "2|RUNNING|g1|None")
    jobs = Queue(log)
    jobs.look(["1", "2"])
    assert jobs.interval(2) == queue.SHORTEST_INTERVAL
    now = 40.0
    jobs.look(["1", "2"])
    assert jobs.interval(2) == 10.0
    assert jobs.interval(1) == queue.SHORTEST_INTERVAL
    now = 4000.0
    assert jobs.interval(2) == queue.LONGEST_INTERVAL
    squeue(slurm, "1|RUNNING|g1|None", "2|COMPLETING|g1|None")
    jobs.look(["1", "2"])
    assert jobs.interval(2) == queue.SHORTEST_INTERVAL


def test_only_the_jobs_of_a_run_are_cancelled(slurm: Path) -> None:
    assert not cancel_jobs_of(" 1a2b3c4d")
    squeue(slurm, "1|embed 0 1a2b3c4d", "2|embed 0 ffffffff", "3|a|b 1a2b3c4d")
    script(slurm / "scancel", f'echo "$*" >> {slurm}/cancelled')
    assert cancel_jobs_of(" 1a2b3c4d")
    assert cancel_jobs_of(" 00000000")
    assert (slurm / "cancelled").read_text() == "1 3\n"
