"""Campaigns through the PBS profiles: on the plugin's stand-in, or with PBS_TEST_REAL=1 on the PBS
of this machine.

On a real PBS also set PBS_TEST_DIR and PBS_TEST_ARGS as for the plugin's own tests
(executors/pbs/README.md), and PBS_TEST_NODES to the number of nodes that a job can have, if that is
more than one.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import pytest

from support.campaign_runs import ROOT, snakemake, snakemake_command, working_folder
from support.demo import GATHERED
from support.shared import once

sys.path.insert(0, str(ROOT / "executors" / "pbs" / "tests"))

from lean import lean_python
from standin import Config, StandIn

REMOTE = """#!/bin/sh
# what pbs_tmrsh does, for nodes that all are this machine
shift
exec env -i PATH=/usr/bin:/bin "$@"
"""
REAL = shutil.which("qsub") if os.environ.get("PBS_TEST_REAL") else None
QUICK = [
    "--pbs-status-interval",
    "1",
    "--pbs-unknown-seconds",
    "5",
    "--latency-wait",
    "5",
    "--jobs",
    "8",
]
ANY_PBS = "generic-pbs"
"""The profile for any PBS, one GPU for a job."""
ON_CPU = ("embed:device=cpu", "embed:flush_minutes='0.01'")


def pytest_report_header() -> str:
    """Name the PBS of the campaigns, so that nobody takes one for the other."""
    if REAL is None and os.environ.get("PBS_TEST_REAL"):
        pytest.exit("PBS_TEST_REAL is set, and there is no qsub on PATH", returncode=1)
    return (
        f"PBS: {f'the real one of {REAL}' if REAL else 'the stand-in, as PBS_TEST_REAL is not set'}"
    )


@dataclass
class Campaign:
    """The demo's campaign in a folder of its own."""

    folder: Path
    results: str = "results"

    @property
    def vectors(self) -> Path:
        return self.folder / self.results / "esm2_t3_untrained"

    def master(self) -> dict[str, bytes]:
        """All data of the master, bit by bit."""
        with h5py.File(self.vectors / "master_esm2_embeddings.h5", locking=False) as file:
            return {
                name: file[name][...].tobytes() for name in ("emb", "emb_keys", "length", "windows")
            }

    def command(self, profile: str, *options: str, **config: object) -> list[str]:
        """The options end with what is asked of embed, for which the profile then is not read."""
        chosen = [
            "--profile",
            str(ROOT / "profiles" / profile),
            *QUICK,
            *shlex.split(os.environ.get("PBS_TEST_ARGS", "")),
            *options,
        ]
        if "--set-resources" not in options:
            chosen += ["--set-resources", "embed:gpu=1"]
        return snakemake_command(self.folder, *chosen, *ON_CPU, **({"buckets": 2} | config))

    def run(self, profile: str, *options: str, **config: object) -> str:
        """Run to the end, which must be a good one; what Snakemake said."""
        command = self.command(profile, *options, **config)
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900)
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
def any_pbs(request: pytest.FixtureRequest) -> None:
    """The real one if there is one. For tests that pull no levers of the server."""
    if REAL is None:
        request.getfixturevalue("pbs")


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return lean_python(tmp_path_factory.mktemp("python"))


@pytest.fixture
def lean(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snakemake starts faster, here and in jobs of the stand-in."""
    if REAL is None:
        monkeypatch.setattr(sys, "executable", python)


@pytest.fixture
def campaign(undisturbed: Campaign, tmp_path: Path) -> Campaign:
    """A campaign to come, which has its weights already."""
    folder = tempfile.mkdtemp(dir=os.environ.get("PBS_TEST_DIR", tmp_path))
    found = Campaign(working_folder(Path(folder) / "campaign"))
    found.vectors.mkdir(parents=True)
    shutil.copy2(undisturbed.vectors / "weights.json", found.vectors)
    return found


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """The same campaign on this machine, without a scheduler, in one bucket."""

    def make(folder: Path) -> None:
        done = snakemake(working_folder(folder), GATHERED, "--cores", "2", buckets=1)
        assert done.returncode == 0, done.stdout

    return Campaign(once(tmp_path_factory, "undisturbed_pbs", make))
