"""A look at jobs of which PBS says nothing, and at servers that are away or answer oddly."""

import time

import pytest

from drivers import Looker, answering
from shell import run, until
from snakemake_executor_plugin_pbs import watch as module
from snakemake_executor_plugin_pbs.commands import Answer
from standin import StandIn


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
    assert looker.said == []


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
    assert len(looker.said) == 2
    assert "PBS does not answer" in looker.said[0]
    assert "PBS answers again" in looker.said[1]


def test_a_hung_server_holds_up_a_look_for_the_timeout_only(looker: Looker, pbs: StandIn) -> None:
    job = looker.job("sleep 600")
    pbs.hang()
    assert looker.look()[job.id].kind == "running"
    assert "gave no answer within 0.2 s" in looker.said[0]
    pbs.resume()


def test_a_server_that_dies_between_the_two_commands_fails_nothing(
    looker: Looker, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = looker.job("sleep 600")
    answering(monkeypatch, lambda words: Answer(0 if words[0] == "qselect" else 255, "", ""))
    for _ in range(10):
        assert looker.look()[job.id].kind == "running"


def test_an_answer_that_is_not_understood_is_told_and_ends_as_unknown(
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
    for _ in range(module.LOOKS_NOT_UNDERSTOOD + module.LOOKS_BEFORE_LOST - 4):
        assert looker.look()[job.id].kind == "running"
    assert len(looker.said) == 1
    assert "that is not understood: qstat: bad" in looker.said[0]
    looker.watch._unclear_at -= module.INSPECT_EVERY
    assert looker.look()[job.id].kind == "running"
    assert len(looker.said) == 2  # again after some minutes
    assert looker.look()[job.id].kind == "failed"


def test_a_moved_job_is_decided_by_its_own_record(
    looker: Looker, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = looker.job("sleep 600")
    text = "Job Id: 1.pbs01\n    job_state = M\n\n"
    answering(monkeypatch, lambda words: Answer(0, "" if words[0] == "qselect" else text, ""))
    assert looker.look()[job.id].kind == "running"
    looker.ledger.end(job.name).write_text("1.other 0\n")
    assert looker.look()[job.id].kind == "success"
