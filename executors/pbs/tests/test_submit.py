"""Submission on the stand-in: patient with full queues and absent servers, and never a second copy
of a job that lives, after restarts, lost ledgers and changed requests.
"""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from helpers import run, script, until
from snakemake_executor_plugin_pbs.commands import Answer, AwayError, Notices, Pbs
from snakemake_executor_plugin_pbs.ledger import Entry, Ledger
from snakemake_executor_plugin_pbs.refusals import RefusedError
from snakemake_executor_plugin_pbs.request import Request
from snakemake_executor_plugin_pbs.submit import Submitter
from standin import StandIn


class Cut(Pbs):
    """Commands, of which one is cut as soon as a hung server has taken what it asks."""

    def __init__(self, server: StandIn, notices: Notices) -> None:
        super().__init__(300.0, notices)
        self.server = server
        self.cut = ""

    def call(self, *words: str) -> Answer:
        if words[0] != self.cut:
            return super().call(*words)
        self.server.hang()
        before = self.server.taken
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        until(lambda: self.server.taken > before)
        process.kill()
        process.wait()
        raise AwayError(f"{words[0]}: no answer", hung=True)


class Driver:
    """A submitter as one run of Snakemake has it."""

    def __init__(self, folder: Path, pbs: StandIn) -> None:
        self.folder = folder
        self.ledger = Ledger(folder / "ledger")
        self.messages: list[str] = []
        notices = Notices(self.messages.append)
        self.pbs = Cut(pbs, notices)
        self.submitter = Submitter(self.pbs, self.ledger, notices, pause=0)

    def request(
        self, name: str = "train-0", *words: str, queue: str = "workq", work: str = "w"
    ) -> Request:
        path = self.folder / f"{name}.sh"
        script(path, "sleep 600")
        log = self.folder / "logs" / f"{name}.log"
        options = ("-N", name, "-q", queue, "-j", "oe", "-o", str(log), *words)
        return Request(name, work, queue, None, options, path, log)

    def submit(self, request: Request, reason: str = "") -> tuple[str | None, bool]:
        """Submit until it is no longer to wait; return (id, whether the job was there)."""
        while True:
            if submitted := self.submitter.submit(request, reason):
                return submitted[0].id, submitted[1]
            time.sleep(0.02)

    def entry(self, name: str = "train-0") -> Entry:
        entry = self.ledger.read(name)
        assert entry
        return entry


@pytest.fixture
def driver(tmp_path: Path, pbs: StandIn) -> Callable[[], Driver]:
    return lambda: Driver(tmp_path, pbs)


Make = Callable[[], Driver]


def test_the_ledger_is_not_needed_and_forgets_what_ended(driver: Make, tmp_path: Path) -> None:
    first = driver()
    for name in ("train-0", "train-1"):
        first.submit(first.request(name))
    first.ledger.remove("train-1")
    # killed in qsub, yesterday
    first.ledger.write(Entry("train-9", "w", "workq", "/log", time.time() - 90_000))
    first.ledger.end("train-0").write_text("1.pbs01 0\n")
    run("qdel -W force 1", tmp_path)
    second = driver()
    assert second.submit(second.request("train-1")) == ("2.pbs01", True)
    second.submitter.forget_ended()
    assert [entry.name for entry in second.ledger.entries()] == ["train-1"]
    assert not second.ledger.end("train-0").exists()
    assert second.submit(second.request("train-0")) == ("3.pbs01", False)


CHANGES = [
    # the new request, the living job, and what the user hears
    (
        {"words": ["-l", "walltime=0:05:00"], "queue": "workq"},
        "waits",
        "1.pbs01 (train-0) waits in PBS with stoppedq, where workq, walltime=0:05:00 is asked for "
        "now; it is deleted, and the job is submitted again.",
    ),
    (
        {"queue": "debug"},
        "runs",
        "1.pbs01 (train-0) runs already and is kept with workq, though debug is asked for now.",
    ),
    (
        {"work": "other"},
        "runs",
        "1.pbs01 (train-0) still lives with other parameters or inputs; it is deleted, and the job "
        "is submitted again.",
    ),
]


@pytest.mark.parametrize(("change", "state", "words"), CHANGES)
def test_a_living_job_of_another_request(
    change: dict[str, str], state: str, words: str, pbs: StandIn, driver: Make
) -> None:
    first = driver()
    first.submit(first.request(queue="stoppedq" if state == "waits" else "workq"))
    if state == "runs":
        pbs.wait_for(1, "R")
    second = driver()
    changed = second.request("train-0", *change.pop("words", []), **change)
    adopted = "is kept" in words
    assert second.submit(changed) == (("1.pbs01", True) if adopted else ("2.pbs01", False))
    assert second.messages[0] == words
    if not adopted:
        assert (pbs.jobs[1].ended or 1e12) <= pbs.jobs[2].submitted


