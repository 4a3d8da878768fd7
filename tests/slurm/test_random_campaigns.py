"""Disturbances of `random_campaigns.py` at a chosen instant."""

from random import Random

from disturbances import controller_killed, disk_full, kill_batch_slurmstepd, once_computing
from random_campaigns import disturbed
from slurm_campaign import GATHERED, Campaign


def test_the_same_command_again_ends_with_the_same_results(
    campaign: Campaign, undisturbed: Campaign
) -> None:
    """The disk with the results is full, the controller is killed and comes back, and so is the
    slurmstepd of a batch script.
    """
    planned = [disk_full, controller_killed, kill_batch_slurmstepd]
    result = disturbed(
        [campaign],
        undisturbed,
        [(0, once_computing(each)) for each in planned],
        random=Random(1),
        target=GATHERED,
    )
    assert len(result.told) >= len(planned), f"not all happened: {result}"
    assert not result.wrong, result
    assert not result.again, result
