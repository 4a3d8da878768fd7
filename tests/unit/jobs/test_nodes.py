"""Submissions over several nodes: how each is started, and whole ones where the nodes are process
trees.
"""

import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.jobs.nodes import allocated_hosts, commands, on_all_nodes
from plm_embed.jobs.submission import read_submission
from support.submissions import published, records, start, wait_for_parts, write_buckets

HERE = socket.gethostname()
PALS = """#!/bin/sh
[ "$1" = --help ] && { echo "  --abort-on-failure, --no-abort-on-failure"; exit; }
exit 3
"""
REMOTE = """#!/bin/sh
host=$1; shift
if [ "$host" = dies ]; then
  "$@" & job=$!
  until grep -qs "\"pid\": \"$job\"" $CLAIMS/*; do kill -0 $job || exit; sleep 0.05; done
  kill -9 $job; pkill -9 -P $job; exit 9
fi
if [ "$host" = hangs ]; then exec sleep 600.25; fi
export NODE_SCRATCH=$NODES/$host
if [ "$host" = slow ]; then
  setsid "$@" & job=$!
  while sleep 0.2; kill -STOP -$job 2>/dev/null; do sleep 0.2; kill -CONT -$job; done
  wait $job; exit
fi
if [ "$host" = broken ]; then
  export CUDA_VISIBLE_DEVICES=98,99
  exec "$1" "$2" "$3 --device cuda"
fi
exec "$@"
"""


def tool(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def test_hosts_of_the_job_once_each_in_order(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("x3001.polaris\nx3001.polaris\nx3002.polaris\n")
    assert allocated_hosts({"PBS_NODEFILE": str(nodes)}) == ["x3001.polaris", "x3002.polaris"]
    assert allocated_hosts({"PBS_NODEFILE": str(tmp_path / "absent")}) == []
    assert allocated_hosts({}) == []


def test_pals_mpiexec_is_told_not_to_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tmp_path / "bin", "mpiexec", PALS)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    (words,) = commands(["a", "b"], ["python", "-m", "plm_embed"], {"TMPDIR": "/tmp"}, ["a", "b"])
    assert words[:2] == ["mpiexec", "--no-abort-on-failure"]
    assert words[words.index("-n") + 1] == "2" and words[words.index("--ppn") + 1] == "1"
    # not the long one that PALS sets
    assert words[-5:] == ["env", "TMPDIR=/tmp", "python", "-m", "plm_embed"]


def test_other_mpiexecs_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path / "bin", "mpiexec", "#!/bin/sh\necho usage\n")
    tool(tmp_path / "bin", "pbs_tmrsh", REMOTE)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    here, there = commands([HERE, "other"], ["python", "a b"], {"PATH": "/x y"}, [HERE, "other"])
    assert here == ["python", "a b"]
    assert there[:4] == ["pbs_tmrsh", "other", "/bin/sh", "-c"]
    assert there[4] == f"cd {Path.cwd()} && exec env 'PATH=/x y' python 'a b'"


def test_without_pbs_tmrsh_it_is_pbsdsh_which_counts_hosts_by_the_node_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tmp_path / "bin", "pbsdsh", REMOTE)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    _, there = commands([HERE, "other"], ["python", "a b"], {}, [HERE, HERE, "other", "other"])
    assert there == [
        "pbsdsh",
        "-n",
        "2",
        "--",
        "/bin/sh",
        "-c",
        f"cd {Path.cwd()} && exec env python 'a b'",
    ]


def test_nothing_to_start_it_with_is_said_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PlmEmbedError, match="nothing here starts a process on other"):
        commands([HERE, "other"], ["python"], {}, [HERE, "other"])


def test_too_few_nodes_are_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PBS_NODEFILE", raising=False)
    with pytest.raises(
        PlmEmbedError, match=r"2 nodes asked for, the job has 0 \(PBS_NODEFILE is not set\)"
    ):
        on_all_nodes(2, [], tmp_path / "done.json")


