"""Snakemake for real, through `--executor pbs`: on the stand-in, or with PBS_TEST_REAL=1 on the PBS
of this machine.

On a real PBS also set PBS_TEST_DIR to a folder that the nodes share, and PBS_TEST_ARGS to what the
site needs, for instance `--pbs-site polaris --pbs-account NAME`. Tests that pull levers of the
server use the stand-in in any case.
"""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from conftest import PATIENCE, REAL, run, until
from snakemake_executor_plugin_pbs.commands import number
from standin import StandIn

pytestmark = pytest.mark.pbs

SNAKEFILE = """
rule all:
    input: expand("out/{{i}}.txt", i=range({count}))

rule one:
    output: "out/{{i}}.txt"
    params: seconds={seconds}
    threads: 1
    resources: runtime={runtime}, mem_mb=400
    shell: {shell!r}
"""
COMMAND = "sleep {params.seconds}; echo $PBS_JOBID > {output}"
UNTIL_GO = "touch begun; while ! test -e go; do sleep 0.1; done; echo $PBS_JOBID > {output}"
"""A job that lasts until the test lets it end."""


@dataclass
class Site:
    """A working directory, and Snakemake in it."""

    folder: Path
    arguments: list[str]
    python: str = sys.executable
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def write(
        self, count: int = 3, seconds: float = 0.2, shell: str = COMMAND, runtime: str = "60"
    ) -> None:
        found = {"count": count, "seconds": seconds, "shell": shell, "runtime": runtime}
        text = SNAKEFILE.format(**found)
        (self.folder / "Snakefile").write_text(text)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [
            self.python,
            "-m",
            "snakemake",
            "--executor",
            "pbs",
            "--jobs",
            "300",
            "--latency-wait",
            "5",
        ]
        command += [
            "--pbs-status-interval",
            "1",
            "--pbs-unknown-seconds",
            "3",
            "--pbs-command-timeout",
            "60",
        ]
        with (self.folder / "snakemake.out").open("w") as out:
            process = subprocess.Popen(
                [*command, *self.arguments, *words],
                cwd=self.folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> str:
        """Wait for Snakemake; what it said."""
        process.wait(timeout=PATIENCE)
        return (self.folder / "snakemake.out").read_text()

    def said(self, words: str) -> bool:
        return words in (self.folder / "snakemake.out").read_text()

    def go(self) -> None:
        """Let the jobs of UNTIL_GO end."""
        (self.folder / "go").touch()

    def snakemake(self, *words: str) -> tuple[int, str]:
        process = self.start(*words)
        out = self.end(process)
        return process.returncode, out

    def stop(self) -> None:
        """Leave no Snakemake behind when a test fails."""
        for process in self.started:
            if process.poll() is None:
                process.kill()

    def outputs(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "out").glob("*.txt"))

    def submissions(self) -> int:
        return len(lines(self.folder / "calls"))

    def live(self) -> list[str]:
        """Ids of this folder's jobs: the user may have others."""
        ours = {number(line) for line in lines(self.folder / "ids")}
        return [
            found
            for found in run("qselect -u $(id -un)", self.folder).stdout.split()
            if number(found) in ours
        ]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site whose qsub keeps a list of its calls, in front of the real one or the stand-in's."""
    words = shlex.split(os.environ.get("PBS_TEST_ARGS", ""))
    if REAL:
        folder = Path(tempfile.mkdtemp(dir=os.environ.get("PBS_TEST_DIR", tmp_path)))
        found = logged(Site(folder, words), REAL, monkeypatch)
        yield found
        found.stop()
        return
    with StandIn() as pbs:
        pbs.config.speed, pbs.config.kill_delay = 60, 1
        monkeypatch.setenv("PATH", str(pbs.bin), prepend=":")
        found = logged(Site(tmp_path, words), str(pbs.bin / "qsub"), monkeypatch)
        yield found
        found.stop()


@pytest.fixture
def lever(tmp_path: Path, pbs: StandIn) -> Iterator[Site]:  # noqa: ARG001 (the commands on PATH)
    """A site on the stand-in, whose server a test may stop and break."""
    found = Site(tmp_path, [])
    yield found
    found.stop()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def logged(site: Site, qsub: str, monkeypatch: pytest.MonkeyPatch) -> Site:
    wrapper = site.folder / "bin" / "qsub"
    wrapper.parent.mkdir()
    calls, ids = (shlex.quote(str(site.folder / name)) for name in ("calls", "ids"))
    wrapper.write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\nid=$({qsub} "$@") || exit '
        f'$?\necho "$id" >> {ids}\necho "$id"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", str(wrapper.parent), prepend=":")
    return site


