"""Submission: patient with full queues and absent servers, and never a second copy of a job that
lives.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest

from conftest import Cut, run, until
from snakemake_executor_plugin_pbs.commands import Answer
from snakemake_executor_plugin_pbs.ledger import Entry, Ledger
from snakemake_executor_plugin_pbs.refusals import refusal
from snakemake_executor_plugin_pbs.request import Request
from snakemake_executor_plugin_pbs.submit import Submitter
from standin import StandIn


@dataclass
class Driver:
    """A submitter as one run of Snakemake has it, and what it called back."""

    folder: Path
    pbs: StandIn
    submitted: dict[str, tuple[str, bool]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    held: int = 0

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.folder / "ledger")
        self.submitter = Submitter(
            pbs=Cut(self.pbs),
            ledger=self.ledger,
            submitted=lambda request, entry, adopted: self.submitted.update(
                {request.name: (entry.id or "", adopted)}
            ),
            refused=lambda request, error: self.refused.update({request.name: str(error)}),
            in_queue=lambda _queue: self.held,
            crashed=lambda error: self.said.append(repr(error)),
            say=self.said.append,
            pause=0.05,
        )
        self.submitter.start()

    def request(
        self, name: str = "embed-0", *words: str, queue: str = "workq", work: str = "w"
    ) -> Request:
        script = self.folder / f"{name}.sh"
        script.write_text("#!/bin/sh\nsleep 600\n")
        log = self.folder / "logs" / f"{name}.log"
        found = ("-N", name, "-q", queue, "-j", "oe", "-o", str(log), *words)
        return Request(name, work, queue, None, found, script, log)

    def add(self, request: Request) -> Request:
        self.submitter.add(request)
        return request

    def wait(self, name: str = "embed-0") -> tuple[str, bool]:
        until(lambda: name in self.submitted or name in self.refused)
        return self.submitted[name]


@pytest.fixture
def drivers(tmp_path: Path, pbs: StandIn) -> Iterator[Callable[[], Driver]]:
    """Makes drivers of one working directory, as restarts do; each new one ends the one before."""
    made: list[Driver] = []

    def make() -> Driver:
        if made:
            made[-1].submitter.stop()
        made.append(Driver(tmp_path, pbs))
        return made[-1]

    yield make
    made[-1].submitter.stop()


Make = Callable[[], Driver]


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
    ("code", "for_good"),
    [(170, True), (32, True), (159, True), (187, True), (2, True), (163, False), (171, False)],
)
def test_only_known_refusals_are_for_good(code: int, for_good: bool) -> None:
    assert refusal(Answer(code, "", "qsub: words")).for_good is for_good


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
    driver.ledger.write(
        Entry("embed-0", "w", "workq", "/log", time.time())
    )  # left by a driver killed in qsub
    driver.add(driver.request())
    assert driver.wait() == ("1.pbs01", False)
    looks = [words for _, name, words in pbs.calls if name == "qselect" and "-N" in words]
    assert len(looks) == 3


def test_a_restart_takes_over_what_waits_and_what_runs(pbs: StandIn, drivers: Make) -> None:
    first = drivers()
    first.add(first.request("embed-0"))
    first.add(first.request("embed-1", queue="stoppedq"))
    first.wait("embed-0")
    first.wait("embed-1")
    pbs.wait_for(1, "R")
    second = drivers()
    for name, queue in (("embed-0", "workq"), ("embed-1", "stoppedq"), ("embed-2", "workq")):
        second.add(second.request(name, queue=queue))
    assert second.wait("embed-0") == ("1.pbs01", True)
    assert second.wait("embed-1") == ("2.pbs01", True)
    assert second.wait("embed-2") == ("3.pbs01", False)
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
    for name in ("embed-0", "embed-1"):
        first.add(first.request(name))
        first.wait(name)
    first.ledger.end("embed-0").write_text("1.pbs01 0\n")
    first.ledger.write(
        Entry("embed-9", "w", "workq", "/log", time.time() - 90_000)
    )  # killed in qsub, yesterday
    run("qdel -W force 1", tmp_path)
    second = drivers()
    second.add(second.request("embed-2"))
    second.wait("embed-2")
    assert [entry.name for entry in second.ledger.entries()] == ["embed-1", "embed-2"]
    assert not second.ledger.end("embed-0").exists()
    assert pbs.jobs[2].state != "F"


@pytest.mark.usefixtures("pbs")
def test_a_lost_ledger_does_not_mean_a_second_copy(drivers: Make) -> None:
    first = drivers()
    first.add(first.request())
    first.wait()
    first.ledger.remove("embed-0")
    second = drivers()
    second.add(second.request())
    assert second.wait() == ("1.pbs01", True)
    entry = second.ledger.read("embed-0")
    assert entry
    assert entry.id == "1.pbs01"


def test_a_waiting_job_that_was_asked_for_otherwise_is_submitted_anew(
    pbs: StandIn, drivers: Make
) -> None:
    first = drivers()
    first.add(first.request("embed-0", "-l", "walltime=0:10:00", queue="stoppedq"))
    first.wait()
    second = drivers()
    second.add(second.request("embed-0", "-l", "walltime=0:05:00"))
    assert second.wait() == ("2.pbs01", False)
    assert pbs.jobs[1].state == "F"
    assert second.said[0] == (
        "1.pbs01 (embed-0) waits in PBS with stoppedq, walltime=0:10:00, where workq, "
        "walltime=0:05:00 is asked for "
        "now; it is deleted, and the job is submitted anew."
    )


def test_a_running_job_that_was_asked_for_otherwise_is_kept_and_told(
    pbs: StandIn, drivers: Make
) -> None:
    first = drivers()
    first.add(first.request("embed-0", "-l", "walltime=5:00:00"))
    first.wait()
    pbs.wait_for(1, "R")
    second = drivers()
    second.add(second.request("embed-0", queue="debug"))
    assert second.wait() == ("1.pbs01", True)
    assert second.said == [
        "1.pbs01 (embed-0) runs already and is kept with workq, walltime=5:00:00, though debug is "
        "asked for now."
    ]
    assert pbs.count("qsub") == 1


def test_two_copies_are_brought_down_to_one(pbs: StandIn, drivers: Make, tmp_path: Path) -> None:
    script = tmp_path / "x.sh"
    script.write_text("#!/bin/sh\nsleep 600\n")
    run(f"qsub -N embed-0 {script}; qsub -N embed-0 {script}", tmp_path)
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
    entry = first.ledger.read("embed-0")
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
    entry = first.ledger.read("embed-0")
    assert entry
    first.ledger.write(replace(entry, deleted=True))  # its qdel never reached the server
    second = drivers()
    second.add(second.request())
    assert second.wait() == ("2.pbs01", False)
    assert pbs.jobs[1].state == "F"


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