@pytest.mark.workflow
def test_a_signal_to_the_launcher_stops_every_node_in_order(tmp_path: Path, prepared: Path) -> None:
    tool(tmp_path / "bin", "pbs_tmrsh", REMOTE)
    (tmp_path / "nodes").write_text(f"{HERE}\nlives\n")
    buckets = write_buckets(tmp_path, 500, 500)
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "PBS_NODEFILE": str(tmp_path / "nodes")}
    with start(
        tmp_path, prepared, buckets, "--nodes", "2", "--flush-minutes", "0.001", **environment
    ) as job:
        wait_for_parts(tmp_path)
        job.terminate()
        job.wait(timeout=300)
        when_it_ended = published(tmp_path)
        # ends when the nodes' processes, too, have closed the pipe
        _, errors = job.communicate(timeout=300)
    assert job.returncode == 1
    assert "stopped by a signal" in errors and "Traceback" not in errors
    before = published(tmp_path)
    assert 0 < before < 1000
    assert when_it_ended == before  # the job may end with it, and all that still publish
    assert not (tmp_path / "done.json").exists()
    with start(tmp_path, prepared, buckets) as again:
        _, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    done = records(tmp_path).values()
    assert all(record.found + record.computed == 500 for record in done)
    # what was published was not computed again
    assert sum(record.found for record in done) >= before


@pytest.mark.workflow
@pytest.mark.parametrize("other", ["lives", "dies", "hangs", "slow", "broken"])
def test_two_nodes_of_which_one_lives_dies_hangs_is_slow_or_has_no_gpu(
    tmp_path: Path, prepared: Path, other: str
) -> None:
    """Each with a scratch of its own."""
    tool(tmp_path / "bin", "pbs_tmrsh", REMOTE)
    (tmp_path / "nodes").write_text(f"{HERE}\n{other}\n")
    buckets = write_buckets(tmp_path, 160, 150, 140, 130, 20, 20)
    with tempfile.TemporaryDirectory(prefix="n") as scratch:
        for node in ("here", other):
            (Path(scratch) / node).mkdir()
        environment = {
            "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
            "PBS_NODEFILE": str(tmp_path / "nodes"),
            "PBS_JOBID": "7.server",
            "NODES": scratch,
            "CLAIMS": str(tmp_path / "claims"),
            "NODE_SCRATCH": f"{scratch}/here",
        }
        workers = "2" if other in {"lives", "broken"} else "1"
        options = ("--nodes", "2", "--workers", workers, "--flush-minutes", "0.01")
        options += ("--scratch", "$NODE_SCRATCH")
        before = (Path(scratch) / other).stat().st_mtime_ns
        with start(tmp_path, prepared, buckets, *options, **environment) as job:
            try:
                _, errors = job.communicate(timeout=400)
            finally:
                if other == "hangs":
                    subprocess.run(["pkill", "-f", "sleep 600.25"], check=False)
        used = (Path(scratch) / other).stat().st_mtime_ns > before
        # a node that is given up cleans up no more
        given_up = other == "dies" or "a node does not answer" in errors
        left = [] if given_up else list(Path(scratch).glob("*/*"))
    assert job.returncode == 0, errors
    assert not left
    assert used == (other == "lives") or other in {"dies", "slow"}
    done = records(tmp_path)
    assert len(done) == 6
    summary = read_submission(tmp_path / "done.json")
    assert summary.buckets == tuple(f"{i:04d}" for i in range(6))
    assert sum(share.buckets for share in summary.workers) == 6
    assert sum(record.unique for record in done.values()) == 620
    if other in {"lives", "slow", "broken"}:
        assert published(tmp_path) == 620  # nothing twice
    if other == "hangs":
        assert "a node does not answer" in errors
    if other == "broken":
        # said by each of its workers, before any claim
        assert errors.count("no usable CUDA device") >= 2
        assert 1 <= len(summary.workers) <= 2
