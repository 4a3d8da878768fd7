"""Fixed-size values for every record, on a disk that has no room for them."""

import errno
import resource
from pathlib import Path

import numpy as np
import pytest

from plm_embed.master.record_places import RecordTable


def test_zero_at_first_and_bounded_by_the_disk(tmp_path: Path) -> None:
    table = RecordTable(tmp_path, 1000, np.int64)
    assert len(table.values) == 1000 and not table.values.any()
    table.close()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(OSError) as error:
            RecordTable(tmp_path, 1 << 20, np.int64)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.errno == errno.EFBIG
