"""Snakemake for real, through `--executor slurm-steady`, on a stand-in for SLURM's commands."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from lean import lean_python
from standin import StandIn

pytestmark = pytest.mark.snakemake

SNAKEFILE = """
rule all:
    input: expand("out/{i}.txt", i=range(3))

rule one:
    output: "out/{i}.txt"
    log: "out/{i}.log"
    resources: runtime=1, mem_mb=100
    shell: "COMMAND"
"""
SOON = """
import snakemake.cli, snakemake_executor_plugin_slurm_steady as executor
executor.SECONDS_TO_NOTICE, executor.SECONDS_TO_BEGIN = 0.1, 5
snakemake.cli.main()
"""
PATIENCE = 300.0


class Run:
    """A working folder, and Snakemake in it."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder / "it's a $HOME & (co)"
        self.python, self.program = python, ["-m", "snakemake"]
        self.folder.mkdir(parents=True)
        self.slurm = StandIn(folder / "slurm", self.folder)
        self.write("echo $SLURMD_NODENAME > {output}")

    def write(self, command: str) -> None:
        (self.folder / "Snakefile").write_text(SNAKEFILE.replace("COMMAND", command))

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [self.python, *self.program, "--executor", "slurm-steady", "--jobs", "2"]
        command += ["--slurm-steady-jobname-prefix", "plm-embed", "--latency-wait", "20"]
        return subprocess.Popen(
            [*command, *words],
            cwd=self.folder,
            env=self.slurm.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __call__(self, *words: str) -> tuple[int, str]:
        """Return the exit status and the output."""
        process = self.start(*words)
        try:
            output, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        return process.returncode, output


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("python")
    return lean_python(folder, "executor_plugin_pbs", slurm=True)


@pytest.fixture
def run(tmp_path: Path, python: str) -> Run:
    return Run(tmp_path, python)


def wait_for(condition: object) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.1)


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """Return the output of a process, up to the line that has these words or to its end."""
    assert process.stdout
    output = ""
    for line in process.stdout:
        output += line
        if words in line:
            break
    return output


def test_jobs_run_in_a_folder_of_any_name_under_names_that_can_be_read(run: Run) -> None:
    """Snakemake starts once in each; SLURM is asked for nothing but the jobs and their states."""
    status, output = run("out/0.txt", "out/1.txt")
    assert status == 0, output
    assert len(list((run.folder / "out").glob("*.txt"))) == 2
    assert len(run.slurm.calls("sbatch")) == 2
    end = output.partition("SLURM run ID: plm-embed_")[2][:8]
    assert set(run.slurm.names()) == {f"plm-embed: one {i} {end}" for i in "01"}
    assert "slurm-jobstep" not in "".join(
        p.read_text() for p in (run.slurm.folder / "scripts").iterdir()
    )
    assert not [run.slurm.calls(name) for name in ("sacct", "sacctmgr") if run.slurm.calls(name)]
    assert not list((run.folder / ".snakemake" / "slurm_logs").rglob("*.log"))


def test_a_full_queue_is_waited_for_and_named_once(run: Run) -> None:
    (run.slurm.folder / "limit").write_text("1")
    status, output = run("--jobs", "3")
    assert status == 0, output
    assert len(run.slurm.names()) == 3
    assert output.count("QOSMaxSubmitJobPerUserLimit. The run waits, and submits later.") == 1
    assert "Error" not in output


def test_a_fault_of_the_node_is_tried_elsewhere_before_it_counts(run: Run) -> None:
    """The first job can run on n2, the second one nowhere."""
    fault = "{{ echo bad GPU > {log}; exit 75; }}"
    run.write(f"[ $SLURMD_NODENAME-{{wildcards.i}} = n2-0 ] || {fault}; touch {{output}}")
    status, output = run("out/0.txt", "out/1.txt", "--keep-going")
    assert status == 1
    assert (run.folder / "out" / "0.txt").exists()
    assert len(run.slurm.names()) == 2 + 3
    assert output.count("Error in rule") == 1
    fault = "could not work on n1 (exit status 75). Retrying on another node.\n    bad GPU"
    assert fault in output
    assert "fault of the node (exit status 75), as on the others that were tried" in output


def test_a_command_that_cannot_work_anywhere_is_not_tried_again(run: Run) -> None:
    run.write("exit 78")
    status, output = run("out/0.txt", "--retries", "3")
    assert status == 1
    assert len(run.slurm.names()) == 1
    assert "no node can do it (exit status 78). It is not tried again" in output


def test_what_sbatch_refuses_for_good_is_not_tried_again(run: Run) -> None:
    (run.slurm.folder / "refuse").write_text("sbatch: error: Invalid partition name specified")
    status, output = run("--retries", "3", "--keep-going")
    assert status == 1
    assert len(run.slurm.calls("sbatch")) == 3
    assert output.count("sbatch: Invalid partition name specified. It is not tried again") == 3
    assert "sbatch call" not in output


def test_a_job_that_can_never_start_is_cancelled_and_not_tried_again(run: Run) -> None:
    (run.slurm.folder / "waits").write_text("PartitionTimeLimit")
    status, output = run("--retries", "3", "--keep-going")
    assert status == 1
    assert len(run.slurm.names()) == len(run.slurm.calls("scancel")) == 3
    assert output.count("it can never start, and is cancelled. Ask for") == 1
    times = "(it asks for 4:00:00, and the partition gpu allows 2:00:00)"
    assert output.count(f"it can never start: PartitionTimeLimit {times}") == 3


