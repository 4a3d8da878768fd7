"""What a second attempt asks for, and what is not tried again. With a real SLURM: tests/slurm."""

import logging
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake.iocontainers import Wildcards
from snakemake.resources import Resources

from plm_embed.workflow.retries import REASONS, by_cause, watch_failures
from support.campaign_runs import snakemake, working_folder


class Job(SimpleNamespace):
    """What an executor knows of a job of four attempts."""

    def __init__(self, rule: str = "embed", log: tuple[str, ...] = (), **wildcards: str) -> None:
        named = SimpleNamespace(name=rule)
        super().__init__(
            rule=named,
            name=rule,
            rules=[rule],
            jobid=1,
            log=log,
            wildcards_dict=wildcards,
            attempt=1,
            restart_times=3,
            resources={"runtime": 5, "mem_mb": 2000},
        )

    def is_group(self) -> bool:
        return False

    __hash__ = object.__hash__


@pytest.fixture
def fail(tmp_path: Path) -> Any:
    """Let a job fail as Snakemake does it, and count its next attempt."""

    class Executor:
        logger = logging.getLogger()

        def report_job_error(self, info: Any) -> None: ...

        def handle_job_error(self, job: Any) -> None: ...

    (tmp_path / "x.json").touch()
    by_cause([SimpleNamespace(name="embed", resources={})], tmp_path / "x.failures")
    watch_failures(Executor, Executor)

    def fail(job: Job, **aux: Any) -> bool:
        executor = Executor()
        if aux:
            executor.report_job_error(SimpleNamespace(job=job, aux=aux))
        executor.handle_job_error(job)
        again: bool = job.restart_times > job.attempt - 1
        job.attempt += 1
        return again

    return fail


def asked(tmp_path: Path, job: Job) -> tuple[int, int]:
    """Minutes and MB that an attempt asks for: 20 and 1000 at first, in a profile and in a rule."""
    resources = Resources.parse(["runtime=20 * attempt"], allow_expressions=True)
    resources.update(
        Resources.from_mapping({"mem_mb": lambda _, attempt: attempt * 1000, "gpu": 1})
    )
    rule = SimpleNamespace(name=job.name, resources=resources)
    by_cause([rule], tmp_path / "x.failures")
    assert rule.resources["gpu"].value == 1
    words = {
        "input": [],
        "attempt": job.attempt,
        "threads": 1,
        "rulename": job.name,
        "async_run": None,
    }
    values = [
        rule.resources[name].evaluate(Wildcards(fromdict=job.wildcards_dict), **words)
        for name in ("runtime", "mem_mb")
    ]
    return values[0].value, values[1].value


def test_time_and_memory_grow_only_when_they_were_short(fail: Any, tmp_path: Path) -> None:
    job, other = Job(submission="0001"), Job(submission="0002")
    assert asked(tmp_path, job) == (20, 1000)
    wanted = [
        ({"cause": "time"}, (40, 1000)),
        ({"cause": "memory"}, (40, 2000)),
        ({"slurm_logfile": "x"}, (40, 2000)),
    ]
    for why, then in wanted:
        assert fail(job, **why)
        assert asked(tmp_path, job) == then
    assert fail(other)
    assert asked(tmp_path, other) == (20, 1000)
    with (tmp_path / "x.failures").open("a") as notes:
        notes.write('\n{"job": "cut by a full')
    assert asked(tmp_path, job) == (40, 2000)
    again = Job(submission="0001")
    assert asked(tmp_path, again) == (20, 1000)
    fail(again)
    # what an earlier run noted of its first attempt counts no more
    assert asked(tmp_path, again) == (20, 1000)


def test_never_more_than_the_site_gives(fail: Any, tmp_path: Path) -> None:
    job = Job(submission="0001")
    fail(job, cause="time", at_most=30)
    assert asked(tmp_path, job) == (30, 1000)
    fail(job, cause="memory", at_most=1500)
    fail(job, cause="time", at_most=30)
    assert asked(tmp_path, job) == (30, 1500)


def test_each_failure_is_said_with_its_reason(
    fail: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "0001.log"
    job = Job(log=(str(log),), submission="0001")
    with caplog.at_level(logging.INFO):
        fail(job, cause="time")
        fail(job, cause="memory")
        log.write_text("plm-embed: unfinished: not all buckets:\n  bucket 0001: lost\n")
        fail(job)
        assert log not in REASONS
        fail(job, cause="refused", said="sbatch: Invalid account")
    assert [re.sub("^plm-embed: embed 0001 failed: ", "", said) for said in caplog.messages] == [
        "the time limit of 5 minutes was over; it is tried again",
        "it needed more than the 2,000 MB that it asked for; it is tried again",
        "not all buckets: bucket 0001: lost; it is tried again",
        # the executor has told why
        "plm-embed: embed 0001 failed; it is not tried again: it would fail in the same way",
    ]
    assert REASONS.pop(log) == "sbatch: Invalid account"


def test_what_is_of_no_use_is_not_tried_again(fail: Any, tmp_path: Path) -> None:
    assert not fail(Job(), cause="refused")
    log = tmp_path / "0000.log"
    log.write_text(
        "# plm-embed embed\n12:00:00 scratch\nplm-embed: error: speed.scratch: /nope: no such "
        "folder\nname one\n"
    )
    assert not fail(Job(log=(str(log),)))
    log.write_text(
        "12:00:00 worker 0: plm-embed: error: of a worker\nplm-embed: unfinished: stopped by a "
        "signal\n"
    )
    assert fail(Job(log=(str(log), str(tmp_path / "absent.log"))))
    log.write_text("plm-embed: error: of an earlier run\n")
    os.utime(log, (1, 1))
    assert fail(Job(log=(str(log),)))


@pytest.mark.workflow
def test_a_users_error_is_said_once(tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work")
    speed = {"scratch": "$NOT_SET/x", "device": "cpu"}
    options = ("--cores", "2", "--retries", "3", "--keep-going", "--until", "embed")
    run = snakemake(folder, *options, buckets=2, speed=speed)
    assert run.returncode == 1
    assert (
        run.stdout.count("plm-embed: error: speed.scratch: $NOT_SET/x: an environment") == 2
    )  # jobs
    assert run.stdout.count("is not tried again: it would fail in the same way") == 2
    assert "Trying to restart" not in run.stdout
