"""Snakemake for real, through `--executor pbs`: on the stand-in, or with PBS_TEST_REAL=1 on the PBS
of this machine; left alone, killed or told to stop, and with servers and nodes that go away.

Tests that pull levers of the server use the stand-in in any case.
"""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from helpers import PATIENCE, UNTIL_GO, Site, until
from lean import lean_python
from standin import Queue, StandIn

pytestmark = pytest.mark.pbs
ENDING = "Will exit after finishing currently running jobs"
ONE_AND_BAD = 'mem_mb=400, pbs_queue=lambda wc: ["workq", "{}"][int(wc.i) > 0]'
"""Another queue for all jobs but the first."""


def test_a_workflow_runs_to_its_end(site: Site) -> None:
    """In it, a job that fails is told with its cause, and its retry is a new submission."""
    site.write("test -e flag && touch {output} || {{ touch flag; exit 1; }}")
    code, out = site.snakemake("--retries", "1")
    assert code == 0, out
    assert len(site.submitted()) == 2
    status = Path("/proc/self/status").read_text()
    umask = int(re.findall(r"^Umask:\s*(\d+)$", status, re.MULTILINE)[0], 8)
    # not the 0077 of PBS
    assert (site.folder / "out" / "0.txt").stat().st_mode & 0o777 == 0o666 & ~umask
    assert "a rule's command failed; the rule's log says which (Exit_status 1)" in out
    assert re.search(r"Its log: \S+/\.snakemake/pbs_logs/one/one-0-", out)
    log = sorted((site.folder / ".snakemake" / "pbs_logs" / "one").glob("one-0-*.log"))[-1]
    assert "Finished jobid" in log.read_text()
    assert not site.left()


ODD = 'mit leer (x) [y] it\'s $HOME & so; "größe" 日本'


