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

from drivers import Make, answering
from shell import run, until
from snakemake_executor_plugin_pbs.commands import Answer, Pbs
from snakemake_executor_plugin_pbs.ledger import Entry
from standin import StandIn


def test_a_job_is_submitted_once_with_its_log_folder_and_ledger(
    pbs: StandIn, drivers: Make
) -> None:
    driver = drivers()
    request = driver.add(driver.request())
    assert driver.wait() == ("1.pbs01", False)
    assert request.log.parent.is_dir()
    entry = driver.ledger.read("embed-0")
    assert entry
    assert (entry.id, entry.log, entry.deleted) == ("1.pbs01", str(request.log), False)
    assert pbs.count("qsub") == 1


@pytest.mark.parametrize(
    ("words", "queue", "told"),
    [
        ((), "nosuch", "exit code 170): qsub: Unknown queue -> set --pbs-queue"),
        (
            ("-l", "walltime=5:00:00"),
            "debug",
            "exit code 188): qsub: Job violates queue and/or server resource limits ->",
        ),
        (
            ("-l", "nosuchres=1"),
            "debug",
            "exit code 187): qsub: Unknown resource Resource_List.nosuchres",
        ),
    ],
)
def test_what_pbs_refuses_for_good_is_told(
    words: tuple[str, ...], queue: str, told: str, pbs: StandIn, drivers: Make
) -> None:
    driver = drivers()
    driver.add(driver.request("embed-0", *words, queue=queue))
    until(lambda: bool(driver.refused))
    assert told in driver.refused["embed-0"]
    assert pbs.count("qsub") == 1
    assert driver.ledger.entries() == []


def test_the_same_request_is_not_sent_again_after_a_refusal_for_good(
    pbs: StandIn, drivers: Make
) -> None:
    driver = drivers()
    for name in ("embed-0", "embed-1", "embed-2"):
        driver.add(driver.request(name, queue="nosuch" if name != "embed-2" else "workq"))
    driver.wait("embed-2")
    assert sorted(driver.refused) == ["embed-0", "embed-1"]
    assert len(set(driver.refused.values())) == 1
    assert pbs.count("qsub") == 2


@pytest.mark.parametrize(
    ("account", "told"),
    [
        ("proj", "Resource: filesystems is required to be set. -> add `resources: {filesystems"),
        (
            "other",
            "No active allocation found for project other and resource polaris -> check "
            "--pbs-account",
        ),
    ],
)
def test_a_site_hook_is_told_with_what_to_do(
    account: str, told: str, pbs: StandIn, drivers: Make
) -> None:
    pbs.config.hook = True
    driver = drivers()
    driver.add(driver.request("embed-0", "-A", account, "-l", "walltime=60"))
    until(lambda: bool(driver.refused))
    assert told in driver.refused["embed-0"]


def test_a_full_queue_is_waited_for_while_another_is_used(
    pbs: StandIn, drivers: Make, tmp_path: Path
) -> None:
    pbs.config.queues["workq"].max_queued = 1
    driver = drivers()
    for name in ("embed-0", "embed-1"):
        driver.add(driver.request(name))
    driver.add(driver.request("embed-2", queue="stoppedq"))
    driver.wait("embed-0")
    driver.wait("embed-2")
    until(lambda: bool(driver.said))
    assert "embed-1" not in driver.submitted
    assert "would exceed queue generic's per-user limit. Trying again in 0.05 s" in driver.said[0]
    run("qdel 1", tmp_path)
    assert driver.wait("embed-1")[1] is False
    assert not driver.refused
    assert len(driver.said) == 1


def test_no_more_of_ours_than_the_site_wants(pbs: StandIn, drivers: Make) -> None:
    driver = drivers()
    driver.held = 2
    driver.add(replace(driver.request(), max_jobs=2))
    until(lambda: bool(driver.said))
    assert pbs.count("qsub") == 0
    driver.held = 1
    driver.submitter.poke("workq")
    driver.wait()


