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
from plm_embed.keys import key
from plm_embed.store.hdf5 import Extent, decode, encode, flat_rows, take_bits
from plm_embed.store.parts import DamagedPartError, Part, PartRows, write_part
from support.campaigns import EVERYTHING, MEAN, part_rows, vectors

SEQUENCES = ["MKV", "ACDEFGHIK", "WWWW", "M" * 50, "GG", "LLLLLK"]
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
    expected = torch.from_numpy(
        np.stack([vectors(sequence, MEAN)["mean_l3"] for sequence in order])
    )
    with h5py.File(tmp_path / "part.h5") as file:
        dataset = file["representations/mean_l3"]
        assert dataset.id.get_type().get_size() == 2
        assert dataset.dtype == np.float32
        np.testing.assert_array_equal(dataset[...], expected.bfloat16().float().numpy())


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
def test_part_gives_back_what_was_written(tmp_path: Path, fingerprint) -> None:
    path = tmp_path / "part.h5"
    write_part(path, part_rows(SEQUENCES, fingerprint), fingerprint, {"worker": "CPU"})
    order = sorted(SEQUENCES, key=key)
    indices = np.array([4, 1, 1, 5])
    with Part(path) as part:
        part.check(fingerprint)
        assert (part.keys == KEYS).all()
        assert part.column_at("length", np.arange(part.count)).tolist() == [
            len(sequence) for sequence in order
        ]
        assert part.column_at("windows", np.arange(part.count)).tolist() == [
            2 if len(seq) > 40 and fingerprint != MEAN else 1 for seq in order
        ]
        assert part.provenance == {"worker": "CPU"}
        for name in fingerprint.representations:
            for at, found in zip(indices, part.rows(name, indices), strict=True):
                np.testing.assert_allclose(
                    found, vectors(order[at], fingerprint)[name], rtol=1e-3, atol=1e-3
                )


def test_equal_rows_in_any_order_give_equal_bytes(tmp_path: Path) -> None:
    write_part(tmp_path / "one.h5", part_rows(SEQUENCES, EVERYTHING), EVERYTHING, {"a": 1, "b": 2})
    time.sleep(1 - time.time() % 1)  # a time stamp would show
    write_part(
        tmp_path / "two.h5", part_rows(SEQUENCES[::-1], EVERYTHING), EVERYTHING, {"b": 2, "a": 1}
    )
    assert (tmp_path / "one.h5").read_bytes() == (tmp_path / "two.h5").read_bytes()


def test_rows_that_do_not_fit_together_are_a_bug(tmp_path: Path) -> None:
    good = part_rows(SEQUENCES, MEAN)
    for bad in (
        part_rows([], replace(MEAN, pooling=())),
        part_rows(["MKV", "MKV"], MEAN),
        replace(good, length=good.length[1:]),
        replace(good, representations={"max_l3": good.representations["mean_l3"]}),
        replace(good, representations={"mean_l3": good.representations["mean_l3"][1:]}),
    ):
        with pytest.raises(ValueError):
            write_part(tmp_path / "part.h5", bad, MEAN, {})
    two = part_rows(SEQUENCES, EVERYTHING)
    shorter = [matrix[1:] for matrix in two.representations["per_residue_l3"]]
    with pytest.raises(ValueError, match="differ in their numbers of rows"):
        mixed = replace(
            two, representations=dict(two.representations) | {"per_residue_l3": shorter}
        )
        write_part(tmp_path / "part.h5", mixed, EVERYTHING, {})


def test_a_file_that_is_no_part_has_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "part.h5"
    with pytest.raises(PlmEmbedError, match=r"part\.h5: cannot be read"):
        Part(path)
    path.write_text("no")
    with pytest.raises(DamagedPartError, match=r"part\.h5: damaged, or not a file of embeddings"):
        Part(path)


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_rows_are_taken_exactly(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "numbers.h5"
    count = 10_000
    if not path.exists():
        values = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
        fingerprint = replace(MEAN, storage_dtype="float32")
        keys = np.array([f"{at:064x}" for at in range(count)], dtype="S64")
        ones = np.ones(count, dtype=np.int32)
        write_part(path, PartRows(keys, ones, ones, {"mean_l3": values}), fingerprint, {})
    runs = data.draw(
        st.lists(st.tuples(st.integers(0, count - 1), st.integers(1, 5000)), max_size=8)
    )
    steps = data.draw(st.sampled_from([1, 2, 5, 50]))
    rows = np.unique(
        np.concatenate(
            [np.arange(first, min(first + n, count), steps) for first, n in [*runs, (0, 1)]]
        )
    )
    with Part(path) as part:
        for bits in (
            take_bits(part.vectors["mean_l3"], rows),
            part.unchecked_bits("mean_l3", rows),
        ):
            np.testing.assert_array_equal(bits.view("<f4")[:, 1], 2 * rows + 1)
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
    ones = np.ones(2000, dtype=np.int32)
    keys = np.array([f"{at:064x}" for at in range(2000)], dtype="S64")
    values = np.ones((2000, 64), dtype=np.float32)
    write_part(path, PartRows(keys, ones, ones, {"mean_l3": values}), MEAN, {})
    with Part(path) as part:
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(DamagedPartError, match=r"part\.h5: damaged.*ends at byte"):
            part.unchecked_bits("mean_l3", np.arange(2000))


def test_flat_rows_of_sequences() -> None:
    assert flat_rows(np.array([3, 0]), np.array([4, 3])).tolist() == [3, 4, 5, 6, 0, 1, 2]
    assert flat_rows(np.array([3]), np.array([0])).tolist() == []
