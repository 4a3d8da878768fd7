"""Looks at all jobs: their ends, and the questions to PBS."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from drivers import Looker, answering
from shell import run, until
from snakemake_executor_plugin_pbs import watch as module
from snakemake_executor_plugin_pbs.cancel import delete_all
from snakemake_executor_plugin_pbs.commands import Answer
from snakemake_executor_plugin_pbs.ledger import Entry
from snakemake_executor_plugin_pbs.watch import Job
from standin import StandIn

NOT_DUE = 1e12
"""As `inspected`: the turn of a job to be asked about doesn't come, however long a test takes."""


def test_two_hundred_jobs_cost_two_commands_a_look(
    looker: Looker, pbs: StandIn, tmp_path: Path
) -> None:
    for index in range(200):
        words = ["-q", "stoppedq", "-N", f"j{index}"]
        pbs.answer({"command": "qsub", "words": words, "cwd": str(tmp_path), "script": ""})
    looker.jobs = [
        Job(job.id, job.name, "stoppedq", "/log", inspected=-1e9) for job in pbs.jobs.values()
    ]
    before = len(pbs.calls)
    for _ in range(10):
        start = len(pbs.calls)
        assert {verdict.kind for verdict in looker.look().values()} == {"running"}
        assert len(pbs.calls) - start <= 2
    questions = [words for _, name, words in pbs.calls[before:] if name == "qstat"]
    assert len(questions) == 5  # every other look into 40 of them, every one once
    assert all(len(words) == 42 for words in questions)
    for job in pbs.jobs.values():
        pbs.delete(job)
    start = len(pbs.calls)
    first, second = looker.look(), looker.look()
    assert len(pbs.calls) - start == 4
    assert sum(verdict.kind == "failed" for verdict in first.values()) == 100
    assert sum(verdict.kind == "failed" for verdict in second.values()) == 100


def test_exit_status_0_without_the_jobs_own_record_is_failed(looker: Looker, pbs: StandIn) -> None:
    job = looker.job("true", record=False)
    pbs.wait_for(1, "F")
    assert looker.look()[job.id].kind == "running"  # a network filesystem may be late
    assert "its own record is missing" in looker.until(job, "failed").words


