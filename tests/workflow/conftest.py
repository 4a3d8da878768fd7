"""The demo's campaign, run once for all tests of a worker."""

import shutil
from pathlib import Path

import pytest

from support.campaign_runs import snakemake, working_folder
from support.demo import MODEL, ONE_THREAD


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's working folder after the workflow ran in it once. Tests that change it work on a
    copy.
    """
    folder = working_folder(tmp_path_factory.mktemp("demo") / "work", buckets=2)
    run = snakemake(folder, *ONE_THREAD)
    assert run.returncode == 0, run.stdout
    assert "to follow this run: plm-embed watch results" in run.stdout
    assert f"\nreport   results/{MODEL}/report.html\nnext     plm-embed summary" in run.stdout
    return folder


@pytest.fixture
def copy(demo: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(demo, tmp_path / "work"))


@pytest.fixture(scope="session")
def by_input(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same campaign, deduplicated anew by a job per input file."""
    folder = Path(shutil.copytree(demo, tmp_path_factory.mktemp("by_input") / "work"))
    run = snakemake(folder, *ONE_THREAD, deduplicate="by_input")
    assert run.returncode == 0, run.stdout
    return folder
