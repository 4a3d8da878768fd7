from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_embed.keys import KEY
from plm_embed.sequences.sorting import KeySorter

SCHEMA = pa.schema([("key", KEY), ("number", pa.int64()), ("sequence", pa.string())])
KEYS = st.one_of(
    st.binary(min_size=32, max_size=32),
    st.sampled_from(
        [bytes(32), b"\xff" * 32, bytes(31) + b"\x01", b"\xff" * 31 + b"\xfe", b"\x80" + bytes(31)]
    ),
)


def rows(keys: list[bytes], first: int) -> pa.RecordBatch:
    numbers = pa.array(range(first, first + len(keys)))
    return pa.record_batch(
        [pa.array(keys, KEY), numbers, pa.array([key.hex() for key in keys])], schema=SCHEMA
    )


def run(batches: list[list[bytes]], memory: int, folder: Path) -> list[pa.RecordBatch]:
    """Sort batches of keys, numbered through; check that no file is left."""
    number = 0
    total = sum(map(len, batches))
    sorter = KeySorter(folder, memory, lambda: number / total)
    for keys in batches:
        batch = rows(keys, number)
        number += len(keys)
        sorter.add(batch)
    found = list(sorter.sorted())
    assert not list(folder.iterdir())
    return found


def check(batches: list[list[bytes]], found: list[pa.RecordBatch]) -> None:
    keys = [key for batch in batches for key in batch]
    expected = sorted(zip(keys, range(len(keys)), strict=True))
    table = pa.Table.from_batches(found, SCHEMA).to_pylist()
    assert [(row["key"], row["number"]) for row in table] == expected
    seen: set[bytes] = set()
    for row in table:
        assert row["sequence"] == (None if row["key"] in seen else row["key"].hex())
        seen.add(row["key"])


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.lists(KEYS, min_size=1, max_size=30), max_size=12),
    st.sampled_from([500, 3000, 10**6]),
)
def test_rows_come_back_sorted_and_each_sequence_once(
    batches: list[list[bytes]], memory: int
) -> None:
    with TemporaryDirectory() as folder:
        check(batches, run(batches, memory, Path(folder)))


@pytest.mark.parametrize("frequent", [bytes(32), b"\x42" * 32])
def test_a_key_that_alone_exceeds_the_memory_is_streamed(tmp_path: Path, frequent: bytes) -> None:
    others = list(map(bytes, np.random.default_rng(0).integers(0, 256, (400, 32), dtype=np.uint8)))
    batches = [[frequent] * 50 + others[4 * number : 4 * number + 4] for number in range(100)]
    found = run(batches, 40_000, tmp_path)
    check(batches, found)
    assert max(batch.nbytes for batch in found) < 40_000


def test_memory_bounds_what_is_sorted_at_a_time(tmp_path: Path) -> None:
    keys = np.random.default_rng(1).integers(0, 256, (20_000, 32), dtype=np.uint8)
    batches = [[bytes(key) for key in part] for part in np.array_split(keys, 100)]
    memory = 200_000
    found = run(batches, memory, tmp_path)
    check(batches, found)
    assert sum(batch.nbytes for batch in found) > 10 * memory
    assert max(batch.nbytes for batch in found) < memory / 3
