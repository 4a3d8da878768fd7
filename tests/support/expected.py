"""What the reference says of a made-up campaign."""

from plm_embed.master.spot_checks import Vectors, expect
from support.campaigns import Campaign, reference


def computed(campaign: Campaign, count: int = 5) -> dict[str, Vectors]:
    """What the reference says of some of its sequences."""
    fingerprint = campaign.fingerprint
    return expect(campaign.sequences, campaign.weights, fingerprint, count, reference)
