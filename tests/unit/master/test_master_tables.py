"""Outcomes of all records, on a disk that has no room for them."""

import errno
import resource
from pathlib import Path

import pytest

from plm_embed.master.campaign import read_campaign
from plm_embed.master.tables import Tables
from support.campaigns import make_campaign


def test_outcomes_are_bounded_by_the_disk(tmp_path: Path) -> None:
    made = make_campaign(tmp_path)
    campaign = read_campaign(made.sequences, made.embedded, made.store)
    assert sum(map(len, Tables(campaign, tmp_path).records())) == 90
    assert not list(tmp_path.glob("tmp*"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        with pytest.raises(OSError) as error:
            Tables(campaign, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.errno == errno.EFBIG
