"""Looks at all jobs, by recorded answers; and the deletion of jobs, on the stand-in."""

import time
from pathlib import Path

import pytest

from helpers import replay, run, script
from snakemake_executor_plugin_pbs import watch as module
from snakemake_executor_plugin_pbs.cancel import delete_all
from snakemake_executor_plugin_pbs.commands import AwayError, Notices, Pbs
from snakemake_executor_plugin_pbs.ledger import Entry, Ledger
from snakemake_executor_plugin_pbs.verdict import Verdict
from snakemake_executor_plugin_pbs.watch import Job, Watch
from standin import StandIn


class Looker:
    """A watch over jobs of the ids in recorded answers."""

    def __init__(self, folder: Path, unknown_seconds: float = 0) -> None:
        self.bin = folder / "bin"
        self.messages: list[str] = []
        self.notices = Notices(self.messages.append)
        self.ledger = Ledger(folder / "ledger")
        self.pbs = Pbs(300, self.notices)
        self.watch = Watch(self.pbs, self.ledger, unknown_seconds, self.notices)

    def job(self, number: int, end: str = "", inspected: float = -1e9) -> Job:
        """Return a job; `end` is its end record."""
        entry = Entry(f"j{number}", "w", "debug", "/log", time.time(), f"{number}.pbs01")
        self.ledger.write(entry)
        if end:
            self.ledger.end(entry.name).write_text(end)
        return Job(entry, inspected=inspected)

    def look(self, *jobs: Job, qselect: str = "", **answers: str) -> dict[str, Verdict]:
        """Look once; qselect prints these words."""
        replay(self.bin, qselect="", **answers)
        (self.bin / "qselect.out").write_text(qselect)
        return self.watch.look(jobs)

    def questions(self) -> list[str]:
        return (self.bin / "qstat.calls").read_text().splitlines()


@pytest.fixture
def looker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looker:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
    return Looker(tmp_path)


DELETED = "it was deleted. PBS says: Job run at"
LOST = "its own record is missing"
ROUTED = "A routing queue drops a job without a word when none of its destinations takes the job"


@pytest.mark.parametrize(
    ("case", "number", "end", "words"),
    [
        # the answer of qstat, the end record, and why the job has failed
        ("qstat_json_F_ok", 36, "36.pbs01 0", None),
        ("qstat_json_F_ok", 36, "36 0", None),
        ("qstat_json_F_ok", 36, "", LOST),
        ("qstat_json_F_ok", 36, "36.pbs01", LOST),
        ("qstat_json_F_ok", 36, "999.pbs01 0", LOST),
        ("qstat_json_F_exit3", 37, "37.pbs01 0", "(Exit_status 3)"),
        ("qstat_json_routed_rejected", 723, "", ROUTED),
        ("qstat_json_routed_rejected", 723, "723.pbs01", "it ran, and is gone from PBS's history"),
        ("qstat_json_routed_rejected", 723, "723.pbs01 0", None),
        ("qstat_json_routed_rejected", 723, "723.pbs01 4", "it ended with exit code 4"),
        ("qstat_json_history_off_running_x", 192, "", "keeps no history"),
        ("qstat_json_history_off_running_x", 192, "192.pbs01 0", None),
        ("submit_name_slash", 7, "", "PBS does not say how but: qsub: illegal -N value"),
    ],
)
def test_jobs_that_have_left_the_queue_are_judged(
    case: str, number: int, end: str, words: str | None, looker: Looker
) -> None:
    """Where the answer leaves it open, not before the user's patience is over."""
    job = looker.job(number, end)
    looker.watch.unknown_seconds = 1e9
    verdicts = looker.look(job, qstat=case)
    decided = words is None or "Exit_status" in words or "exit code" in words
    assert bool(verdicts) == decided
    looker.watch.unknown_seconds = 0
    (verdict,) = looker.look(job, qstat=case).values()
    assert verdict.success == (words is None)
    assert (words or "") in verdict.words
    assert looker.messages == []


def test_exit_status_0_of_a_deleted_job_is_told_as_such(looker: Looker) -> None:
    """Answer of OpenPBS 23.06 about a job that is deleted two seconds after its start."""
    comment = "Job run at Sat Nov 21 at 09:58 on (pbs01:ncpus=1) and terminated by root@pbs01"
    job = looker.job(1, "1.pbs01")
    replay(looker.bin, qselect="", qstat="")
    script(
        looker.bin / "qstat",
        f"echo 'Job Id: 1.pbs01\n    job_state = F\n    substate = 91\n    comment = {comment}\n"
        "    Exit_status = 0'",
    )
    (verdict,) = looker.watch.look([job]).values()
    assert (verdict.success, verdict.words) == (False, f"it was deleted. PBS says: {comment}")


def test_a_moved_job_is_decided_by_its_own_record(looker: Looker) -> None:
    replay(looker.bin, qselect="", qstat="")
    (looker.bin / "qstat.out").write_text("Job Id: 1.pbs01\n    job_state = M\n\n")
    job = looker.job(1)
    assert looker.watch.look([job]) == {}
    looker.ledger.end("j1").write_text("1.other 0\n")
    assert looker.watch.look([job])["1.pbs01"].success


def test_a_history_switched_off_and_on_again_holds_nothing_up(looker: Looker) -> None:
    """Each time it is noticed in the look itself, by a second question."""
    job, queued = looker.job(192), looker.job(46)
    looker.look(job, qstat="qstat_json_history_off_running_x")
    assert looker.questions() == ["-x -f 192.pbs01", "-f 192.pbs01"]
    looker.look(queued, qstat="qstat_json_after_qdel_queued_no_x")
    assert looker.questions()[2:] == ["-f 46.pbs01", "-x -f 46.pbs01"]