def test_a_workflow_runs_to_its_end(site: Site) -> None:
    site.write(count=3)
    code, out = site.snakemake()
    assert code == 0, out
    assert site.outputs() == ["0.txt", "1.txt", "2.txt"]
    assert site.submissions() == 3
    assert (
        site.folder / "out" / "0.txt"
    ).stat().st_mode & 0o777 == 0o666 & ~umask()  # not the 0077 of PBS
    logs = sorted((site.folder / ".snakemake" / "pbs_logs" / "one").glob("one-0-*.log"))
    assert len(logs) == 1
    assert "Finished jobid" in logs[0].read_text()
    assert not list((site.folder / ".snakemake" / "auxiliary" / "pbs").iterdir())


def umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def test_a_failed_job_is_told_and_its_log_named(site: Site) -> None:
    site.write(count=2, shell="test {wildcards.i} = 0 && touch {output}")
    code, out = site.snakemake("--keep-going")
    assert code == 1
    assert site.outputs() == ["0.txt"]
    assert "a rule's command failed" in out
    assert "(Exit_status 1)" in out
    assert ".snakemake/pbs_logs/one/one-1-" in out


def test_a_retry_is_a_new_submission(site: Site) -> None:
    site.write(count=1, shell="test -e flag && touch {output} || {{ touch flag; exit 1; }}")
    code, out = site.snakemake("--retries", "1")
    assert code == 0, out
    assert site.submissions() == 2


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGHUP], ids=["killed", "logged out"])
def test_a_snakemake_that_is_gone_finds_its_jobs_again(sent: int, site: Site) -> None:
    site.write(count=3, shell=UNTIL_GO)
    first = site.start()
    until(lambda: len(site.live()) == 3 and (site.folder / "begun").exists())
    os.killpg(first.pid, sent)
    first.wait()
    assert len(site.live()) == 3
    assert site.snakemake("--unlock")[0] == 0
    second = site.start("--rerun-incomplete")
    until(lambda: (site.folder / "snakemake.out").read_text().count("is taken over") == 3)
    site.go()
    out = site.end(second)
    assert second.returncode == 0, out
    assert site.submissions() == 3
    assert site.outputs() == ["0.txt", "1.txt", "2.txt"]


ENDING = "Will exit after finishing currently running jobs"


def test_a_terminated_snakemake_waits_for_its_jobs_and_submits_no_more(site: Site) -> None:
    site.write(count=3, shell=UNTIL_GO)
    first = site.start("--jobs", "2")
    until(lambda: len(site.live()) == 2)
    os.kill(first.pid, signal.SIGTERM)
    until(lambda: site.said(ENDING))
    site.go()
    out = site.end(first)
    assert first.returncode != 0
    assert len(site.outputs()) == 2, out
    assert not site.live()
    code, out = site.snakemake()  # nothing is locked
    assert code == 0, out
    assert site.submissions() == 3


def test_a_terminated_snakemake_ends_though_submissions_wait(lever: Site, pbs: StandIn) -> None:
    """It waits for the job that it has, and submits none of the others when the queue opens."""
    pbs.config.queues["workq"].max_queued = 1
    lever.write(count=3, shell=UNTIL_GO)
    process = lever.start("--retries", "3")
    until(lambda: len(pbs.jobs) == 1)
    until(lambda: pbs.count("qsub") >= 2)
    os.kill(process.pid, signal.SIGTERM)
    until(lambda: lever.said(ENDING))
    lever.go()
    out = lever.end(process)
    assert process.returncode != 0
    assert len(lever.outputs()) == len(pbs.jobs) == 1, out
    assert out.count("is not submitted: Snakemake was told to stop") == 1
    assert "1 more jobs are not submitted for the same reason: Snakemake was told to stop" in out
    assert "Trying to restart" not in out
    pbs.config.queues["workq"].max_queued = None
    assert lever.snakemake()[0] == 0
    assert len(pbs.jobs) == 3


def two_queues(lever: Site, first: str, second: str) -> None:
    """Ask for another queue in each of two jobs."""
    path = lever.folder / "Snakefile"
    queue = f"mem_mb=400, pbs_queue=lambda wildcards: [{first!r}, {second!r}][int(wildcards.i)]"
    path.write_text(path.read_text().replace("mem_mb=400", queue))


