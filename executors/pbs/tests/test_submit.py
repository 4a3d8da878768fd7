"""Submission: patient with full queues and absent servers, and never a second copy of a job that
lives.
"""

import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from snakemake_interface_common.exceptions import WorkflowError

from drivers import Make
from shell import until
from snakemake_executor_plugin_pbs.commands import Pbs
from snakemake_executor_plugin_pbs.ledger import Entry
from standin import StandIn


def test_a_job_is_submitted_once_with_its_log_folder_and_ledger(
    pbs: StandIn, drivers: Make
) -> None:
    driver = drivers()
    request = driver.add(driver.request())
    assert driver.wait() == ("1.pbs01", False)
    assert request.log.parent.is_dir()
    entry = driver.ledger.read("train-0")
    assert entry
    assert (entry.id, entry.log, entry.deleted) == ("1.pbs01", str(request.log), False)
    assert pbs.count("qsub") == 1


def test_the_same_request_is_not_sent_again_after_a_refusal_for_good(
    pbs: StandIn, drivers: Make
) -> None:
    driver = drivers()
    for name in ("train-0", "train-1", "train-2"):
        driver.add(driver.request(name, queue="nosuch" if name != "train-2" else "workq"))
    driver.wait("train-2")
    assert sorted(driver.refused) == ["train-0", "train-1"]
    (told,) = set(driver.refused.values())
    assert "exit code 170): qsub: Unknown queue -> set --pbs-queue" in told
    assert pbs.count("qsub") == 2
    assert [entry.name for entry in driver.ledger.entries()] == ["train-2"]


def test_a_queue_that_is_to_hold_no_more_is_told_once_for_all_jobs(
    pbs: StandIn, drivers: Make
) -> None:
    driver = drivers()
    for index in range(3):
        driver.held = 1
        driver.add(replace(driver.request(f"train-{index}"), max_jobs=1))
        waits = driver.submitter._pauses
        until(lambda waits=waits: "workq" in waits)
        driver.held = 0
        driver.submitter.poke("workq")
        driver.wait(f"train-{index}")
    assert len(pbs.jobs) == 3
    (told,) = driver.messages
    assert "queue workq is to hold 1 of our jobs at most" in told


@pytest.mark.parametrize(
    ("version", "taken"),
    [
        ("pbs_version = 23.06.06", True),
        ("", True),  # of a wrapper
        ("Version: 6.1.2\nCommit: 661e", False),
        ("SGE 8.1.9\nusage: qstat [options]", False),
    ],
)
def test_commands_of_another_scheduler_are_called_by_their_name(
    version: str, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("qsub", "qselect", "qstat", "qdel"):
        (tmp_path / name).write_text(f"#!/bin/sh\nprintf '%b' '{version}' >&2\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with nullcontext() if taken else pytest.raises(WorkflowError, match="such as Torque or Grid"):
        Pbs(timeout=60).check()


def test_missing_commands_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(WorkflowError, match="not found: qsub, qselect, qstat, qdel"):
        Pbs(timeout=60).check()


def test_pauses_grow(pbs: StandIn, drivers: Make) -> None:
    pbs.config.queues["workq"].enabled = False
    driver = drivers()
    driver.add(driver.request())
    until(lambda: pbs.count("qsub") == 5)
    times = [at for at, name, _ in pbs.calls if name == "qsub"]
    assert all(later - at >= 0.05 * 2**power for power, (at, later) in enumerate(pairwise(times)))
    pbs.config.queues["workq"].enabled = True
    driver.wait()


def test_an_absent_server_is_waited_for(pbs: StandIn, drivers: Make) -> None:
    pbs.down()
    driver = drivers()
    driver.add(driver.request())
    until(lambda: bool(driver.messages))
    assert "PBS does not answer" in driver.messages[0]
    pbs.up()
    assert driver.wait() == ("1.pbs01", False)
    assert not driver.refused


def test_a_qsub_cut_while_the_server_hung_is_not_repeated(pbs: StandIn, drivers: Make) -> None:
    driver = drivers()
    driver.add(driver.request("train-0"))
    driver.wait("train-0")
    pbs.hang()
    driver.add(driver.request("train-1"))
    until(lambda: bool(driver.messages))
    assert "qsub: no answer" in driver.messages[0]
    pbs.resume()
    assert driver.wait("train-1") == ("2.pbs01", True)
    time.sleep(0.3)
    assert [job.name for job in pbs.jobs.values()] == ["train-0", "train-1"]


def test_a_qsub_that_never_reached_the_server_is_repeated_after_two_looks(
    pbs: StandIn, drivers: Make
) -> None:
    driver = drivers()
    # left by a driver killed in qsub
    driver.ledger.write(Entry("train-0", "w", "workq", "/log", time.time()))
    driver.add(driver.request())
    assert driver.wait() == ("1.pbs01", False)
    looks = [words for _, name, words in pbs.calls if name == "qselect" and "-N" in words]
    assert len(looks) == 3


def test_a_wrapper_that_prints_a_banner_does_not_make_it_the_id(
    pbs: StandIn, drivers: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = tmp_path / "bin" / "qsub"
    wrapper.parent.mkdir()
    wrapper.write_text(
        f'#!/bin/sh\necho "Welcome. 3 days to maintenance."\nexec {pbs.bin}/qsub "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", str(wrapper.parent), prepend=":")
    driver = drivers()
    driver.add(driver.request())
    assert driver.wait() == ("1.pbs01", False)


@pytest.mark.usefixtures("pbs")
def test_a_log_folder_that_cannot_be_made_is_told(drivers: Make) -> None:
    driver = drivers()
    request = driver.request()
    request.log.parent.write_text("a file where the folder should be")
    driver.add(request)
    until(lambda: bool(driver.refused))
    assert "cannot be written" in driver.refused["train-0"]
    assert "logs" in driver.refused["train-0"]


def test_withdrawn_requests_are_refused_and_never_sent(pbs: StandIn, drivers: Make) -> None:
    pbs.config.queues["workq"].enabled = False
    driver = drivers()
    for name in ("train-0", "train-1"):
        driver.add(driver.request(name))
    until(lambda: bool(driver.messages))
    driver.submitter.withdraw("it was told to stop")
    until(lambda: len(driver.refused) == 2)
    sent = pbs.count("qsub")
    pbs.config.queues["workq"].enabled = True
    driver.add(driver.request("train-2"))
    until(lambda: "train-2" in driver.refused)
    assert set(driver.refused.values()) == {"it was told to stop"}
    assert (pbs.count("qsub"), pbs.jobs) == (sent, {})


def test_a_withdrawn_job_that_a_hung_server_queued_is_found(pbs: StandIn, drivers: Make) -> None:
    driver = drivers()
    driver.add(driver.request("train-0"))
    driver.wait("train-0")
    pbs.hang()
    driver.add(driver.request("train-1"))
    driver.add(driver.request("train-2"))
    until(lambda: bool(driver.messages))
    driver.submitter.withdraw("it was told to stop")
    until(lambda: "train-2" in driver.refused)  # without a server
    assert "train-1" not in driver.refused
    pbs.resume()
    assert driver.wait("train-1") == ("2.pbs01", True)
    assert len(pbs.jobs) == 2


def test_stop_ends_the_thread_though_requests_wait(pbs: StandIn, drivers: Make) -> None:
    pbs.config.queues["workq"].enabled = False
    driver = drivers()
    driver.add(driver.request())
    until(lambda: bool(driver.messages))
    driver.submitter.stop()
    assert not any(thread.name == "pbs-submit" for thread in threading.enumerate())
