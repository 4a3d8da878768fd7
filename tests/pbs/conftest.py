"""Campaigns through the PBS profiles, on the stand-in for PBS that the executor plugin's own tests use."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import pytest

from campaign_runs import ROOT, snakemake, snakemake_command, working_folder

sys.path.insert(0, str(ROOT / "executors" / "pbs" / "tests"))

from standin import Config, StandIn

REMOTE = """#!/bin/sh
# what pbs_tmrsh does, for nodes that all are this machine
shift
exec env -i PATH=/usr/bin:/bin "$@"
"""
QUICK = ["--pbs-status-interval", "1", "--pbs-unknown-seconds", "5", "--latency-wait", "5", "--jobs", "8"]
CONFIG = {"buckets": 4, "speed": {"device": "cpu", "flush_minutes": 0.01}}


@dataclass
class Campaign:
    """The demo's campaign in a folder of its own."""

    folder: Path

    @property
    def vectors(self) -> Path:
        return self.folder / "results" / "esm2_t3_untrained"

    def master(self) -> dict[str, bytes]:
        """All data of the master, bit by bit."""
        with h5py.File(self.vectors / "master_esm2_embeddings.h5", locking=False) as file:
            return {name: file[name][...].tobytes() for name in ("emb", "emb_keys", "length", "windows")}

    def command(self, profile: str, *options: str, **config: object) -> list[str]:
        chosen = ["--profile", str(ROOT / "profiles" / profile), *QUICK, *options]
        return snakemake_command(self.folder, *chosen, **(CONFIG | config))

    def run(self, profile: str, *options: str, **config: object) -> str:
        """Run to the end, which must be a good one; what Snakemake said."""
        command = self.command(profile, *options, **config)
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A PBS of ten nodes with four GPUs each, its commands on PATH."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "pbs_tmrsh").write_text(REMOTE)
    (tools / "pbs_tmrsh").chmod(0o755)
    with StandIn(Config(kill_delay=1)) as standin:
        for folder in (tools, standin.bin):
            monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
        yield standin


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    return Campaign(working_folder(tmp_path / "campaign"))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """The same campaign on this machine, without a scheduler."""
    found = Campaign(working_folder(tmp_path_factory.mktemp("local") / "campaign"))
    done = snakemake(found.folder, "--cores", "2", **CONFIG)
    assert done.returncode == 0, done.stdout
    return found