SLOW_TO_FINISH = """
import time
from pathlib import Path
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


def test_a_failed_job_ends_the_run_though_submissions_wait(lever: Site, pbs: StandIn) -> None:
    lever.write(count=2, shell="exit 1")
    two_queues(lever, "workq", "disabledq")
    code, out = lever.snakemake()
    assert code == 1
    assert "is not submitted: Snakemake stops, since another job has failed." in out
    assert len(pbs.jobs) == 1


@pytest.mark.parametrize("keep_going", [True, False])
def test_a_refusal_for_good_is_told_once_and_not_retried(
    keep_going: bool, lever: Site, pbs: StandIn
) -> None:
    lever.write(count=3)
    options = ["--pbs-queue", "nosuch", "--retries", "3", *(["--keep-going"] if keep_going else [])]
    code, out = lever.snakemake(*options)
    assert code == 1
    assert (
        out.count(
            "qsub: Unknown queue -> set --pbs-queue or the resource pbs_queue. The call was: qsub "
            "-N"
        )
        == 1
    )
    assert "2 more jobs are not submitted for the same reason" in out
    assert "Trying to restart" not in out
    assert "Error in rule" not in out
    assert pbs.count("qsub") == 1


def test_a_refusal_leaves_other_jobs_to_their_end(lever: Site, pbs: StandIn) -> None:
    lever.write(count=2, seconds=2)
    two_queues(lever, "workq", "nosuch")
    code, out = lever.snakemake("--retries", "3")
    assert code == 1
    assert lever.outputs() == ["0.txt"], out
    assert len(pbs.jobs) == 1


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
    venv = tmp_path / ODD / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    packages = next((venv / "lib").glob("python3*")) / "site-packages"
    (packages / "those_of_the_suite.pth").write_text("\n".join(path for path in sys.path if path))
    lever = Site(folder, [], str(venv / "bin" / "python"))
    text = SNAKEFILE.format(count=2, seconds=0, shell="echo $PBS_JOBID > {output:q}", runtime="60")
    (folder / "Snakefile").write_text(text.replace('"out/', "\"out größe (it's) & so; [x] $HOME/"))
    try:
        code, out = lever.snakemake()
    finally:
        lever.stop()
    assert code == 0, out
    assert sorted(
        path.name for path in (folder / "out größe (it's) & so; [x] $HOME").iterdir()
    ) == ["0.txt", "1.txt"]
    assert len(pbs.jobs) == 2
    logs = list(
        (tmp_path / "home" / ".snakemake" / "pbs_logs").rglob("*.log")
    )  # qsub takes no other letters in -o
    assert len(logs) == 2


def test_a_log_folder_that_qsub_would_refuse_is_refused_in_one_line(
    lever: Site, pbs: StandIn
) -> None:
    lever.write(count=3)
    code, out = lever.snakemake("--pbs-logdir", "größe")
    assert code == 1
    assert (
        "printable ASCII letters only. Name another folder that the nodes see: --pbs-logdir" in out
    )
    assert "Traceback" not in out
    assert pbs.count("qsub") == 0


def test_ctrl_c_deletes_every_job(site: Site) -> None:
    site.write(count=4, seconds=300)
    process = site.start()
    until(lambda: len(site.live()) == 4)
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does it
    out = site.end(process)
    assert process.returncode != 0
    assert "Deleting up to 4 PBS jobs" in out
    until(lambda: not site.live())


def test_a_job_deleted_by_hand_is_failed_and_retried(site: Site) -> None:
    site.write(count=1, shell=UNTIL_GO)
    process = site.start("--retries", "1")
    until((site.folder / "begun").exists)
    run(f"qdel {site.live()[0]}", site.folder)
    until(lambda: site.submissions() == 2)
    site.go()
    out = site.end(process)
    assert process.returncode == 0, out
    assert "it was deleted" in out
    assert site.submissions() == 2


def test_what_the_site_would_refuse_never_reaches_qsub(site: Site) -> None:
    site.write(count=1)
    code, out = site.snakemake("--pbs-site", "polaris", "--set-resources", "one:runtime=3")
    assert code == 1
    assert "not submitted, ALCF Polaris would refuse or lose it" in out
    assert "an account is needed" in out
    assert "the job asks for 1 node for 00:03:00" in out
    assert site.submissions() == 0


@pytest.mark.parametrize("moment", [1, 9])
def test_a_kill_between_submissions_leaves_no_second_copy(
    moment: int, lever: Site, pbs: StandIn
) -> None:
    pbs.config.queues["workq"].started = False
    lever.write(count=12)
    first = lever.start()
    until(lambda: len(pbs.jobs) >= moment)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert lever.snakemake("--unlock")[0] == 0
    second = lever.start("--rerun-incomplete")
    until(lambda: len(pbs.jobs) == 12 and lever.said("is taken over"))
    time.sleep(3)
    assert len({job.name for job in pbs.jobs.values()}) == len(pbs.jobs) == 12
    os.killpg(second.pid, signal.SIGINT)
    assert "is taken over" in lever.end(second)
    assert {job.state for job in pbs.jobs.values()} == {"F"}


@pytest.mark.parametrize("moment", [0, 1, 9])
def test_ctrl_c_between_submissions_leaves_no_job(moment: int, lever: Site, pbs: StandIn) -> None:
    pbs.config.queues["workq"].started = False
    lever.write(count=12)
    process = lever.start()
    until(lambda: pbs.count("qsub" if moment else "qselect") > 0 and len(pbs.jobs) >= moment)
    os.killpg(process.pid, signal.SIGINT)
    lever.end(process)
    time.sleep(0.5)
    assert {job.state for job in pbs.jobs.values()} <= {"F"}


def test_ctrl_c_while_the_server_hangs_deletes_when_it_goes_on(lever: Site, pbs: StandIn) -> None:
    lever.write(count=2, seconds=300)
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
    lever.write(count=2, shell=UNTIL_GO)
    process = lever.start()
    until(lambda: len(pbs.jobs) == 2)
    pbs.down()
    until(lambda: lever.said("PBS does not answer"))
    lever.go()
    for job in (1, 2):
        pbs.wait_for(job, "F")
    time.sleep(3)  # looks at ended jobs
    pbs.up()
    out = lever.end(process)
    assert process.returncode == 0, out
    assert "PBS does not answer" in out
    assert "PBS answers again" in out
    assert len(pbs.jobs) == 2


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


LISTENER = """
from snakemake_interface_executor_plugins.executors.base import AbstractExecutor

