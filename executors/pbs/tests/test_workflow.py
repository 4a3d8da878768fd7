"""Snakemake for real, through `--executor pbs`: on the stand-in, or with PBS_TEST_REAL=1 on the PBS
of this machine.

On a real PBS also set PBS_TEST_DIR to a folder that the nodes share, and PBS_TEST_ARGS to what the
site needs, for instance `--pbs-site polaris --pbs-account NAME`. Tests that pull levers of the
server use the stand-in in any case.
"""

import os
import re
from pathlib import Path

import pytest

from lean import lean_python
from shell import run, until
from sites import SNAKEFILE, UNTIL_GO, Site
from standin import Queue, StandIn

pytestmark = pytest.mark.pbs


def test_a_workflow_runs_to_its_end(site: Site) -> None:
    site.write(count=2)
    code, out = site.snakemake()
    assert code == 0, out
    assert site.outputs() == ["0.txt", "1.txt"]
    assert site.submissions() == 2
    assert (
        site.folder / "out" / "0.txt"
    ).stat().st_mode & 0o777 == 0o666 & ~umask()  # not the 0077 of PBS
    logs = sorted((site.folder / ".snakemake" / "pbs_logs" / "one").glob("one-0-*.log"))
    assert len(logs) == 1
    assert "Finished jobid" in logs[0].read_text()
    assert not site.left()


def umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def test_a_failed_job_is_told_and_its_retry_is_a_new_submission(site: Site) -> None:
    site.write(count=1, shell="test -e flag && touch {output} || {{ touch flag; exit 1; }}")
    code, out = site.snakemake("--retries", "1")
    assert code == 0, out
    assert site.submissions() == 2
    assert "a rule's command failed" in out
    assert "(Exit_status 1)" in out
    assert re.search(r"Its log: \S+/\.snakemake/pbs_logs/one/one-0-", out)


def two_queues(lever: Site, first: str, second: str) -> None:
    """Ask for another queue in each of two jobs."""
    path = lever.folder / "Snakefile"
    queue = f"mem_mb=400, pbs_queue=lambda wildcards: [{first!r}, {second!r}][int(wildcards.i)]"
    path.write_text(path.read_text().replace("mem_mb=400", queue))


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


def test_commands_that_take_other_options_end_the_run_in_words(
    lever: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = lever.folder / "bin" / "qselect"
    wrapper.parent.mkdir()
    wrapper.write_text("#!/bin/sh\necho 'qselect: illegal option -- u' >&2; exit 2\n")
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", str(wrapper.parent), prepend=":")
    lever.write(count=2)
    code, out = lever.snakemake()
    assert code == 1
    assert "fails: qselect: illegal option -- u. The PBS executor needs the commands of PBS" in out
    assert 'File "' not in out


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
    lever = Site(folder, [], lean_python(tmp_path / ODD / ".venv"))
    text = SNAKEFILE.format(count=1, seconds=0, shell="echo $PBS_JOBID > {output:q}", runtime="60")
    (folder / "Snakefile").write_text(text.replace('"out/', "\"out größe (it's) & so; [x] $HOME/"))
    try:
        code, out = lever.snakemake()
    finally:
        lever.stop()
    assert code == 0, out
    assert (folder / "out größe (it's) & so; [x] $HOME" / "0.txt").read_text() == "1.pbs01\n"
    assert len(pbs.jobs) == 1
    # qsub takes no other letters in -o
    logs = list((tmp_path / "home" / ".snakemake" / "pbs_logs").rglob("*.log"))
    assert len(logs) == 1


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


def test_what_the_site_would_refuse_never_reaches_qsub(lever: Site, pbs: StandIn) -> None:
    lever.write(count=1)
    code, out = lever.snakemake("--pbs-site", "polaris", "--set-resources", "one:runtime=3")
    assert code == 1
    assert "not submitted, ALCF Polaris would refuse or lose it" in out
    assert "an account is needed" in out
    assert "the job asks for 1 node for 00:03:00" in out
    assert not pbs.jobs


def test_walltime_is_told_beside_the_job_and_a_longer_retry_works(lever: Site) -> None:
    lever.write(count=1, seconds=4, runtime="lambda wc, attempt: [3, 240][attempt - 1]")
    code, out = lever.snakemake("--retries", "1")
    assert code == 0, out
    assert re.search(
        r"Error in rule one:\n    message: PBS job 1.pbs01 failed: it ran out of its walltime of "
        r"00:03:00: ask for more",
        out,
    )


def test_why_a_job_was_lost_is_told_beside_it(lever: Site, pbs: StandIn) -> None:
    lever.write(count=2, shell=UNTIL_GO)
    process = lever.start("--keep-going")
    for number in (1, 2):
        pbs.wait_for(number, "R")
    run("qdel -W force 1; qdel 2", lever.folder)
    out = lever.end(process)
    assert process.returncode == 1
    for number, words in ((1, "it was killed by force"), (2, "it was deleted or preempted")):
        message = rf"Error in rule one:\n    message: PBS job {number}.pbs01 failed: {words}"
        assert re.search(message, out), out
    assert not lever.left()


def test_why_a_group_failed_is_told(lever: Site) -> None:
    lever.write(count=2, shell="exit 3")
    code, out = lever.snakemake("--groups", "one=pair", "--group-components", "pair=2")
    assert code == 1
    assert "PBS job 1.pbs01 failed: a rule's command failed" in out
    assert "Error in group" in out


def test_polaris_by_its_server_gets_whole_nodes(
    lever: Site, pbs: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that would leave GPUs idle is refused with the remedy, which helps."""
    monkeypatch.setenv("PBS_DEFAULT", "polaris-pbs-01")
    pbs.config.queues["preemptable"] = Queue("preemptable")
    lever.write(count=1)
    options = ["--pbs-account", "mine", "--set-resources", "one:runtime=60"]
    code, out = lever.snakemake(*options, "one:gpu=1")
    assert code == 1
    assert "PBS site: polaris, by the PBS server polaris-pbs-01." in out
    assert "the job would leave 3 of them idle: ask for gpu=4 (set-resources in the profile)" in out
    assert not pbs.jobs
    code, out = lever.snakemake(*options, "one:gpu=4")
    assert code == 0, out
    assert "-q preemptable -A mine -l select=1:system=polaris -l place" in pbs.jobs[1].arguments
    assert "-l filesystems=home:eagle" in pbs.jobs[1].arguments