def test_folders_of_any_name_work(
    tmp_path: Path, pbs: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working folder, the outputs, and the Python that runs Snakemake, as in a clone's
    .venv.
    """
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / ODD / "run"
    folder.mkdir(parents=True)
    lever = Site(folder, [], lean_python(tmp_path / ODD / ".venv", "numpy"))
    lever.write("echo $PBS_JOBID > {output:q}")
    text = (folder / "Snakefile").read_text()
    (folder / "Snakefile").write_text(text.replace('"out/', "\"out größe (it's) & so; [x] $HOME/"))
    try:
        code, out = lever.snakemake()
    finally:
        lever.stop()
    assert code == 0, out
    assert (folder / "out größe (it's) & so; [x] $HOME" / "0.txt").read_text() == "1.pbs01\n"
    assert len(pbs.jobs) == 1
    # qsub takes no other letters in -o
    assert len(list((tmp_path / "home" / ".snakemake" / "pbs_logs").rglob("*.log"))) == 1


def test_polaris_by_its_server_gets_whole_nodes(
    lever: Site, pbs: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that the site would refuse never reach qsub; the remedies in the messages help."""
    monkeypatch.setenv("PBS_DEFAULT", "polaris-pbs-01")
    pbs.config.queues["preemptable"] = Queue("preemptable")
    lever.write("touch {output}")
    code, out = lever.snakemake("--set-resources", "one:runtime=3", "one:gpu=1")
    assert code == 1
    assert "PBS site: polaris, by the PBS server polaris-pbs-01." in out
    assert "not submitted, ALCF Polaris would refuse or lose it" in out
    assert "an account is needed" in out
    assert "the job asks for 1 node for 00:03:00" in out
    assert "the job would leave 3 of them idle: ask for gpu=4 (set-resources in the profile)" in out
    assert pbs.count("qsub") == 0
    remedies = ["--pbs-account", "mine", "--set-resources", "one:runtime=60", "one:gpu=4"]
    code, out = lever.snakemake(*remedies)
    assert code == 0, out
    assert "-q preemptable -A mine -l select=1:system=polaris -l place" in pbs.jobs[1].arguments


def test_a_command_that_cannot_work_anywhere_is_not_tried_again(lever: Site, pbs: StandIn) -> None:
    lever.write("exit 78")
    code, out = lever.snakemake("--retries", "3")
    assert code == 1
    assert "No node can do it, and it is not tried again. Its log: " in out
    assert pbs.count("qsub") == 1


def test_a_refusal_for_good_is_told_once_not_retried_and_leaves_others_to_their_end(
    lever: Site, pbs: StandIn
) -> None:
    lever.write("sleep 2; touch {output}", count=4)
    path = lever.folder / "Snakefile"
    path.write_text(path.read_text().replace("mem_mb=400", ONE_AND_BAD.format("nosuch")))
    code, out = lever.snakemake("--retries", "3", "--keep-going")
    assert code == 1
    told = "qsub: Unknown queue -> set --pbs-queue or the resource pbs_queue. The call was: qsub -N"
    assert out.count(told) == 1
    assert "2 more jobs are not submitted for the same reason" in out
    assert "Trying to restart" not in out and "Error in rule" not in out
    assert (lever.outputs(), len(pbs.jobs), pbs.count("qsub")) == (["0.txt"], 1, 2)


def test_a_failed_job_ends_the_run_though_submissions_wait(lever: Site, pbs: StandIn) -> None:
    lever.write("exit 1", count=2)
    path = lever.folder / "Snakefile"
    path.write_text(path.read_text().replace("mem_mb=400", ONE_AND_BAD.format("disabledq")))
    code, out = lever.snakemake()
    assert code == 1
    assert "is not submitted: Snakemake stops, since another job has failed." in out
    assert len(pbs.jobs) == 1


def test_walltime_is_told_beside_the_job_and_a_longer_retry_works(lever: Site) -> None:
    runtime = "lambda wc, attempt: [3, 240][attempt - 1]"
    lever.write("sleep 4; touch {output}", runtime=runtime)
    code, out = lever.snakemake("--retries", "1")
    assert code == 0, out
    words = r"PBS job 1.pbs01 failed: it ran out of its walltime of 00:03:00: ask for more"
    assert re.search(rf"Error in rule one:\n    message: {words}", out)


def test_why_a_group_failed_is_told(lever: Site) -> None:
    lever.write("exit 3", count=2)
    code, out = lever.snakemake("--groups", "one=pair", "--group-components", "pair=2")
    assert code == 1
    assert "PBS job 1.pbs01 failed: a rule's command failed" in out
    assert "Error in group" in out


def test_a_site_of_ones_own_and_its_preempted_job(lever: Site, pbs: StandIn) -> None:
    """The job runs again under its id, over its half-written output; its queue holds one job, and
    the server keeps no history.
    """
    pbs.config.history = False
    site = "base: generic\ndefault_queue: workq\nqueues: {workq: {rerunnable: true, max_jobs: 1}}\n"
    (lever.folder / "site.yaml").write_text(site)
    again = "test -e again || {{ touch begun; sleep 300; }}"
    lever.write(f"echo begun >> {{output}}; {again}; echo $PBS_JOBID >> {{output}}", count=2)
    process = lever.start("--pbs-site", "site.yaml")
    until((lever.folder / "begun").exists)
    (lever.folder / "again").touch()
    assert len(pbs.jobs) == 1
    pbs.fail_node(0)
    out = lever.end(process)
    assert process.returncode == 0, out
    texts = [(lever.folder / "out" / f"{i}.txt").read_text() for i in range(2)]
    assert sorted(texts) == ["begun\n1.pbs01\n", "begun\n2.pbs01\n"]
    assert pbs.jobs[1].run_count == 2
    assert out.count("queue workq is to hold 1 of our jobs at most") == 1


def test_a_server_that_is_away_for_many_looks_ends_nothing(lever: Site, pbs: StandIn) -> None:
    lever.write(UNTIL_GO)
    process = lever.start()
    until(lambda: len(pbs.jobs) == 1)
    pbs.down()
    until(lambda: "PBS does not answer" in lever.output())
    lever.go()
    pbs.wait_for(1, "F")
    time.sleep(3)  # looks at ended jobs
    pbs.up()
    out = lever.end(process)
    assert process.returncode == 0, out
    assert out.count("PBS does not answer") == out.count("PBS answers again") == 1
    assert len(pbs.jobs) == 1


# ---- Snakemake killed, terminated, interrupted


def test_a_snakemake_that_is_gone_finds_its_jobs_again(site: Site) -> None:
    """Killed, then logged out."""
    site.write(UNTIL_GO, count=2)
    process = site.start()
    until(lambda: len(site.submitted()) == 2 and (site.folder / "begun").exists())
    for sent in (signal.SIGKILL, signal.SIGHUP):
        os.killpg(process.pid, sent)
        process.wait()
        assert len(site.live()) == 2
        assert site.snakemake("--unlock")[0] == 0
        process = site.start("--rerun-incomplete")
        until(lambda: site.output().count("is taken over") == 2)
    site.go()
    out = site.end(process)
    assert process.returncode == 0, out
    assert len(site.submitted()) == 2
    assert site.outputs() == ["0.txt", "1.txt"]


def test_a_kill_between_submissions_leaves_no_second_copy(lever: Site, pbs: StandIn) -> None:
    pbs.config.queues["workq"].started = False
    lever.write("true", count=6)
    first = lever.start()
    until(lambda: len(pbs.jobs) >= 3)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    second = lever.start("--rerun-incomplete", "--nolock")
    until(lambda: len(re.findall("was submitted to PBS|is taken over", lever.output())) == 6)
    assert len({job.name for job in pbs.jobs.values()}) == len(pbs.jobs) == 6
    os.killpg(second.pid, signal.SIGINT)
    assert "is taken over" in lever.end(second)
    assert {job.state for job in pbs.jobs.values()} == {"F"}


def test_a_terminated_snakemake_waits_for_its_jobs_and_submits_no_more(
    lever: Site, pbs: StandIn
) -> None:
    """Though submissions wait; it leaves them to the next run."""
    pbs.config.queues["workq"].max_queued = 1
    lever.write(UNTIL_GO, count=3)
    process = lever.start("--retries", "3")
    until(lambda: len(pbs.jobs) == 1 and pbs.count("qsub") >= 2)
    os.kill(process.pid, signal.SIGTERM)
    until(lambda: ENDING in lever.output())
    lever.go()
    out = lever.end(process)
    assert process.returncode != 0
    assert len(lever.outputs()) == len(pbs.jobs) == 1, out
    assert out.count("is not submitted: Snakemake was told to stop") == 1
    assert "1 more jobs are not submitted for the same reason: Snakemake was told to stop" in out
    assert "Trying to restart" not in out
    assert not lever.left()


SLOW_TO_FINISH = """
import time
from snakemake.scheduling.job_scheduler import JobScheduler

finish = JobScheduler._finish_jobs

def finish_slowly(self):
    if self._tofinish and self.workflow.is_main_process and not Path("finishing").exists():
        Path("finishing").touch()
        while not Path("terminated").exists():
            time.sleep(0.05)
    finish(self)

JobScheduler._finish_jobs = finish_slowly
"""


def test_a_termination_while_snakemake_holds_its_lock_ends_it(lever: Site) -> None:
    """Snakemake's own handler would wait in the interrupted thread for what that thread holds, for
    ever.
    """
    lever.write("touch {output}", count=2, before=SLOW_TO_FINISH)
    process = lever.start("--jobs", "1")
    until((lever.folder / "finishing").exists)
    os.kill(process.pid, signal.SIGTERM)
    time.sleep(1)  # the signal comes first
    (lever.folder / "terminated").touch()
    out = lever.end(process)
    assert ENDING in out
    assert len(lever.outputs()) == 1


@pytest.mark.parametrize("reader", ["stays", "ends first"])
def test_ctrl_c_deletes_every_job(reader: str, site: Site) -> None:
    """A reader that ends first: as in `snakemake ... 2>&1 | tee log`."""
    site.write("sleep 300", count=2)
    process = site.start(read=reader == "ends first")
    until(lambda: len(site.submitted()) == 2)
    if process.stdout:
        process.stdout.close()
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does it
    assert process.wait(PATIENCE) != 0
    assert process.stdout or "Deleting up to 2 PBS jobs" in site.output()
    until(lambda: not site.live())


def test_ctrl_c_between_submissions_leaves_no_job(lever: Site, pbs: StandIn) -> None:
    pbs.config.queues["workq"].started = False
    lever.write("true", count=6)
    process = lever.start()
    until(lambda: len(pbs.jobs) >= 3)
    os.killpg(process.pid, signal.SIGINT)
    lever.end(process)
    time.sleep(0.5)
    assert {job.state for job in pbs.jobs.values()} <= {"F"}


PRESSED_IN_A_MESSAGE = """
import os
import signal
from snakemake.logging import ColorizingTextHandler

decorate = ColorizingTextHandler.decorate
seen = []

def pressed(self, record, message):
    if "WORDS" in message:
        seen.append(message)
        if len(seen) == COUNT:
            os.kill(os.getpid(), signal.SIGINT)
    return decorate(self, record, message)

ColorizingTextHandler.decorate = pressed
"""


@pytest.mark.parametrize(("words", "count"), [("PBS site", 1), ("rule one", 3)])
def test_ctrl_c_within_a_message_of_snakemake_is_not_lost(
    words: str, count: int, lever: Site, pbs: StandIn
) -> None:
    """Snakemake drops what comes while it writes one."""
    pbs.config.queues["workq"].started = False
    before = PRESSED_IN_A_MESSAGE.replace("WORDS", words).replace("COUNT", str(count))
    lever.write("true", count=6, before=before)
    process = lever.start()
    out = lever.end(process)
    assert process.returncode
    if words == "rule one":  # after the first message Snakemake may not schedule yet
        assert "Terminating processes on user request" in out
    assert {job.state for job in pbs.jobs.values()} <= {"F"}
    assert not lever.outputs()


def test_an_impatient_ctrl_c_is_answered_and_deletes_all_the_same(
    lever: Site, pbs: StandIn
) -> None:
    pbs.config.queues["workq"].started = False
    lever.write("true", count=2)
    process = lever.start()
    until(lambda: len(pbs.jobs) == 2)
    pbs.down()
    for words in ("are not deleted yet", "Still deleting PBS jobs. Press Ctrl-C again"):
        os.killpg(process.pid, signal.SIGINT)
        until(lambda words=words: words in lever.output())  # type: ignore[misc]
    pbs.up()
    out = lever.end(process)
    assert "Traceback" not in out
    assert {job.state for job in pbs.jobs.values()} == {"F"}


def test_ctrl_c_while_the_server_hangs_deletes_when_it_goes_on(lever: Site, pbs: StandIn) -> None:
    pbs.config.queues["workq"].started = False
    lever.write("true", count=2)
    process = lever.start("--pbs-command-timeout", "5")
    until(lambda: len(pbs.jobs) == 2)
    pbs.hang()
    before = pbs.taken
    until(lambda: pbs.taken > before)  # a look at the jobs is stuck now
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(3)
    pbs.resume()
    out = lever.end(process)
    assert "Deleting up to 2 PBS jobs" in out
    until(lambda: all(job.state == "F" for job in pbs.jobs.values()))
