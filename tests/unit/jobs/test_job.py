"""`plm-embed embed` as processes: what it promises when it is stopped, killed, short of time, or on
several nodes.
"""

import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.jobs.heartbeat import heartbeats
from plm_embed.jobs.other_nodes import node_number, start_nodes
from support.jobs import (
    finish,
    make_bucket,
    published,
    record_of,
    start,
    wait_for_parts,
)

pytestmark = pytest.mark.workflow
HERE = socket.gethostname()
OFTEN = ("--flush-minutes", "0.001")
ENDLESS = 20_000
"""Sequences of a job that is stopped for good: minutes of work, so that no pause of this process
lets it end first.
"""


def children(parent: int) -> list[int]:
    """Return the processes of the parent's workers (not of multiprocessing's resource tracker)."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            ours = status.read_text().rsplit(")", 1)[1].split()[1] == str(parent)
            if ours and b"spawn_main" in (status.parent / "cmdline").read_bytes():
                found.append(int(status.parent.name))
        except OSError:
            continue
    return found


def test_a_stopped_job_loses_no_part(tmp_path: Path, prepared: Path) -> None:
    make_bucket(tmp_path, 1000)
    with start(tmp_path, prepared, *OFTEN) as job:
        wait_for_parts(tmp_path)
        job.terminate()
        _, errors = job.communicate(timeout=300)
    assert not (tmp_path / "embedded" / "0000.json").exists()
    assert job.returncode == 1
    assert "stopped by a signal" in errors and "Traceback" not in errors
    (first,) = heartbeats(tmp_path)
    assert first.outcome == "failed" and "stopped by a signal" in first.reason
    assert 0 < first.fraction < 1
    before = published(tmp_path)
    assert 0 < before < 1000
    finish(start(tmp_path, prepared))
    record = record_of(tmp_path)
    assert (record.found, record.computed, record.unique) == (before, 1000 - before, 1000)
    last = heartbeats(tmp_path)[-1]
    assert last.tokens == last.tokens_total == first.tokens_total


def test_ctrl_c_while_a_worker_starts_shows_no_traceback(tmp_path: Path, prepared: Path) -> None:
    """It reaches all processes of a terminal."""
    make_bucket(tmp_path, 10)
    with start(tmp_path, prepared) as job:
        while not children(job.pid):
            time.sleep(0.01)
        while job.poll() is None:  # its imports take a second
            os.killpg(job.pid, signal.SIGINT)
            time.sleep(0.1)
        _, errors = job.communicate(timeout=300)
    assert job.returncode and "Traceback" not in errors


def test_a_worker_does_not_outlive_its_parent(tmp_path: Path, prepared: Path) -> None:
    make_bucket(tmp_path, ENDLESS)
    with start(tmp_path, prepared, *OFTEN) as job:
        wait_for_parts(tmp_path)
        job.kill()
        # ends when the worker, too, has closed its end of the pipe
        _, errors = job.communicate(timeout=300)
    assert "the job was killed" in errors
    assert 0 < published(tmp_path) < ENDLESS


def test_what_a_killed_worker_had_is_done_by_the_others(tmp_path: Path, prepared: Path) -> None:
    make_bucket(tmp_path, 400)
    job = start(tmp_path, prepared, *OFTEN, "--workers", "2")
    wait_for_parts(tmp_path)
    os.kill(children(job.pid)[0], signal.SIGKILL)
    words = finish(job)
    assert "a worker was killed (signal 9; out of memory?)" in words
    assert published(tmp_path) == record_of(tmp_path).unique == 400


def test_no_time_left_is_said_and_what_is_finished_is_kept(tmp_path: Path, prepared: Path) -> None:
    make_bucket(tmp_path, 70)
    words = finish(start(tmp_path, prepared, "--minutes", "0.0001", SLURM_JOB_ID="7"), 1)
    assert "70 sequences not embedded:\n  no time left (ask for a longer runtime)" in words
    assert not (tmp_path / "embedded" / "0000.json").exists()
    # outside of a scheduler's job there is no limit
    finish(start(tmp_path, prepared, "--minutes", "0.0001", SLURM_JOB_ID="", PBS_JOBID=""))
    assert published(tmp_path) == 70


def test_a_file_beside_the_input_stands_for_no_module(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bucket(tmp_path, 20)
    for name in ("random", "plm_embed", "h5py"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('executed')\n")
    monkeypatch.chdir(tmp_path)
    finish(start(tmp_path, prepared))
    assert published(tmp_path) == 20


def test_a_fault_of_the_node_has_a_status_of_its_own(tmp_path: Path, prepared: Path) -> None:
    make_bucket(tmp_path, 20)
    words = finish(start(tmp_path, prepared, "--scratch", "/not/there"), 75)
    assert "plm-embed: unfinished: " in words and "/not/there: no such folder" in words
    (beat,) = heartbeats(tmp_path)
    assert beat.outcome == "failed" and "no such folder" in beat.reason


def test_what_no_attempt_can_do_has_a_status_of_its_own(tmp_path: Path, prepared: Path) -> None:
    make_bucket(tmp_path, 5)
    hidden = start(tmp_path, prepared, "--device", "cuda", CUDA_VISIBLE_DEVICES="-1", PBS_JOBID="7")
    assert "plm-embed: error: no usable CUDA device on " in finish(hidden, 78)


REMOTE = """host=$1; shift
if [ "$host" = dies ]; then
  "$@" & job=$!
  until ls $JOBS/*-1.json; do kill -0 $job || exit; sleep 0.05; done > /dev/null 2>&1
  kill -9 $job; pkill -9 -P $job; exit 9
fi
export NODE_SCRATCH=$NODES/$host
exec "$@"
"""


def tool(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}")
    (folder / name).chmod(0o755)


def on_two(folder: Path, other: str) -> dict[str, str]:
    """Return the environment of a job on this node and another one."""
    tool(folder / "bin", "pbs_tmrsh", REMOTE)
    (folder / "nodes").write_text(f"{HERE}\n{other}\n")
    return {
        "PATH": f"{folder}/bin:/usr/bin:/bin",
        "PBS_NODEFILE": str(folder / "nodes"),
        "PBS_JOBID": "7.server",
        "JOBS": str(folder / "embedded" / "jobs"),
    }


def test_two_nodes_share_a_bucket(tmp_path: Path, prepared: Path) -> None:
    """Each with a scratch of its own."""
    make_bucket(tmp_path, 120)
    with tempfile.TemporaryDirectory(prefix="n") as scratch:
        for node in ("here", "lives"):
            (Path(scratch) / node).mkdir()
        places = {"NODES": scratch, "NODE_SCRATCH": f"{scratch}/here"}
        options = ("--nodes", "2", "--workers", "2", "--scratch", "$NODE_SCRATCH")
        finish(start(tmp_path, prepared, *options, **on_two(tmp_path, "lives"), **places))
        assert not list(Path(scratch).glob("*/*"))
    record = record_of(tmp_path)
    assert published(tmp_path) == record.unique == record.computed == 120  # nothing twice
    assert 2 <= len(record.workers) <= 4  # one that starts late may have nothing to do
    beats = heartbeats(tmp_path)
    assert [(beat.node, beat.outcome) for beat in beats] == [(0, "complete"), (1, "complete")]
    assert sum(worker.computed for beat in beats for worker in beat.workers) == 120
    assert all(beat.tokens == beat.tokens_total for beat in beats)
    assert not list(tmp_path.glob("embedded/jobs/*.npy"))


