"""Snakemake that is killed or told to stop, and servers and nodes that go away, while jobs wait and
run.
"""

import os
import re
import signal
import time

import pytest

from shell import PATIENCE, until
from sites import UNTIL_GO, Site
from standin import StandIn

pytestmark = pytest.mark.pbs


def test_a_snakemake_that_is_gone_finds_its_jobs_again(site: Site) -> None:
    """Killed, then logged out."""
    site.write(count=2, shell=UNTIL_GO)
    process = site.start()
    until(lambda: site.queued() == 2 and (site.folder / "begun").exists())
    for sent in (signal.SIGKILL, signal.SIGHUP):
        os.killpg(process.pid, sent)
        process.wait()
        assert len(site.live()) == 2
        assert site.snakemake("--unlock")[0] == 0
        process = site.start("--rerun-incomplete")
        until(lambda: (site.folder / "snakemake.out").read_text().count("is taken over") == 2)
    site.go()
    out = site.end(process)
    assert process.returncode == 0, out
    assert site.submissions() == 2
    assert site.outputs() == ["0.txt", "1.txt"]


ENDING = "Will exit after finishing currently running jobs"


def test_a_terminated_snakemake_waits_for_its_jobs_and_submits_no_more(site: Site) -> None:
    site.write(count=2, shell=UNTIL_GO)
    first = site.start("--jobs", "1")
    until(lambda: site.queued() == 1)
    os.kill(first.pid, signal.SIGTERM)
    until(lambda: site.printed(ENDING))
    site.go()
    out = site.end(first)
    assert first.returncode != 0
    assert len(site.outputs()) == 1, out
    assert not site.live()
    code, out = site.snakemake()  # nothing is locked
    assert code == 0, out
    assert site.submissions() == 2


def test_a_terminated_snakemake_ends_though_submissions_wait(lever: Site, pbs: StandIn) -> None:
    """It waits for the job that it has, submits none of the others when the queue opens, and leaves
    them to the next run.
    """
    pbs.config.queues["workq"].max_queued = 1
    lever.write(count=3, shell=UNTIL_GO)
    process = lever.start("--retries", "3")
    until(lambda: len(pbs.jobs) == 1)
    until(lambda: pbs.count("qsub") >= 2)
    os.kill(process.pid, signal.SIGTERM)
    until(lambda: lever.printed(ENDING))
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
    lever.write(count=2)
    snakefile = lever.folder / "Snakefile"
    snakefile.write_text(SLOW_TO_FINISH + snakefile.read_text())
    process = lever.start("--jobs", "1")
    until((lever.folder / "finishing").exists)
    os.kill(process.pid, signal.SIGTERM)
    time.sleep(1)  # the signal comes first
    (lever.folder / "terminated").touch()
    out = lever.end(process)
    assert ENDING in out
    assert len(lever.outputs()) == 1


def test_ctrl_c_deletes_every_job(site: Site) -> None:
    site.write(count=2, seconds=300)
    process = site.start()
    until(lambda: site.queued() == 2)
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does it
    out = site.end(process)
    assert process.returncode != 0
    assert "Deleting up to 2 PBS jobs" in out
    until(lambda: not site.live())


def test_ctrl_c_that_ends_its_reader_first_deletes_every_job(site: Site) -> None:
    """As in `snakemake ... 2>&1 | tee log`."""
    site.write(count=1, seconds=300)
    process = site.start(read=True)
    until(lambda: site.queued() == 1)
    assert process.stdout
    process.stdout.close()
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) != 0
    until(lambda: not site.live())


def test_a_kill_between_submissions_leaves_no_second_copy(lever: Site, pbs: StandIn) -> None:
    pbs.config.queues["workq"].started = False
    lever.write(count=6)
    first = lever.start()
    until(lambda: len(pbs.jobs) >= 3)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    second = lever.start("--rerun-incomplete", "--nolock")
    told = lever.folder / "snakemake.out"
    until(lambda: len(re.findall("was submitted to PBS|is taken over", told.read_text())) == 6)
    assert len({job.name for job in pbs.jobs.values()}) == len(pbs.jobs) == 6
    os.killpg(second.pid, signal.SIGINT)
    assert "is taken over" in lever.end(second)
    assert {job.state for job in pbs.jobs.values()} == {"F"}


