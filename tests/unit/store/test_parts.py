"""Parts: they give back exactly what was written, in bytes that depend on nothing else."""

import os
import time
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import Fingerprint
from plm_embed.keys import key
from plm_embed.store.hdf5 import Extent, decode, encode, take_bits
from plm_embed.store.parts import DamagedPartError, Part, PartRows, write_part
from support.campaigns import DIM, EVERYTHING, MEAN, part_rows, vectors

SEQUENCES = ["MKV", "ACDEFGHIK", "WWWW", "M" * 50, "GG", "LLLLLK"]
FLOAT32 = replace(MEAN, storage_dtype="float32")
KEYS = np.sort(np.array([key(sequence) for sequence in SEQUENCES], dtype="S64"))


@given(st.lists(st.floats(width=32, allow_nan=True), min_size=1))
def test_bits_are_what_torch_rounds_to(values: list[float]) -> None:
    numbers = np.array(values, dtype=np.float32)
    for name in ("float16", "float32", "bfloat16"):
        expected = torch.from_numpy(numbers).to(getattr(torch, name)).float().numpy()
        found = decode(encode(numbers, name), name).astype(np.float32)
        np.testing.assert_array_equal(found, expected)


def test_bfloat16_is_a_float_to_h5py(tmp_path: Path) -> None:
    fingerprint = replace(MEAN, storage_dtype="bfloat16")
    write_part(tmp_path / "part.h5", part_rows(SEQUENCES, fingerprint), fingerprint, {})
    order = sorted(SEQUENCES, key=key)
    expected = np.stack([vectors(sequence, MEAN)["mean_l3"] for sequence in order])
    with h5py.File(tmp_path / "part.h5") as file:
        dataset = file["representations/mean_l3"]
        assert dataset.id.get_type().get_size() == 2
        assert dataset.dtype == np.float32
        rounded = torch.from_numpy(expected).bfloat16().float().numpy()
        np.testing.assert_array_equal(dataset[...], rounded)


def test_a_part_keeps_scores_in_float32(tmp_path: Path) -> None:
    """Whatever the vectors are stored in; a part lacks none, and has no other ones."""
    path, rows = tmp_path / "part.h5", part_rows(SEQUENCES, MEAN)
    fingerprint = replace(MEAN, scores=("entropy",), head_sha256="0" * 64)
    entropy = np.linspace(1, 2, len(SEQUENCES), dtype=np.float32) / 3
    write_part(path, replace(rows, scores={"entropy": entropy}), fingerprint, {})
    expected = entropy[np.argsort(rows.keys)]
    with Part(path) as part:
        assert np.array_equal(part.column_at("entropy", np.arange(6)), expected)
    content = bytearray(path.read_bytes())
    content[content.index(expected.tobytes())] ^= 1
    path.write_bytes(content)
    with Part(path) as part, pytest.raises(DamagedPartError, match="row 0 of entropy"):
        part.column_at("entropy", np.arange(6))
    for scores in ({}, {"entropy": entropy, "log_likelihood": entropy}):
        with pytest.raises(ValueError, match="vectors for"):
            write_part(path, replace(rows, scores=scores), fingerprint, {})


@pytest.mark.parametrize(
    "fingerprint", [MEAN, EVERYTHING, replace(EVERYTHING, storage_dtype="float32")]
)
def test_part_gives_back_what_was_written(tmp_path: Path, fingerprint: Fingerprint) -> None:
    path = tmp_path / "part.h5"
    write_part(path, part_rows(SEQUENCES, fingerprint), fingerprint, {"worker": "CPU"})
    order, every = sorted(SEQUENCES, key=key), np.arange(6)
    windows = [2 if len(text) > 40 and fingerprint != MEAN else 1 for text in order]
    with Part(path) as part:
        part.check(fingerprint)
        assert (part.keys == KEYS).all() and part.count == 6
        assert part.column_at("length", every).tolist() == [*map(len, order)]
        assert part.column_at("windows", every).tolist() == windows
        assert part.provenance == {"worker": "CPU"}
        assert part.dims == dict.fromkeys(fingerprint.representations, DIM)
        for name in fingerprint.representations:
            for row, values in zip((4, 1, 1, 5), part.rows(name, [4, 1, 1, 5]), strict=True):
                expected = vectors(order[row], fingerprint)[name]
                np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-3)


