"""Work that grows with buckets and parts, counted, not timed: folders listed, files looked at."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from plm_embed.keys import bucket_bounds
from plm_embed.store.store import PartList

BUCKETS, PARTS = 300, 2000


@contextmanager
def calls(folder: Path, *names: str) -> Iterator[Counter[str]]:
    """Counts calls of functions of `os` on a folder and what is below; they go on to do their work.

    Elsewhere a first import, another test's thread or a warning may look at files too.
    """
    found: Counter[str] = Counter()
    real = {name: getattr(os, name) for name in names}

    def counting(name: str):  # type: ignore[no-untyped-def]
        def call(*arguments, **options):  # type: ignore[no-untyped-def]
            if arguments and Path(str(arguments[0])).is_relative_to(folder):
                found[name] += 1
            return real[name](*arguments, **options)

        return call

    with patch.multiple(os, **{name: counting(name) for name in names}):
        yield found


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """A folder with the names of parts, of all widths, of which none is a file to be opened."""
    folder = tmp_path / "parts"
    folder.mkdir()
    random = np.random.default_rng(3)
    for number in range(PARTS):
        first = int(random.integers(0, 1 << 32))
        last = min((1 << 32) - 1, first + int(2 ** random.uniform(0, 32)))
        (folder / f"{first:08x}-{last:08x}-3-{number:016x}.h5").touch()
    return folder


def test_one_listing_serves_all_buckets_and_finds_every_part(parts: Path) -> None:
    names = sorted(path.name for path in parts.iterdir())
    bounds = bucket_bounds(BUCKETS)
    with calls(parts, "listdir", "scandir", "open") as made:
        listed = PartList(parts)
        found = [
            listed.between(f"{low:016x}".ljust(64, "0"), f"{high - 1:016x}".ljust(64, "f"))
            for low, high in pairwise(bounds)
        ]
    assert made == {"listdir": 1}
    for (low, high), chosen in zip(pairwise(bounds), found, strict=True):
        first, last = f"{low >> 32:08x}", f"{(high - 1) >> 32:08x}"
        wanted = [name for name in names if name[:8] <= last and first <= name[9:17]]
        assert [path.name for path in chosen] == wanted