def test_two_copies_are_brought_down_to_one(pbs: StandIn, driver: Make, tmp_path: Path) -> None:
    script(tmp_path / "x.sh", "sleep 600")
    run("qsub -N train-0 x.sh; qsub -N train-0 x.sh", tmp_path)
    assert driver().submit(driver().request()) == ("1.pbs01", True)
    pbs.wait_for(2, "F")
    assert pbs.jobs[1].state != "F"


def test_nothing_is_submitted_beside_a_deleted_job_that_is_not_gone(
    pbs: StandIn, driver: Make
) -> None:
    """Its qdel may not have reached the server; and it may take its time to end."""
    pbs.config.kill_delay = 1e6
    first = driver()
    request, begun = first.request(), first.folder / "begun"
    script(request.script, f'trap "" TERM\ntouch {begun}\nwhile :; do sleep 0.1; done')
    first.submit(request)
    until(begun.exists)
    first.ledger.write(replace(first.entry(), deleted=True))
    second = driver()
    for _ in range(3):
        assert second.submitter.submit(request) is None
    pbs.jobs[1].kill_at = 0.0
    assert second.submit(request) == ("2.pbs01", False)
    assert pbs.jobs[1].state == "F"


def test_a_full_queue_and_an_absent_server_are_waited_for(pbs: StandIn, driver: Make) -> None:
    pbs.config.queues["workq"].enabled = False
    patient = driver()
    request = patient.request()
    for _ in range(3):
        assert patient.submitter.submit(request) is None
    pbs.down()
    with pytest.raises(AwayError):
        patient.submitter.submit(request)
    pbs.config.queues["workq"].enabled = True
    pbs.up()
    assert patient.submit(request) == ("4.pbs01", False)
    assert "workq: qsub: Queue is not enabled" in patient.messages[0]
    assert [words[:10] for words in patient.messages] == ["Submission", "PBS does n", "PBS answer"]


def test_a_pause_ends_when_a_job_has_left_the_queue(pbs: StandIn, driver: Make) -> None:
    pbs.config.queues["workq"].enabled = False
    patient = driver()
    patient.submitter.pause = 1e9
    for _ in range(3):
        assert patient.submitter.submit(patient.request()) is None
    assert pbs.count("qsub") == 1
    patient.submitter.open_queue("workq")
    patient.submitter.submit(patient.request())
    assert pbs.count("qsub") == 2


def test_a_qsub_cut_while_the_server_hung_is_not_repeated(pbs: StandIn, driver: Make) -> None:
    """Nor are others sent once Snakemake is told to stop."""
    first = driver()
    first.pbs.cut = "qsub"
    with pytest.raises(AwayError):
        first.submit(first.request())
    assert first.submitter.is_in_doubt("train-0") and not first.submitter.is_in_doubt("train-1")
    pbs.resume()
    first.pbs.cut = ""
    assert first.submit(first.request(), "it was told to stop") == ("1.pbs01", True)
    assert len(pbs.jobs) == 1


def test_a_qsub_that_never_reached_the_server_is_repeated_after_two_looks(
    pbs: StandIn, driver: Make
) -> None:
    """Unless Snakemake is told to stop."""
    killed = driver()
    killed.ledger.write(Entry("train-0", "w", "workq", "/log", time.time()))
    assert killed.submit(killed.request()) == ("1.pbs01", False)
    assert pbs.count("qselect") == 3
    killed.ledger.write(Entry("train-1", "w", "workq", "/log", time.time()))
    with pytest.raises(RefusedError, match="it was told to stop"):
        killed.submit(killed.request("train-1"), "it was told to stop")


def test_what_is_refused_for_good_is_not_sent_again(pbs: StandIn, driver: Make) -> None:
    refused = driver()
    for name in ("train-0", "train-1"):
        with pytest.raises(RefusedError, match=r"exit code 170\): qsub: Unknown queue -> set --pb"):
            refused.submit(refused.request(name, queue="nosuch"))
    assert pbs.count("qsub") == 1 and not refused.ledger.entries()


def test_a_banner_of_a_wrapper_is_not_taken_for_the_id(
    pbs: StandIn, driver: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "bin" / "qsub", f'echo "Welcome. 3 days."\nexec {pbs.bin}/qsub "$@"')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    assert driver().submit(driver().request()) == ("1.pbs01", False)
    script(tmp_path / "bin" / "qsub", f'{pbs.bin}/qsub "$@" > /dev/null; echo sent')
    other = driver()
    assert other.submit(other.request("train-1")) == ("2.pbs01", True)
    assert "qsub printed no job id but 'sent'" in other.messages[0]


def test_a_log_folder_that_cannot_be_made_is_told(driver: Make) -> None:
    refused = driver()
    (refused.folder / "logs").write_text("a file where the folder should be")
    with pytest.raises(RefusedError, match=r"cannot be written: .*logs"):
        refused.submit(refused.request())
