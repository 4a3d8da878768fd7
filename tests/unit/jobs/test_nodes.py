"""How the first node of a job starts the same command on the others: by tools that note what they
were called with.
"""

import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.jobs.job import Job, start_nodes

HERE = socket.gethostname()
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


def tool(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}")
    (folder / name).chmod(0o755)


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
    with pytest.raises(PlmEmbedError, match="nothing here starts a process on x1"):
        started(tools, monkeypatch, HERE, "x1")


@pytest.mark.usefixtures("tools")
def test_too_few_nodes_are_said_in_words() -> None:
    words = r"2 nodes asked for, the job has 0 \(PBS_NODEFILE is not set\)"
    with pytest.raises(PlmEmbedError, match=words):
        start_nodes(2, [])


def test_which_node_it_is_says_the_option_or_mpiexec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALS_RANKID", "2")
    job = Job(*[Path()] * 4, workers=1, share=Path("x.npy"))
    assert job.number == 3  # the first node is none of its ranks
    assert replace(job, node=1).number == 1
    assert replace(job, share=None).number == 0
