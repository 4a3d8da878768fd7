"""A value for every record, on a disk that has no room for them."""

import errno
import resource
from pathlib import Path

import numpy as np
import pytest

from plm_embed.master.outcomes import RecordTable
from support.campaigns import make_campaign


def test_zero_at_first_and_bounded_by_the_disk(tmp_path: Path) -> None:
    sequences = make_campaign(tmp_path).sequences
    table = RecordTable(sequences, tmp_path, np.int64)
    assert len(table.values) == 90 + len(table.sources) and not table.values.any()
    assert not list(tmp_path.glob("tmp*"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        with pytest.raises(OSError) as error:
            RecordTable(sequences, tmp_path, np.int64)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.errno == errno.EFBIG
