"""Vectors moved past HDF5 arrive where HDF5 would have put them."""

import os
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_embed.errors import PlmEmbedError
from plm_embed.io.threads import OneAtATime
from plm_embed.store import rawio
from plm_embed.store.hdf5 import connect, create_vectors, write_bits
from plm_embed.store.rawio import Extents, Scatter, extents, read_scattered, write_block

EDGES = np.array([0, 20, 21, 60])


@pytest.fixture(scope="module")
def scattered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Extents, np.ndarray]:
    """A file whose 100 rows of three numbers lie in four pieces, the second before the first."""
    rows = np.arange(300, dtype=np.uint16).reshape(100, 3)
    zero = np.array([1000, 2, 1100, 1200])
    path = tmp_path_factory.mktemp("raw") / "rows"
    path.write_bytes(b"\0" * 4000)
    where = Extents(EDGES, zero, 6)
    with path.open("r+b") as file:
        for number, row in enumerate(rows):
            file.seek(int(where.places(np.array([number]))[0]))
            file.write(row.tobytes())
    return path, where, rows


@settings(max_examples=40)
@given(st.data())
def test_any_rows_go_to_any_places(scattered, data) -> None:
    path, where, rows = scattered
    cuts = sorted(data.draw(st.sets(st.integers(0, 100), min_size=2)))
    wanted = [span for span in pairwise(cuts) if data.draw(st.booleans())]
    order = data.draw(st.permutations(range(len(wanted))))
    at = np.zeros(len(wanted), dtype=np.int64)
    expected, filled = [], 0
    for number in order:
        at[number] = filled
        expected.append(rows[slice(*wanted[number])])
        filled += len(expected[-1])
    starts, counts = (
        (
            np.array(each, dtype=np.int64)
            for each in zip(*[(a, b - a) for a, b in wanted], strict=True)
        )
        if (wanted)
        else (at, at)
    )
    block = np.zeros((filled, 3), dtype=np.uint16)
    read_scattered(path, where, Scatter(starts, counts, at), block)
    np.testing.assert_array_equal(block, np.concatenate([block[:0], *expected]))


@given(st.integers(0, 99), st.integers(1, 100))
def test_a_block_is_written_over_the_pieces(
    tmp_path_factory, scattered, row: int, count: int
) -> None:
    _, where, rows = scattered
    path = tmp_path_factory.mktemp("raw") / "rows"
    path.write_bytes(b"\0" * 4000)
    block = rows[row : row + count].copy()
    descriptor = os.open(path, os.O_WRONLY)
    write_block(descriptor, where, row, block)
    os.close(descriptor)
    found = np.zeros_like(rows)
    everything = Scatter(np.arange(100), np.ones(100, dtype=np.int64), np.arange(100))
    read_scattered(path, where, everything, found)
    expected = np.zeros_like(rows)
    expected[row : row + count] = block
    np.testing.assert_array_equal(found, expected)


def test_many_rows_one_by_one_and_a_file_that_ends_too_early(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(rawio, "_PIECES", 7)
    bits = np.random.default_rng(1).integers(0, 1 << 16, (70_000, 2), dtype=np.uint16)
    with connect(tmp_path / "x.h5", "w") as file:
        dataset = create_vectors(file, "x", bits.shape, "float16")
        write_bits(dataset, 0, bits)
        where = extents(dataset)
        assert where is not None and len(where.rows) > 1  # HDF5 puts its own notes in between
    rows = np.arange(5, 70_000, 11)
    block = np.empty((len(rows), 2), dtype=np.uint16)
    wanted = Scatter(rows, np.ones_like(rows), np.arange(len(rows))[::-1].copy())
    read_scattered(tmp_path / "x.h5", where, wanted, block)
    np.testing.assert_array_equal(block[::-1], bits[rows])
    os.truncate(tmp_path / "x.h5", (tmp_path / "x.h5").stat().st_size // 2)
    with pytest.raises(PlmEmbedError, match="ends too early"):
        read_scattered(tmp_path / "x.h5", where, wanted, block)


@pytest.mark.parametrize("at", [-1, 98])
def test_no_memory_outside_of_the_block_is_written(scattered, at: int) -> None:
    path, where, _ = scattered
    block = np.zeros((100, 3), dtype=np.uint16)
    with pytest.raises(ValueError, match="do not fit"):
        read_scattered(path, where, Scatter(np.array([5]), np.array([3]), np.array([at])), block)
    with pytest.raises(ValueError, match="do not fit"):
        read_scattered(
            path, where, Scatter(np.array([5]), np.array([3]), np.array([0])), block[:, :2]
        )


def test_what_does_not_lie_plainly_in_the_file_is_left_to_hdf5(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["contiguous"] = np.zeros((3, 4))
        file.create_dataset("compressed", data=np.zeros((3, 4)), compression="gzip")
        file.create_dataset("narrow", data=np.zeros((3, 4)), chunks=(3, 2))
        file.create_dataset("partly", dtype="f4", shape=(4, 4), chunks=(2, 4))[:2] = 1
        file.create_dataset("empty", dtype="f4", shape=(0, 4), maxshape=(None, 4), chunks=(2, 4))
        assert [extents(dataset) for dataset in file.values()] == [None] * 5


def test_an_error_beside_is_the_callers_error() -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    with OneAtATime() as beside:
        beside.run(fail)
        with pytest.raises(OSError, match="No space"):
            beside.run(fail)