def test_what_a_lost_node_leaves_is_done_by_the_next_attempt(
    tmp_path: Path, prepared: Path
) -> None:
    make_bucket(tmp_path, 120)
    words = finish(start(tmp_path, prepared, "--nodes", "2", **on_two(tmp_path, "dies")), 1)
    assert "other nodes ended with 9" in words
    assert 60 <= published(tmp_path) < 120
    finish(start(tmp_path, prepared))
    record = record_of(tmp_path)
    assert published(tmp_path) == record.unique == 120
    assert finish(start(tmp_path, prepared)).splitlines()[-1].endswith("is done already")
    assert record_of(tmp_path) == record


def test_a_signal_stops_every_node_in_order(tmp_path: Path, prepared: Path) -> None:
    make_bucket(tmp_path, ENDLESS)
    environment = on_two(tmp_path, "lives") | {"NODES": "", "NODE_SCRATCH": ""}
    with start(tmp_path, prepared, "--nodes", "2", *OFTEN, **environment) as job:
        while len(list(tmp_path.glob("embedded/jobs/2*.json"))) < 2 and job.poll() is None:
            time.sleep(0.025)
        job.send_signal(signal.SIGINT)  # to this process alone
        job.wait(timeout=300)
        when_it_ended = published(tmp_path)
        # ends when the nodes' processes, too, have closed the pipe
        _, errors = job.communicate(timeout=300)
    assert job.returncode == 1
    assert "stopped by a signal" in errors and "Traceback" not in errors
    assert when_it_ended == published(tmp_path) < ENDLESS  # the job may end with it, and all nodes
    assert not (tmp_path / "embedded" / "0000.json").exists()


