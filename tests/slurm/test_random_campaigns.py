"""What `random_campaigns.py` lets happen, at chosen instants: where nothing but to wait, or to repeat, is asked for."""

from pathlib import Path
from random import Random

import pytest
from disturbances import controller_killed, disk_fails, disk_full, edit_config, kill_slurmstepd, once_computing
from random_campaigns import Disturbance, disturbed
from slurm_campaign import Campaign


@pytest.mark.parametrize(
    ("planned", "company"),
    [([disk_full], ""), ([disk_fails], ""), ([controller_killed, kill_slurmstepd], ""), ([edit_config], "clone")],
    ids=["full disk", "read-only disk", "controller and slurmstepd", "edited configuration, two in one clone"],
)
def test_the_same_command_again_ends_with_the_same_results(
    undisturbed: Campaign, tmp_path: Path, planned: list[Disturbance], company: str
) -> None:
    result = disturbed(
        undisturbed, tmp_path / "c", [(0, once_computing(each)) for each in planned], random=Random(1), company=company
    )
    assert not result.wrong, result
    assert not result.again, result
