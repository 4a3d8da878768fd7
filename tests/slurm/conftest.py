"""The SLURM suite: a cluster for the whole session, or one for each worker of pytest-xdist, and the
word that it was left out where there can be none.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, missing
from daemons import NODES
from slurm_campaign import Campaign

from support.shared import once

sys.path.insert(0, str(Path(__file__).parents[2] / "executors" / "pbs" / "tests"))

from lean import lean_python

REASON = pytest.StashKey[str]()


def pytest_itemcollected(item: pytest.Item) -> None:
    if Path(__file__).parent in item.path.parents:
        item.add_marker(pytest.mark.slurm)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the suite out where it cannot run; in continuous integration that is an error."""
    suite = [item for item in items if item.get_closest_marker("slurm")]
    reason = missing() if suite else None
    if reason is not None:
        if os.environ.get("CI") == "true":
            raise pytest.UsageError(f"the SLURM suite cannot run: {reason}")
        config.stash[REASON] = reason
        config.hook.pytest_deselected(items=suite)
        items[:] = [item for item in items if item not in suite]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if REASON in config.stash:
        terminalreporter.write_line(f"The SLURM suite was left out: {config.stash[REASON]}.")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    python = lean_python(tmp_path_factory.mktemp("python"), "executor_plugin_pbs", slurm=True)
    with Cluster() as running:
        running.python = python
        yield running


@pytest.fixture(scope="session")
def undisturbed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """A campaign that nothing disturbed, through all rules, validated; on whichever cluster asked
    for it first.
    """

    def make(folder: Path) -> None:
        campaign, lean = Campaign(folder, cluster), cluster.python
        cluster.python = sys.executable  # once all as users have it
        with campaign.running():
            pass
        cluster.python = lean
        assert set(map(tuple, campaign.states().values())) == {("COMPLETED",)}
        assert campaign.computed_again() == 0
        assert not [
            path for node in NODES for path in (cluster.folder / "scratch" / node).iterdir()
        ]

    return Campaign(once(tmp_path_factory, "undisturbed_slurm", make), cluster)


@pytest.fixture
def embedding(cluster: Cluster, undisturbed: Campaign, tmp_path: Path) -> Callable[..., Campaign]:
    """Makes the campaign of a test, of which SLURM is left to embed; with one bucket, one job."""

    def make(*, buckets: int = 1, **options: Any) -> Campaign:
        campaign = Campaign(tmp_path / "c", cluster, buckets=buckets, **options)
        campaign.adopt(undisturbed)
        return campaign

    return make


@pytest.fixture
def campaign(embedding: Callable[..., Campaign]) -> Campaign:
    """Return the campaign of one job."""
    return embedding()