NOTE = 'printf "%s\\n" "$@" > "$0.$1"\n'
PALS = 'if [ "$1" = --help ]; then echo "  --no-abort-on-failure"; exit; fi\n' + NOTE
COMMAND = [sys.executable, "-P", "-m", "plm_embed", "embed", "a b"]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder where programs are found."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("PBS_NODEFILE", "PBS_JOBID", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def started(tools: Path, monkeypatch: pytest.MonkeyPatch, *hosts: str) -> list[list[str]]:
    """Start the command on all of these hosts. Returns how the tools were called."""
    (tools / "nodes").write_text("\n".join(host for host in hosts for _ in range(2)))
    monkeypatch.setenv("PBS_NODEFILE", str(tools / "nodes"))
    for process in start_nodes(len(hosts), COMMAND[4:]):
        assert process.wait(60) == 0
    return [path.read_text().splitlines() for path in sorted(tools.glob("*.*"))]


def test_pals_mpiexec_is_told_not_to_end_the_others(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tools, "mpiexec", PALS)
    monkeypatch.setenv("TMPDIR", "/tmp")
    (words,) = started(tools, monkeypatch, f"{HERE}.site", "x1", "x2")
    assert words[:5] == ["--no-abort-on-failure", "-n", "2", "--ppn", "1"]
    assert words[5:7] == ["--hosts", "x1,x2"]
    assert words[-8:] == ["env", "TMPDIR=/tmp", *COMMAND]  # not the long one that PALS sets


def test_other_mpiexecs_are_not_used(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tools, "mpiexec", "echo usage")
    tool(tools, "pbs_tmrsh", NOTE)
    monkeypatch.setenv("PBS_JOBID", "7 .server")
    # no host has the name of this one, which is then the first
    first, second = started(tools, monkeypatch, "x0-hsn0", "x1-hsn0", "x2-hsn0")
    assert (first[:3], second[:3]) == (["x1-hsn0", "/bin/sh", "-c"], ["x2-hsn0", "/bin/sh", "-c"])
    assert first[3].startswith(f"cd {Path.cwd()} && exec env PATH={tools} ")
    assert f" 'PBS_JOBID=7 .server' {sys.executable} -P -m plm_embed embed 'a b' " in first[3]
    assert (first[3][-8:], second[3][-8:]) == ("--node 1", "--node 2")


def test_nothing_to_start_it_with_is_said_in_words(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PlmEmbedError, match="cannot start a process on x1"):
        started(tools, monkeypatch, HERE, "x1")


@pytest.mark.usefixtures("tools")
def test_too_few_nodes_are_said_in_words() -> None:
    words = r"the job has 0 of 2 nodes \(PBS_NODEFILE is not set\)"
    with pytest.raises(PlmEmbedError, match=words):
        start_nodes(2, [])


def test_mpiexec_says_which_node_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALS_RANKID", "2")
    assert node_number() == 3  # the first node is none of its ranks
