"""How the first node of a job starts the others."""

import socket
from pathlib import Path

import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.jobs.nodes import (
    allocated_hosts,
    commands,
    node_number,
    other_hosts,
    start_others,
)

HERE = socket.gethostname()
PALS = """#!/bin/sh
[ "$1" = --help ] && { echo "  --abort-on-failure, --no-abort-on-failure"; exit; }
exit 3
"""
REMOTE = "#!/bin/sh\n"


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
    (there,) = commands(["other"], ["python", "a b"], {"PATH": "/x y"}, [HERE, "other"])
    assert there[:4] == ["pbs_tmrsh", "other", "/bin/sh", "-c"]
    assert there[4] == f"cd {Path.cwd()} && exec env 'PATH=/x y' python 'a b' --node 1"


def test_without_pbs_tmrsh_it_is_pbsdsh_which_counts_hosts_by_the_node_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tmp_path / "bin", "pbsdsh", REMOTE)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    (there,) = commands(["other"], ["python", "a b"], {}, [HERE, HERE, "other", "other"])
    assert there == [
        "pbsdsh",
        "-n",
        "2",
        "--",
        "/bin/sh",
        "-c",
        f"cd {Path.cwd()} && exec env python 'a b' --node 1",
    ]


def test_nothing_to_start_it_with_is_said_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PlmEmbedError, match="nothing here starts a process on other"):
        commands(["other"], ["python"], {}, [HERE, "other"])


def test_too_few_nodes_are_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PBS_NODEFILE", raising=False)
    with pytest.raises(
        PlmEmbedError, match=r"2 nodes asked for, the job has 0 \(PBS_NODEFILE is not set\)"
    ):
        start_others(2, [])


def test_this_host_is_known_by_its_name_else_it_is_the_first() -> None:
    assert other_hosts(["a", f"{HERE}.site", "b"]) == ["a", "b"]
    assert other_hosts(["x1-hsn0", "x2-hsn0"]) == ["x2-hsn0"]


def test_which_node_it_is_says_the_option_or_mpiexec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALS_RANKID", "2")
    assert node_number(None) == 3  # the first node is none of its ranks
    assert node_number(1) == 1
