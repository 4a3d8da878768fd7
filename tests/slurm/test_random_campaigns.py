"""What `random_campaigns.py` lets happen, at chosen instants: where nothing but to wait, or to
repeat, is asked for.
"""

from pathlib import Path
from random import Random

import pytest
from cluster import Cluster
from disturbances import (
    Disturbance,
    controller_killed,
    disk_full,
    edit_config,
    kill_batch_slurmstepd,
    once_computing,
)
from random_campaigns import disturbed, make_undisturbed
from slurm_campaign import Campaign


@pytest.fixture(scope="module")
def small(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return make_undisturbed(cluster, tmp_path_factory.mktemp("small") / "c")[0]


@pytest.mark.parametrize(
    ("planned", "company"),
    [([disk_full], ""), ([controller_killed, kill_batch_slurmstepd], ""), ([edit_config], "clone")],
    ids=["full disk", "controller and slurmstepd", "edited configuration, two in one clone"],
)
def test_the_same_command_again_ends_with_the_same_results(
    small: Campaign, tmp_path: Path, planned: list[Disturbance], company: str
) -> None:
    result = disturbed(
        small,
        tmp_path / "c",
        [(0, once_computing(each)) for each in planned],
        random=Random(1),
        company=company,
    )
    assert len(result.told) >= len(planned) + bool(company), f"not all happened: {result}"
    assert not result.wrong, result
    assert not result.again, result