def test_a_job_that_slurm_could_not_launch_is_submitted_again(run: Run) -> None:
    (run.slurm.folder / "waits").write_text("launch failed requeued held")
    status, output = run("out/0.txt", "--retries", "1")
    assert status == 1
    assert len(run.slurm.names()) == len(run.slurm.calls("scancel")) == 2
    assert output.count("SLURM could not start it (launch failed requeued held)") == 2


@pytest.mark.parametrize(("command", "status"), [("touch {output}", 0), ("exit 5", 1)])
def test_the_end_of_a_job_without_its_slurmstepd_is_noticed(
    command: str, status: int, run: Run
) -> None:
    run.write(command)
    (run.slurm.folder / "unnoticed").touch()
    run.program = ["-c", SOON]
    assert run("out/0.txt")[0] == status
    assert run.slurm.calls("scancel") == ["scancel 0"]


def test_a_job_whose_script_never_began_is_cancelled_and_submitted_again(run: Run) -> None:
    """Another job has left a log, so that the empty one is not merely out of sight."""
    (run.slurm.folder / "silent.1").touch()
    run.program = ["-c", SOON]
    status, output = run("out/0.txt", "out/1.txt", "--jobs", "1", "--retries", "1")
    assert status == 0, output
    assert len(run.slurm.names()) == 3
    assert run.slurm.calls("scancel") == ["scancel 1"]
    assert "without a word in its log. Its slurmstepd seems to be gone" in output


def test_where_no_log_can_be_seen_a_silent_job_is_only_named(run: Run) -> None:
    (run.slurm.folder / "silent.0").touch()
    run.program = ["-c", SOON]
    process = run.start("out/0.txt")
    try:
        output = read_until(process, "If its node is lost: scancel 0")
        assert "If its node is lost: scancel 0" in output
        assert not run.slurm.calls("scancel")
        (run.slurm.folder / "jobs" / "0").write_text("CANCELLED||None\n")
        assert process.wait(PATIENCE) == 1
    finally:
        process.kill()


def test_a_job_that_a_killed_controller_brings_back_is_cancelled_at_the_end(run: Run) -> None:
    again = "cp $HERE/names/0 $HERE/names/9; echo 'RUNNING|n1|None' > $HERE/jobs/9"
    run.write(f"{again}; touch {{output}}")
    status, output = run("out/0.txt")
    assert status == 0, output
    assert run.slurm.calls("scancel") == ["scancel 9"]


def test_what_was_taken_without_an_answer_is_cancelled_and_submitted_again(run: Run) -> None:
    (run.slurm.folder / "lost").touch()
    status, output = run("out/0.txt")
    assert status == 0, output
    end = output.partition("SLURM run ID: plm-embed_")[2][:8]
    assert run.slurm.names() == [f"plm-embed: one 0 {end}"] * 2
    assert run.slurm.calls("scancel") == ["scancel 0"]
    assert output.count("Socket timed out. The run waits, and submits later.") == 1


def test_a_job_that_cannot_be_cancelled_fails_and_hangs_nothing(run: Run) -> None:
    (run.slurm.folder / "lost").touch()
    (run.slurm.folder / "keep").write_text("scancel: error: Kill job error: Access denied")
    status, output = run("out/0.txt")
    assert status == 1
    assert len(run.slurm.names()) == 1
    assert "message: scancel: Kill job error: Access denied" in output


@pytest.mark.parametrize("reader", ["stays", "ends first"])
def test_ctrl_c_cancels_the_jobs_of_the_run_and_sends_no_more(reader: str, run: Run) -> None:
    """A reader that ends first: as in `snakemake ... 2>&1 | tee log`."""
    (run.slurm.folder / "waits").write_text("Priority")
    process = run.start()
    try:
        wait_for(lambda: len(run.slurm.names()) == 2)
        if reader == "ends first":
            assert process.stdout
            process.stdout.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) != 0
    finally:
        process.kill()
    assert len(run.slurm.names()) == 2
    (cancel,) = run.slurm.calls("scancel")
    assert cancel == "scancel 0 1"


def test_ctrl_c_ends_a_run_that_waits_to_submit(run: Run) -> None:
    (run.slurm.folder / "limit").write_text("0")
    process = run.start()
    try:
        read_until(process, "The run waits, and submits later")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) != 0
    finally:
        process.kill()
    assert not run.slurm.names()


def test_sigterm_lets_the_jobs_end_and_sends_no_more(run: Run) -> None:
    run.write("while ! test -e stop; do sleep 0.1; done; touch {output}")
    process = run.start("--jobs", "1")
    try:
        wait_for(run.slurm.names)
        process.send_signal(signal.SIGTERM)
        output = read_until(process, "Will exit after finishing currently running jobs")
        (run.folder / "stop").touch()
        process.wait(timeout=PATIENCE)
    finally:
        process.kill()
        (run.folder / "stop").touch()
    assert "Will exit after finishing currently running jobs" in output
    assert len(list((run.folder / "out").glob("*.txt"))) == 1
    assert len(run.slurm.names()) == 1
    assert not run.slurm.calls("scancel")


def test_job_arrays_are_refused_in_one_line(run: Run) -> None:
    status, output = run("--slurm-steady-array-jobs", "one")
    assert status == 1
    assert "slurm-steady submits each job by itself" in output
    assert "Traceback" not in output
    assert not run.slurm.names()
