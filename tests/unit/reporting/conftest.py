"""A finished campaign that these tests read, and copy where they change it."""

import shutil
from pathlib import Path

import pytest

from support.finished import finished_campaign


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its results folder."""
    return finished_campaign(tmp_path_factory.mktemp("campaign"))


@pytest.fixture
def copy(results: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(results, tmp_path / "results"))