def test_exit_status_0_of_a_deleted_job_is_told_as_such(
    looker: Looker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What OpenPBS 23.06 says of a job that is deleted two seconds after its start."""
    job = looker.job("sleep 600")
    comment = "Job run at Sat Nov 21 at 09:58 on (pbs01:ncpus=1) and terminated by root@pbs01"
    text = (
        "Job Id: 1.pbs01\n    job_state = F\n    substate = 91\n    comment "
        f"= {comment}\n    Exit_status = 0\n\n"
    )
    answering(monkeypatch, lambda words: Answer(0, "" if words[0] == "qselect" else text, ""))
    assert looker.until(job, "failed").words == f"it was deleted. PBS says: {comment}"


def test_a_record_that_comes_late_is_success(looker: Looker, pbs: StandIn) -> None:
    looker.watch.unknown_seconds = 1e9
    job = looker.job("true", record=False)
    pbs.wait_for(1, "F")
    assert looker.look()[job.id].kind == "running"
    looker.ledger.end(job.name).write_text(f"{job.id} 0\n")
    assert looker.look()[job.id].kind == "success"


def test_the_record_of_another_job_does_not_count(looker: Looker, pbs: StandIn) -> None:
    job = looker.job("true", record=False)
    looker.ledger.end(job.name).write_text("999.pbs01 0\n")
    pbs.wait_for(1, "F")
    looker.until(job, "failed")


def test_a_preempted_rerunable_job_is_running_and_then_success(
    looker: Looker, pbs: StandIn
) -> None:
    flag, begun = looker.folder / "second", looker.folder / "begun"
    job = looker.job(f"test -e {flag} || (touch {begun}; sleep 600)", "-r", "y")
    until(begun.exists)
    flag.touch()
    pbs.down_nodes |= set(range(pbs.config.nodes))
    pbs.fail_node(0)
    assert looker.look()[job.id].kind == "running"
    pbs.down_nodes.clear()
    looker.until(job, "success")
    assert pbs.jobs[1].run_count == 2


def test_a_job_held_for_ever_is_noticed(looker: Looker, pbs: StandIn) -> None:
    """In the second look, before its turn of being asked about comes."""
    job, other = (
        looker.job("true", "-k", "doe", "-o", str(looker.folder / "no/such/x.log")),
        looker.job("true", "-h"),
    )
    job.inspected = other.inspected = NOT_DUE
    pbs.wait_for(1, "H")
    assert looker.look()[job.id].kind == "running"
    verdicts = looker.look()
    assert (verdicts[job.id].kind, verdicts[other.id].kind) == ("held", "running")
    assert pbs.calls[-1][1:] == ("qstat", ["-x", "-f", job.id])


def test_a_waiting_jobs_comment_is_shown_once(looker: Looker, pbs: StandIn) -> None:
    job = looker.job("true", "-q", "stoppedq")
    until(lambda: bool(pbs.jobs[1].comment))
    for _ in range(3):
        job.inspected = -1e9
        looker.look()
    assert looker.messages == [
        "PBS on waiting jobs, such as 1.pbs01 (job-0): Not Running: Queue not started."
    ]
    assert pbs.jobs[1].state == "Q"


def test_a_node_that_asked_for_the_end_of_a_job_is_named(looker: Looker, pbs: StandIn) -> None:
    job = looker.job("sleep 600", record=False)
    job.log = str(looker.folder / "log")
    Path(job.log).write_text("begun\nnode 3 (node04) requested job die, code 15009\n")
    pbs.wait_for(1, "R")
    run("qdel 1", looker.folder)
    assert looker.until(job, "failed").words.startswith(
        "PBS killed it, because its node 3 was lost or came back"
    )


def test_a_job_that_a_routing_queue_dropped_fails_after_repeats(
    looker: Looker, pbs: StandIn
) -> None:
    looker.job("true", "-q", "route1", "-l", "walltime=5:00:00")
    job = looker.jobs[0]
    job.queue = "route1"
    start = time.monotonic()
    verdict = looker.until(job, "failed")
    assert "A routing queue drops a job without a word" in verdict.words
    assert "queue route1" in verdict.words
    assert time.monotonic() - start >= 0.3
    assert pbs.count("qstat") >= module.LOOKS_BEFORE_LOST


def test_a_purged_job_that_recorded_its_success_is_success(looker: Looker, pbs: StandIn) -> None:
    job = looker.job("true")
    pbs.wait_for(1, "F")
    pbs.purge(1)
    assert looker.look()[job.id].kind == "success"


def test_without_history_the_jobs_record_decides(looker: Looker, pbs: StandIn) -> None:
    pbs.config.history = False
    good, bad, killed = (
        looker.job("true"),
        looker.job("exit 3"),
        looker.job("sleep 600", record=False),
    )
    looker.until(good, "success")
    assert "ended with exit code 3" in looker.until(bad, "failed").words
    assert looker.look()[killed.id].kind == "running"
    run("qdel -W force 3", looker.folder)
    assert "keeps no history" in looker.until(killed, "failed").words
    assert not any("-x" in words for _, name, words in pbs.calls[-6:] if name == "qstat")


def test_a_history_switched_off_and_on_again_holds_nothing_up(looker: Looker, pbs: StandIn) -> None:
    pbs.config.history = False
    first, second, third = (
        looker.job("true"),
        looker.job("sleep 1"),
        looker.job("sleep 1; exit 3", record=False),
    )
    looker.until(first, "success")
    pbs.config.history = True
    looker.jobs = [second, third]
    looker.until(second, "success")
    assert "(Exit_status 3)" in looker.until(third, "failed").words
    pbs.config.history = False
    fourth = looker.job("true")
    pbs.wait_for(4, "F")
    assert looker.look()[fourth.id].kind == "success"  # in one look: -x, and at once without it
    assert looker.messages == []


def test_a_job_that_ran_and_is_gone_with_its_history_is_told_as_such(
    looker: Looker, pbs: StandIn
) -> None:
    job = looker.job("sleep 600", record=False)
    pbs.wait_for(1, "R")
    until(lambda: looker.ledger.began(job.name, job.id))
    run("qdel -W force 1; qdel -x 1", looker.folder)
    assert "it ran, and is gone from PBS's history" in looker.until(job, "failed").words


def test_a_server_that_is_away_for_an_hour_leaves_every_job_running_and_is_told_once(
    looker: Looker, pbs: StandIn
) -> None:
    job, short = looker.job("sleep 600"), looker.job("true")
    pbs.wait_for(2, "F")
    pbs.down()
    for _ in range(120):  # an hour of looks, one every 30 s
        assert {verdict.kind for verdict in looker.look().values()} == {"running"}
    pbs.up()
    looker.until(short, "success")
    assert looker.look()[job.id].kind == "running"
    assert len(looker.messages) == 2
    assert "PBS does not answer" in looker.messages[0]
    assert "PBS answers again" in looker.messages[1]


def test_a_hung_server_holds_up_a_look_for_the_timeout_only(looker: Looker, pbs: StandIn) -> None:
    job = looker.job("sleep 600")
    pbs.hang()
    assert looker.look()[job.id].kind == "running"
    assert "no answer" in looker.messages[0]
    pbs.resume()


def test_a_server_that_dies_between_the_two_commands_fails_nothing(
    looker: Looker, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = looker.job("sleep 600")
    answering(monkeypatch, lambda words: Answer(0 if words[0] == "qselect" else 255, "", ""))
    for _ in range(10):
        assert looker.look()[job.id].kind == "running"


def test_an_answer_that_is_not_understood_ends_as_unknown_and_is_told(
    looker: Looker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither "running" for ever nor a failure at once; the job's own record decides whenever it is
    there.
    """
    looker.watch.unknown_seconds = 0
    job, good = looker.job("sleep 600", record=False), looker.job("true")
    until(lambda: looker.ledger.exit_code(good.name, good.id) is not None)
    answering(
        monkeypatch,
        lambda words: Answer(0, "", "") if words[0] == "qselect" else Answer(2, "", "qstat: bad"),
    )
    assert looker.look()[good.id].kind == "success"
    looker.jobs = [job]
    for _ in range(module.LOOKS_BEFORE_LOST - 2):
        assert looker.look()[job.id].kind == "running"
    verdict = looker.look()[job.id]
    assert verdict.kind == "failed"
    assert verdict.words == "it has ended, and PBS does not say how but: qstat: bad"


def test_a_moved_job_is_decided_by_its_own_record(
    looker: Looker, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = looker.job("sleep 600")
    text = "Job Id: 1.pbs01\n    job_state = M\n\n"
    answering(monkeypatch, lambda words: Answer(0, "" if words[0] == "qselect" else text, ""))
    assert looker.look()[job.id].kind == "running"
    looker.ledger.end(job.name).write_text("1.other 0\n")
    assert looker.look()[job.id].kind == "success"


def test_a_qselect_that_fails_says_so_again_and_ends_nothing(
    looker: Looker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server answers, so that "away" would be wrong; it may be a wrapper that is being mended."""
    job = looker.job("sleep 600")
    answering(monkeypatch, lambda _: Answer(2, "", "qselect: illegal option -- u\nusage: qselect"))
    for _ in range(3):
        assert looker.look()[job.id].kind == "running"
    assert len(looker.messages) == 1
    assert "`qselect -u" in looker.messages[0]
    assert "illegal option -- u)" in looker.messages[0]
    looker.watch._away_said -= module.REPEAT_AFTER
    looker.look()
    assert len(looker.messages) == 2


def test_a_job_that_does_nothing_is_told_once(looker: Looker, pbs: StandIn) -> None:
    """PBS may keep a job in R that has no process left, or whose node is gone."""
    idle, busy = looker.job("sleep 600"), looker.job("sleep 600")
    for number in (1, 2):
        pbs.wait_for(number, "R")

    def looks() -> None:
        for job in looker.jobs:
            job.inspected = -1e9
        looker.look(), looker.look()

    looks()
    assert looker.messages == []
    for job in looker.jobs:
        job.busy -= module.IDLE_AFTER
    pbs.jobs[2].cpu_time = "00:00:07"
    looks()
    looks()
    (told,) = looker.messages
    assert f"PBS shows {idle.id} ({idle.name}) as running" in told
    assert "no CPU time for 30 minutes" in told
    assert f"`qdel {idle.id}`" in told
    pbs.jobs[1].cpu_time = "00:00:01"
    looks()
    assert len(looker.messages) == 1
    idle.busy -= module.IDLE_AFTER
    looks()
    assert len(looker.messages) == 2
    assert busy.id not in "".join(looker.messages)


def delete(looker: Looker, patience: float = 300.0) -> list[str]:
    names = [job.name for job in looker.jobs]
    return delete_all(
        looker.pbs, looker.ledger, names, patience=patience, pause=0.1, say=looker.messages.append
    )


def test_all_jobs_are_deleted_in_any_state(looker: Looker, pbs: StandIn) -> None:
    looker.job("sleep 600")
    looker.job("true", "-q", "stoppedq")
    looker.job("true", "-h")
    looker.job("true")
    pbs.wait_for(1, "R")
    pbs.wait_for(4, "F")
    assert delete(looker) == []
    for number in (1, 2, 3):
        pbs.wait_for(number, "F")
    assert all(entry.deleted for entry in looker.ledger.entries())


def test_deleting_waits_for_a_server(looker: Looker, pbs: StandIn) -> None:
    looker.job("sleep 600")
    pbs.wait_for(1, "R")
    pbs.down()
    assert delete(looker, patience=0.5) == ["1.pbs01"]
    pbs.up()
    assert delete(looker) == []
    pbs.wait_for(1, "F")


def test_a_job_on_a_lost_node_is_deleted_by_force(looker: Looker, pbs: StandIn) -> None:
    looker.job("sleep 600")
    pbs.wait_for(1, "R")
    pbs.down_nodes.add(0)
    assert delete(looker) == []
    assert pbs.jobs[1].state == "F"


def test_a_job_whose_qsub_gave_no_answer_is_found_by_name_and_deleted(
    looker: Looker, pbs: StandIn
) -> None:
    job = looker.job("sleep 600")
    entry = looker.ledger.read(job.name)
    assert entry
    looker.ledger.write(replace(entry, id=None))
    assert delete(looker) == []
    pbs.wait_for(1, "F")


def test_many_jobs_are_deleted_in_few_calls(looker: Looker, pbs: StandIn) -> None:
    for index in range(60):
        words = ["-q", "stoppedq", "-N", f"j{index}"]
        pbs.answer({"command": "qsub", "words": words, "cwd": "/", "script": ""})
        looker.ledger.write(
            Entry(f"j{index}", "w", "stoppedq", "/log", time.time(), f"{index + 1}.pbs01")
        )
        looker.jobs.append(Job(f"{index + 1}.pbs01", f"j{index}", "stoppedq", "/log"))
    assert delete(looker) == []
    assert pbs.count("qdel") == 2
    assert {job.state for job in pbs.jobs.values()} == {"F"}
