"""The demo's campaign, run once for all tests, a folder where nothing ran yet, and a small disk."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.campaign_runs import ROOT, snakemake_command, working_folder
from support.demo import ONE_THREAD
from support.shared import once


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's working folder after the workflow ran in it once. Tests that change it, or run
    Snakemake in it, work on a copy.
    """

    def make(folder: Path) -> None:
        command = snakemake_command(working_folder(folder, buckets=2), *ONE_THREAD)
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr

    return once(tmp_path_factory, "demo", make)


@pytest.fixture
def copy(demo: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(demo, tmp_path / "work"))


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the shipped configuration and its inputs."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    for name in ("PATH", "PYTHONPATH"):  # the Snakefile extends them
        monkeypatch.setenv(name, os.environ[name])
    return tmp_path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("only root may mount a small filesystem")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
