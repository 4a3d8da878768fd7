"""Answers of SLURM as the queue reads them."""

import logging
import time
from pathlib import Path

import pytest
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_slurm_steady import queue
from snakemake_executor_plugin_slurm_steady.queue import Job, Queue, SlurmError, ask, cancel
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


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_a_job_that_the_controller_has_lost_is_not_waited_for(
    state: str, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that is killed forgets its latest jobs; accounting shows them as they were."""
    squeue(slurm)
    script(slurm / "sacct", f"echo '1|{state}'")
    monkeypatch.setattr(queue, "SECONDS_TO_COME_BACK", 0)
    assert Queue(log).look(["1"]) == {"1": Job("UNKNOWN")}


def test_no_answer_ends_nothing_and_is_said_at_times(
    slurm: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 60.0, 1700.0, 1900.0, 1900.0, 1900.0])
    monkeypatch.setattr(time, "monotonic", clock.__next__)
    jobs = Queue(log)
    script(slurm / "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm' >&2; exit 1")
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            assert jobs.look(["1"]) == {}
        squeue(slurm, "1|RUNNING|g1|None")
        assert set(jobs.look(["1"])) == {"1"}
    no_answer = "SLURM does not answer (slurm_load_jobs error: Unable to contact slurm). "
    no_answer += "The run waits; its jobs go on."
    assert caplog.messages == [no_answer, no_answer, "SLURM answers again, after 1900 s."]


def test_a_squeue_that_is_not_usable_ends_the_run(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    script(slurm / "squeue", "echo 'squeue: error: Unrecognized option: me' >&2; exit 1")
    jobs = Queue(log)
    assert jobs.look(["1"]) == {}
    now = queue.SECONDS_OF_REFUSALS
    with pytest.raises(WorkflowError, match=r"squeue: Unrecognized option: me\. The run ends"):
        jobs.look(["1"])


def test_a_command_without_an_answer_is_ended_with_all_that_it_started(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site's own sbatch may be a script around the real one."""
    monkeypatch.setattr(queue, "SECONDS_FOR_AN_ANSWER", 0.5)
    monkeypatch.setenv("PATH", f"{slurm}:/usr/bin:/bin")
    script(slurm / "sbatch", f"sleep 1000 & echo $! > {slurm}/child; wait")
    with pytest.raises(SlurmError, match=r"sbatch: no answer within 0\.5 s") as error:
        ask("sbatch")
    assert error.value.away
    child = Path(f"/proc/{(slurm / 'child').read_text().strip()}/stat")
    end = time.monotonic() + 60
    while child.exists() and child.read_text().split()[2] not in "ZX" and time.monotonic() < end:
        time.sleep(0.05)
    assert not child.exists() or child.read_text().split()[2] in "ZX"


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
    with pytest.raises(SlurmError):
        cancel("1a2b3c4d")
    squeue(slurm, "1| a b 1a2b3c4d", "2| b ffffffff", "3| a|b 1a2b3c4d", "a site greets its users")
    script(slurm / "scancel", f'echo "$*" >> {slurm}/cancelled')
    cancel("00000000")
    cancel("1a2b3c4d")
    cancel("b 1a2b3c4d", but="1")
    cancel("b 1a2b3c4d")
    assert (slurm / "cancelled").read_text() == "1 3\n1\n"