def test_equal_rows_in_any_order_give_equal_bytes(tmp_path: Path) -> None:
    write_part(tmp_path / "one.h5", part_rows(SEQUENCES, EVERYTHING), EVERYTHING, {"a": 1, "b": 2})
    time.sleep(1 - time.time() % 1)  # a time stamp would show
    write_part(
        tmp_path / "two.h5", part_rows(SEQUENCES[::-1], EVERYTHING), EVERYTHING, {"b": 2, "a": 1}
    )
    assert (tmp_path / "one.h5").read_bytes() == (tmp_path / "two.h5").read_bytes()


def test_rows_that_do_not_fit_together_are_a_bug(tmp_path: Path) -> None:
    good, matrices = part_rows(SEQUENCES, MEAN), part_rows(SEQUENCES, EVERYTHING)
    vectors = good.representations["mean_l3"]
    shorter = [matrix[1:] for matrix in matrices.representations["per_residue_l3"]]
    mixed = {**matrices.representations, "per_residue_l3": shorter}
    for rows, fingerprint in (
        (part_rows([], replace(MEAN, pooling=())), MEAN),
        (part_rows(["MKV", "MKV"], MEAN), MEAN),
        (replace(good, length=good.length[1:]), MEAN),
        (replace(good, representations={"max_l3": vectors}), MEAN),
        (replace(good, representations={"mean_l3": vectors[1:]}), MEAN),
        (replace(matrices, representations=mixed), EVERYTHING),
    ):
        with pytest.raises(ValueError):
            write_part(tmp_path / "part.h5", rows, fingerprint, {})


def test_a_file_that_is_no_part_has_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "part.h5"
    with pytest.raises(PlmEmbedError, match=r"part\.h5: cannot be read"):
        Part(path)
    path.write_text("no")
    with pytest.raises(DamagedPartError, match=r"part\.h5: damaged, or not a file of embeddings"):
        Part(path)


def numbered(path: Path, count: int, dim: int) -> None:
    """A part of `count` rows, each of `dim` times its number."""
    keys = np.array([f"{row:064x}" for row in range(count)], dtype="S64")
    ones = np.ones(count, dtype=np.int32)
    values = np.repeat(np.arange(count, dtype=np.float32)[:, None], dim, axis=1)
    write_part(path, PartRows(keys, ones, ones, {"mean_l3": values}), FLOAT32, {})


RUNS = st.lists(st.tuples(st.integers(0, 9_999), st.integers(1, 5000)), max_size=8)


@given(runs=RUNS, step=st.sampled_from([1, 2, 5, 50]))
@settings(max_examples=25, deadline=None)
def test_any_rows_are_taken_exactly(
    runs: list[tuple[int, int]], step: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "numbers.h5"
    if not path.exists():
        numbered(path, 10_000, 2)
    parts = [np.arange(first, min(first + count, 10_000), step) for first, count in runs]
    rows = np.unique(np.concatenate([[0], *parts]))
    with Part(path) as part:
        for bits in (
            take_bits(part.vectors["mean_l3"], rows),
            part.unchecked_bits("mean_l3", rows),
        ):
            assert (bits.view("<f4") == rows[:, None]).all()
        assert (part.locate(part.keys[rows]) == rows).all()


def test_vectors_that_hdf5_has_scattered_are_read_as_well(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "any.h5", "w") as file:
        scattered = file.create_dataset("a", (4, 2), "<f4", chunks=(1, 2))
        for row in (2, 0, 3, 1):
            scattered[row] = row  # its space is allocated now
        assert Extent.of(scattered) is None
        assert Extent.of(file.create_dataset("b", data=np.ones((4, 2)))) is None


def test_a_part_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "part.h5"
    numbered(path, 2000, 64)
    with Part(path) as part:
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(DamagedPartError, match=r"part\.h5: damaged.*ends at byte"):
            part.unchecked_bits("mean_l3", np.arange(2000))