told = AbstractExecutor.report_job_error

def listen(self, info, *words, **options):
    print("aux:", {key: value for key, value in (info.aux or {}).items() if key != "pbs"})
    told(self, info, *words, **options)

AbstractExecutor.report_job_error = listen
"""


def test_walltime_is_told_and_a_longer_retry_works(lever: Site) -> None:
    queue = '{ranges: [{nodes: [1, 1], walltime: ["0:00:01", "5:00:00"]}]}'
    site = f"base: generic\ndescription: x\ndefault_queue: workq\nqueues: {{workq: {queue}}}\n"
    (lever.folder / "site.yaml").write_text(site)
    lever.write(count=1, seconds=4, runtime="lambda wc, attempt: [3, 240][attempt - 1]")
    snakefile = lever.folder / "Snakefile"
    snakefile.write_text(LISTENER + snakefile.read_text())
    code, out = lever.snakemake("--retries", "1", "--pbs-site", "site.yaml")
    assert code == 0, out
    assert "it ran out of its walltime of 00:03:00: ask for more" in out
    assert "aux: {'cause': 'time', 'at_most': 300}" in out


def test_two_hundred_live_jobs_cost_two_commands_a_look_and_end_on_ctrl_c(
    lever: Site, pbs: StandIn
) -> None:
    pbs.config.queues["workq"].started = False
    lever.write(count=200)
    process = lever.start()
    until(lambda: len(pbs.jobs) == 200 and lever.said("Not Running: Queue not started."))
    before = len(pbs.calls)
    until(lambda: len(pbs.calls) >= before + 10)
    calls = pbs.calls[before:]
    looks = sum(name == "qselect" and "-h" not in words for _, name, words in calls)
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
    )
    memory, threads = int(status["VmRSS"].split()[0]) / 1000, int(status["Threads"])
    os.killpg(process.pid, signal.SIGINT)
    out = lever.end(process)
    assert len(calls) <= 2 * (looks + 1)
    assert memory < 300
    assert {job.state for job in pbs.jobs.values()} == {"F"}, out
    print(f"{len(calls)} commands in {looks} looks; {memory:.0f} MB, {threads} threads")