def test_a_queue_that_is_to_hold_no_more_is_told_once_for_all_jobs(
    pbs: StandIn, drivers: Make
) -> None:
    driver = drivers()
    for index in range(3):
        driver.held = 1
        driver.add(replace(driver.request(f"embed-{index}"), max_jobs=1))
        waits = driver.submitter._pauses
        until(lambda waits=waits: "workq" in waits)
        driver.held = 0
        driver.submitter.poke("workq")
        driver.wait(f"embed-{index}")
    assert len(pbs.jobs) == 3
    (told,) = driver.said
    assert "queue workq is to hold 1 of our jobs at most" in told


def test_a_qselect_that_is_refused_from_the_start_ends_the_run_in_words(
    drivers: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pause helps against commands of another kind."""
    answering(monkeypatch, lambda _: Answer(2, "", "qselect: illegal option -- u\nusage: qselect"))
    driver = drivers()
    driver.add(driver.request())
    until(lambda: bool(driver.said))
    assert "WorkflowError" in driver.said[0]
    assert "fails: qselect: illegal option -- u. The PBS executor needs the" in driver.said[0]
    assert not driver.submitted


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
    until(lambda: bool(driver.said))
    assert "PBS does not answer" in driver.said[0]
    pbs.up()
    assert driver.wait() == ("1.pbs01", False)
    assert not driver.refused


def test_a_qsub_cut_while_the_server_hung_is_not_repeated(pbs: StandIn, drivers: Make) -> None:
    driver = drivers()
    driver.add(driver.request("embed-0"))
    driver.wait("embed-0")
    pbs.hang()
    driver.add(driver.request("embed-1"))
    until(lambda: bool(driver.said))
    assert "qsub gave no answer within 0.2 s" in driver.said[0]
    pbs.resume()
    assert driver.wait("embed-1") == ("2.pbs01", True)
    time.sleep(0.3)
    assert [job.name for job in pbs.jobs.values()] == ["embed-0", "embed-1"]


def test_a_qsub_that_never_reached_the_server_is_repeated_after_two_looks(
    pbs: StandIn, drivers: Make
) -> None:
    driver = drivers()
    # left by a driver killed in qsub
    driver.ledger.write(Entry("embed-0", "w", "workq", "/log", time.time()))
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
    assert "cannot be written" in driver.refused["embed-0"]
    assert "logs" in driver.refused["embed-0"]


def test_withdrawn_requests_are_refused_and_never_sent(pbs: StandIn, drivers: Make) -> None:
    pbs.config.queues["workq"].enabled = False
    driver = drivers()
    for name in ("embed-0", "embed-1"):
        driver.add(driver.request(name))
    until(lambda: bool(driver.said))
    driver.submitter.withdraw("it was told to stop")
    until(lambda: len(driver.refused) == 2)
    sent = pbs.count("qsub")
    pbs.config.queues["workq"].enabled = True
    driver.add(driver.request("embed-2"))
    until(lambda: "embed-2" in driver.refused)
    assert set(driver.refused.values()) == {"it was told to stop"}
    assert (pbs.count("qsub"), pbs.jobs) == (sent, {})


def test_a_withdrawn_job_that_a_hung_server_queued_is_found(pbs: StandIn, drivers: Make) -> None:
    driver = drivers()
    driver.add(driver.request("embed-0"))
    driver.wait("embed-0")
    pbs.hang()
    driver.add(driver.request("embed-1"))
    driver.add(driver.request("embed-2"))
    until(lambda: bool(driver.said))
    driver.submitter.withdraw("it was told to stop")
    until(lambda: "embed-2" in driver.refused)  # without a server
    assert "embed-1" not in driver.refused
    pbs.resume()
    assert driver.wait("embed-1") == ("2.pbs01", True)
    assert len(pbs.jobs) == 2


def test_stop_ends_the_thread_though_requests_wait(pbs: StandIn, drivers: Make) -> None:
    pbs.config.queues["workq"].enabled = False
    driver = drivers()
    driver.add(driver.request())
    until(lambda: bool(driver.said))
    driver.submitter.stop()
    assert not any(thread.name == "pbs-submit" for thread in threading.enumerate())
