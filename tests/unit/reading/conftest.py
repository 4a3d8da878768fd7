"""A campaign with every representation, and its master as opened."""

import pytest

import plm_embed
from support.campaigns import EVERYTHING, Campaign, gathered_campaign


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return gathered_campaign(tmp_path_factory.mktemp("reader"), fingerprint=EVERYTHING)


@pytest.fixture
def embeddings(campaign: Campaign):
    with plm_embed.open(campaign.master) as embeddings:
        yield embeddings