@pytest.mark.parametrize("moment", [0, 3])
def test_ctrl_c_between_submissions_leaves_no_job(moment: int, lever: Site, pbs: StandIn) -> None:
    pbs.config.queues["workq"].started = False
    lever.write(count=6)
    process = lever.start()
    until(lambda: pbs.count("qsub" if moment else "qselect") > 0 and len(pbs.jobs) >= moment)
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
    if "rule one" in message:
        seen.append(message)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGINT)
    return decorate(self, record, message)

ColorizingTextHandler.decorate = pressed
"""


def test_ctrl_c_within_a_message_of_snakemake_is_not_lost(lever: Site, pbs: StandIn) -> None:
    """Snakemake drops what comes while it writes one."""
    pbs.config.queues["workq"].started = False
    lever.write(count=6)
    snakefile = lever.folder / "Snakefile"
    snakefile.write_text(PRESSED_IN_A_MESSAGE + snakefile.read_text())
    out = lever.end(lever.start())
    assert "Terminating processes on user request" in out
    assert {job.state for job in pbs.jobs.values()} <= {"F"}
    assert not lever.outputs()


def test_an_impatient_ctrl_c_is_answered_and_deletes_all_the_same(
    lever: Site, pbs: StandIn
) -> None:
    pbs.config.queues["workq"].started = False
    lever.write(count=2)
    process = lever.start()
    until(lambda: len(pbs.jobs) == 2)
    pbs.down()
    for words in ("are not deleted yet", "Still deleting PBS jobs. Press Ctrl-C again"):
        os.killpg(process.pid, signal.SIGINT)
        until(lambda words=words: lever.printed(words))
    pbs.up()
    out = lever.end(process)
    assert "Traceback" not in out
    assert {job.state for job in pbs.jobs.values()} == {"F"}


def test_ctrl_c_while_the_server_hangs_deletes_when_it_goes_on(lever: Site, pbs: StandIn) -> None:
    pbs.config.queues["workq"].started = False
    lever.write(count=2)
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


def test_a_server_that_is_away_for_many_looks_ends_nothing(lever: Site, pbs: StandIn) -> None:
    lever.write(count=1, shell=UNTIL_GO)
    process = lever.start()
    until(lambda: len(pbs.jobs) == 1)
    pbs.down()
    until(lambda: lever.printed("PBS does not answer"))
    lever.go()
    pbs.wait_for(1, "F")
    time.sleep(3)  # looks at ended jobs
    pbs.up()
    out = lever.end(process)
    assert process.returncode == 0, out
    assert "PBS does not answer" in out
    assert "PBS answers again" in out
    assert len(pbs.jobs) == 1


def test_a_preempted_job_runs_again_over_its_half_written_output(lever: Site, pbs: StandIn) -> None:
    """As Polaris's queue preemptable: the same job under the same id, without a new submission."""
    text = (
        "base: generic\ndescription: x\ndefault_queue: workq\nqueues: {workq: {rerunnable: true}}\n"
    )
    (lever.folder / "site.yaml").write_text(text)
    lever.write(
        count=1,
        shell="echo begun >> {output}; test -e again || {{ touch begun; sleep "
        "300; }}; echo $PBS_JOBID >> {output}",
    )
    process = lever.start("--pbs-site", "site.yaml")
    until((lever.folder / "begun").exists)
    (lever.folder / "again").touch()
    pbs.fail_node(0)
    out = lever.end(process)
    assert process.returncode == 0, out
    assert (lever.folder / "out" / "0.txt").read_text() == "begun\n1.pbs01\n"
    assert (len(pbs.jobs), pbs.jobs[1].run_count) == (1, 2)