@pytest.mark.parametrize(
    ("case", "number", "words"),
    [
        ("qstat_json_Q_queue_stopped", 9, "such as 9.pbs01 (j9): Not Running: Queue not started."),
        ("qstat_json_R", 35, ""),
        ("qstat_json_F_qdel_force", 72, ""),  # it ended between the two questions
    ],
)
def test_living_jobs_are_inspected_when_their_turn_comes(
    case: str, number: int, words: str, looker: Looker
) -> None:
    job = looker.job(number, inspected=1e12)
    assert looker.look(job, qselect=f"{number}.pbs01\n", qstat=case) == {}
    assert not (looker.bin / "qstat.calls").exists()
    for _ in range(3):
        job.inspected = -1e9
        assert looker.look(job, qselect=f"{number}.pbs01\n", qstat=case) == {}
    assert len(looker.questions()) == 3
    assert words in "".join(looker.messages)
    assert len(looker.messages) == bool(words)


def test_a_job_held_for_ever_has_failed(looker: Looker) -> None:
    case, ids = "qstat_json_H_out_k_doe_missing_dir", "105.pbs01\n"
    assert looker.look(looker.job(105), qselect=ids, qstat=case)["105.pbs01"].held


def test_a_running_job_that_uses_no_cpu_time_is_named_once(looker: Looker) -> None:
    """PBS may keep a job in R that has no process left, or whose node is gone."""
    job, ids = looker.job(35), "35.pbs01\n"
    for _ in range(3):
        job.inspected, job.busy = -1e9, job.busy - module.IDLE_AFTER
        looker.look(job, qselect=ids, qstat="qstat_json_R")
    (message,) = looker.messages
    assert "35.pbs01 (j35) as running, but has counted no CPU time for 30 minutes" in message
    assert "`qdel 35.pbs01`" in message


def test_two_hundred_jobs_cost_two_commands_a_look(looker: Looker) -> None:
    """The second asks about 40 living jobs by turns, or about 100 that have ended."""
    jobs = [looker.job(number) for number in range(1, 201)]
    for _ in range(7):
        looker.look(*jobs, qselect="".join(f"{job.id}\n" for job in jobs), qstat="")
    looker.look(*jobs, qstat="")
    assert [len(words.split()) - 2 for words in looker.questions()] == [40] * 5 + [100]


def test_a_server_that_is_away_ends_nothing_and_is_told_once(looker: Looker) -> None:
    """Also where it goes between the two questions, or takes other options than at the start."""
    job = looker.job(36)
    for answers in (
        {"qselect": "qselect_server_down"},
        {"qselect": "submit_no_args_option"},
        {"qselect": "", "qstat": "qstat_server_down_text"},
    ):
        replay(looker.bin, **answers)
        for _ in range(10):
            with pytest.raises(AwayError):
                looker.watch.look([job])
    starts = ["PBS does not answer (q", "PBS answers again, aft", "PBS does not say which"]
    assert [message[:22] for message in looker.messages] == starts


# ---- Deletion


def submit(looker: Looker, folder: Path, *scripts: str) -> list[str]:
    """Queue jobs, given qsub's words and a script each; return their names."""
    names = []
    for number, words in enumerate(scripts, 1):
        options, _, text = words.rpartition("|")
        script(folder / "job.sh", text)
        assert run(f"qsub {options} -N j{number} job.sh", folder).returncode == 0
        looker.job(number)
        names.append(f"j{number}")
    return names


def delete(looker: Looker, names: list[str], patience: float = 300) -> list[str]:
    say = looker.messages.append
    return delete_all(looker.pbs, looker.ledger, names, patience=patience, pause=0.1, say=say)


@pytest.fixture
def on_the_stand_in(pbs: StandIn, tmp_path: Path) -> Looker:  # noqa: ARG001 (on PATH)
    return Looker(tmp_path)


def test_all_jobs_are_deleted_in_any_state(
    on_the_stand_in: Looker, pbs: StandIn, tmp_path: Path
) -> None:
    """Also one whose node is lost, one that has ended, and one whose qsub gave no answer."""
    looker = on_the_stand_in
    jobs = ("|sleep 600", "-q stoppedq|true", "-h|true", "|true", "|sleep 600")
    names = submit(looker, tmp_path, *jobs)
    pbs.wait_for(1, "R")
    pbs.down_nodes.add(0)
    pbs.wait_for(4, "F")
    looker.ledger.write(Entry("j5", "w", "workq", "/log", time.time()))
    assert delete(looker, names) == []
    for number in range(1, 6):
        pbs.wait_for(number, "F")
    assert all(entry.deleted for entry in looker.ledger.entries())


def test_deleting_waits_for_a_server(on_the_stand_in: Looker, pbs: StandIn, tmp_path: Path) -> None:
    looker = on_the_stand_in
    names = submit(looker, tmp_path, "|sleep 600")
    pbs.down()
    assert delete(looker, names, patience=0.5) == ["1.pbs01"]
    pbs.up()
    assert delete(looker, names) == []
    pbs.wait_for(1, "F")


def test_many_jobs_are_deleted_in_few_calls(on_the_stand_in: Looker, pbs: StandIn) -> None:
    for number in range(1, 61):
        words = ["-q", "stoppedq", "-N", f"j{number}"]
        pbs.answer({"command": "qsub", "words": words, "cwd": "/", "script": ""})
        on_the_stand_in.job(number)
    assert delete(on_the_stand_in, [f"j{number}" for number in range(1, 61)]) == []
    assert pbs.count("qdel") == 2
    assert {job.state for job in pbs.jobs.values()} == {"F"}
