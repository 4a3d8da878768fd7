"""A job that may already live is found before qsub: after restarts, lost ledgers and changed
requests.
"""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from drivers import Make
from shell import run, until
from snakemake_executor_plugin_pbs.ledger import Entry
from standin import StandIn


def test_a_restart_takes_over_what_waits_and_what_runs(pbs: StandIn, drivers: Make) -> None:
    first = drivers()
    first.add(first.request("train-0"))
    first.add(first.request("train-1", queue="stoppedq"))
    first.wait("train-0")
    first.wait("train-1")
    pbs.wait_for(1, "R")
    second = drivers()
    for name, queue in (("train-0", "workq"), ("train-1", "stoppedq"), ("train-2", "workq")):
        second.add(second.request(name, queue=queue))
    assert second.wait("train-0") == ("1.pbs01", True)
    assert second.wait("train-1") == ("2.pbs01", True)
    assert second.wait("train-2") == ("3.pbs01", False)
    assert pbs.count("qsub") == 3


@pytest.mark.usefixtures("pbs")
def test_a_job_that_ended_while_nobody_looked_is_submitted_anew(
    drivers: Make, tmp_path: Path
) -> None:
    first = drivers()
    first.add(first.request())
    first.wait()
    run("qdel -W force 1", tmp_path)
    second = drivers()
    second.add(second.request())
    assert second.wait() == ("2.pbs01", False)


def test_the_ledger_forgets_jobs_that_ended_while_nobody_looked(
    pbs: StandIn, drivers: Make, tmp_path: Path
) -> None:
    """Also those whose outputs are there, so that nobody asks for them again."""
    first = drivers()
    for name in ("train-0", "train-1"):
        first.add(first.request(name))
        first.wait(name)
    first.ledger.end("train-0").write_text("1.pbs01 0\n")
    # killed in qsub, yesterday
    first.ledger.write(Entry("train-9", "w", "workq", "/log", time.time() - 90_000))
    run("qdel -W force 1", tmp_path)
    second = drivers()
    second.add(second.request("train-2"))
    second.wait("train-2")
    assert [entry.name for entry in second.ledger.entries()] == ["train-1", "train-2"]
    assert not second.ledger.end("train-0").exists()
    assert pbs.jobs[2].state != "F"


@pytest.mark.usefixtures("pbs")
def test_a_job_that_lived_at_the_start_and_is_not_asked_for_leaves_the_ledger_at_the_end(
    drivers: Make, tmp_path: Path
) -> None:
    """It was about to exit, its outputs complete."""
    first = drivers()
    for name in ("train-0", "train-1"):
        first.add(first.request(name))
        first.wait(name)
    second = drivers()
    second.add(second.request("train-2"))
    second.wait("train-2")
    second.ledger.end("train-0").write_text("1.pbs01 0\n")
    run("qdel -W force 1", tmp_path)
    second.submitter.living.forget_ended()
    assert [entry.name for entry in second.ledger.entries()] == ["train-1", "train-2"]
    assert not second.ledger.end("train-0").exists()


@pytest.mark.usefixtures("pbs")
def test_a_lost_ledger_does_not_mean_a_second_copy(drivers: Make) -> None:
    first = drivers()
    first.add(first.request())
    first.wait()
    first.ledger.remove("train-0")
    second = drivers()
    second.add(second.request())
    assert second.wait() == ("1.pbs01", True)
    entry = second.ledger.read("train-0")
    assert entry
    assert entry.id == "1.pbs01"


def test_a_waiting_job_that_was_asked_for_otherwise_is_submitted_anew(
    pbs: StandIn, drivers: Make
) -> None:
    first = drivers()
    first.add(first.request("train-0", "-l", "walltime=0:10:00", queue="stoppedq"))
    first.wait()
    second = drivers()
    second.add(second.request("train-0", "-l", "walltime=0:05:00"))
    assert second.wait() == ("2.pbs01", False)
    assert pbs.jobs[1].state == "F"
    assert second.messages[0] == (
        "1.pbs01 (train-0) waits in PBS with stoppedq, walltime=0:10:00, where workq, "
        "walltime=0:05:00 is asked for "
        "now; it is deleted, and the job is submitted anew."
    )


def test_a_running_job_that_was_asked_for_otherwise_is_kept_and_told(
    pbs: StandIn, drivers: Make
) -> None:
    first = drivers()
    first.add(first.request("train-0", "-l", "walltime=5:00:00"))
    first.wait()
    pbs.wait_for(1, "R")
    second = drivers()
    second.add(second.request("train-0", queue="debug"))
    assert second.wait() == ("1.pbs01", True)
    assert second.messages == [
        "1.pbs01 (train-0) runs already and is kept with workq, walltime=5:00:00, though debug is "
        "asked for now."
    ]
    assert pbs.count("qsub") == 1


def test_two_copies_are_brought_down_to_one(pbs: StandIn, drivers: Make, tmp_path: Path) -> None:
    script = tmp_path / "x.sh"
    script.write_text("#!/bin/sh\nsleep 600\n")
    run(f"qsub -N train-0 {script}; qsub -N train-0 {script}", tmp_path)
    driver = drivers()
    driver.add(driver.request())
    assert driver.wait() == ("1.pbs01", True)
    pbs.wait_for(2, "F")
    assert pbs.jobs[1].state != "F"


def test_a_living_job_of_other_parameters_goes_before_the_new_one_comes(
    pbs: StandIn, drivers: Make
) -> None:
    first = drivers()
    first.add(first.request())
    first.wait()
    pbs.wait_for(1, "R")
    second = drivers()
    second.add(second.request(work="other"))
    assert second.wait() == ("2.pbs01", False)
    assert pbs.jobs[1].state == "F"
    assert (pbs.jobs[1].ended or 0) <= pbs.jobs[2].submitted


def test_nothing_is_submitted_beside_a_deleted_job_that_is_not_gone(
    pbs: StandIn, drivers: Make
) -> None:
    pbs.config.kill_delay = 1e6
    first = drivers()
    request = first.request()
    begun = first.folder / "begun"
    request.script.write_text(
        f'#!/bin/bash\ntrap "" TERM\ntouch {begun}\nwhile :; do sleep 0.1; done\n'
    )
    first.add(request)
    first.wait()
    until(begun.exists)
    run("qdel 1", first.folder)
    entry = first.ledger.read("train-0")
    assert entry
    first.ledger.write(replace(entry, deleted=True))
    second = drivers()
    second.add(second.request())
    looks = pbs.count("qselect")
    until(lambda: pbs.count("qselect") >= looks + 3)
    assert not second.submitted
    pbs.jobs[1].kill_at = 0.0
    assert second.wait() == ("2.pbs01", False)
    assert pbs.jobs[1].state == "F"


def test_a_job_given_up_without_a_server_is_deleted_before_the_next_comes(
    pbs: StandIn, drivers: Make
) -> None:
    first = drivers()
    first.add(first.request())
    first.wait()
    entry = first.ledger.read("train-0")
    assert entry
    first.ledger.write(replace(entry, deleted=True))  # its qdel never reached the server
    second = drivers()
    second.add(second.request())
    assert second.wait() == ("2.pbs01", False)
    assert pbs.jobs[1].state == "F"
