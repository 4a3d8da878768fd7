"""The store: what is published is whole, found by key, and never computed again."""

import hashlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.keys import bucket_bounds, key
from plm_embed.reading.open import Embeddings
from plm_embed.store.parts import Part, PartInfo, write_part
from plm_embed.store.store import PartList, Store, read_fingerprint
from support.campaigns import DIM, MEAN, part_rows, publish

SEQUENCES = ["MKV", "ACDEFGHIK", "WWWW", "M" * 50, "GG", "LLLLLK"]
KEYS = np.sort(np.array([key(sequence) for sequence in SEQUENCES], dtype="S64"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", MEAN)


def test_published_keys_are_not_missing(store: Store) -> None:
    assert store.missing(KEYS).all()
    publish(store, SEQUENCES[:3])
    publish(store, SEQUENCES[2:5])
    assert store.missing(KEYS).tolist() == [name.decode() == key(SEQUENCES[5]) for name in KEYS]
    assert store.missing(KEYS[:0]).tolist() == []
    assert store.missing(np.array(["0" * 64, "f" * 64], dtype="S64")).all()


def test_a_part_bears_its_range_its_rows_and_its_hash(store: Store) -> None:
    publish(store, SEQUENCES)
    (path,) = store.parts_folder.iterdir()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.name == f"{KEYS[0].decode()[:8]}-{KEYS[-1].decode()[:8]}-6-{digest[:16]}.h5"
    info = PartInfo(path.name, 6, path.stat().st_size, digest)
    assert Store(store.folder.parent, MEAN).covering(KEYS) == [info]


def test_one_listing_serves_all_buckets_and_finds_every_part(tmp_path: Path) -> None:
    """Names alone decide: no part is opened, and the folder's other files are not named."""
    random = np.random.default_rng(3)
    names = [".tmp-1234-00000000-0fffffff-3-0123456789abcdef.h5", "notes.txt"]
    for number in range(500):
        first = int(random.integers(0, 1 << 32))
        last = min((1 << 32) - 1, first + int(2 ** random.uniform(0, 32)))
        names.append(f"{first:08x}-{last:08x}-3-{number:016x}.h5")
    folder = tmp_path / "parts"
    folder.mkdir()
    for name in (*names, f"{names[-1]}.damaged"):
        (folder / name).touch()
    parts = PartList(folder)
    shutil.rmtree(folder)
    for low, high in pairwise(bucket_bounds(300)):
        first, last = f"{low:016x}".ljust(64, "0"), f"{high - 1:016x}".ljust(64, "f")
        expected = [name for name in names[2:] if name[:8] <= last[:8] and first[:8] <= name[9:17]]
        assert parts.between(first, last) == [folder / name for name in sorted(expected)]


def test_covering_leaves_out_parts_without_any_of_the_keys(store: Store) -> None:
    publish(store, sorted(SEQUENCES, key=key)[::2])
    publish(store, sorted(SEQUENCES, key=key)[1::2])
    assert len(store.covering(KEYS)) == 2
    (info,) = store.covering(KEYS[1:2])
    with Part(store.parts_folder / info.name) as part:
        assert KEYS[1] in part.keys


def test_publishing_the_same_part_at_the_same_time_does_no_harm(
    store: Store, tmp_path: Path
) -> None:
    local = tmp_path / "local.h5"
    write_part(local, part_rows(SEQUENCES, MEAN), MEAN, {})
    with ThreadPoolExecutor(8) as pool:
        infos = list(pool.map(lambda _: store.publish(local), range(16)))
    assert len(set(infos)) == 1
    assert [path.name for path in store.parts_folder.iterdir()] == [infos[0].name]
    assert not store.missing(KEYS).any()


@pytest.mark.parametrize("size", [0, 100, -1000, -1])
def test_a_truncated_part_is_set_aside_and_its_keys_are_missing(
    store: Store, size: int, caplog
) -> None:
    publish(store, SEQUENCES[:3])
    (path,) = store.parts_folder.iterdir()
    path.write_bytes(path.read_bytes()[: size if size >= 0 else path.stat().st_size + size])
    publish(store, SEQUENCES[3:])
    assert store.missing(KEYS).sum() == 3
    assert path.with_name(path.name + ".damaged").exists() and not path.exists()
    assert path.name in caplog.text
    publish(store, SEQUENCES[:3])
    assert not store.missing(KEYS).any()


def test_a_part_that_is_no_part_is_set_aside(store: Store) -> None:
    publish(store, SEQUENCES)
    (path,) = store.parts_folder.iterdir()
    whole = path.read_bytes()
    for name, value in (
        ("representations/mean_l3", None),
        ("representations/mean_l3", np.zeros((6, DIM), "f2")),
        ("representations/mean_l3", np.zeros((6, DIM), "f8")),
        ("emb_keys", KEYS[:0]),
        ("emb_keys", KEYS[:3]),
        ("emb_keys", KEYS[::-1]),
        ("fingerprint", None),
    ):
        path.write_bytes(whole)
        with h5py.File(path, "r+") as file:
            del (file.attrs if name == "fingerprint" else file)[name]
            if value is not None:
                file[name] = value
        again = Store(store.folder.parent, MEAN)
        assert again.missing(KEYS).all() and again.covering(KEYS) == [], name
        assert path.with_name(f"{path.name}.damaged").exists() and not path.exists()


def test_a_part_of_another_fingerprint_is_refused_and_left_alone(
    store: Store, tmp_path: Path
) -> None:
    other = replace(MEAN, compute_dtype="bfloat16")
    local = tmp_path / "local.h5"
    write_part(local, part_rows(SEQUENCES, other), other, {})
    with pytest.raises(PlmEmbedError, match="compute_dtype: bfloat16 here, float32 there"):
        store.publish(local)
    smuggled = store.parts_folder / Store(tmp_path / "other", other).publish(local).name
    smuggled.write_bytes(local.read_bytes())
    with pytest.raises(PlmEmbedError, match="move it out of this store"):
        store.missing(KEYS)
    assert smuggled.exists()


@pytest.mark.parametrize(
    "damaged", [replace(MEAN, layers=(2,)).to_json().encode(), b"{", b"\xff", b""]
)
def test_a_damaged_note_of_the_fingerprint_is_named_and_written_anew(
    tmp_path: Path, damaged: bytes
) -> None:
    store = Store(tmp_path, MEAN)
    publish(store, SEQUENCES)
    note = store.folder / "fingerprint.json"
    whole = note.read_bytes()
    note.write_bytes(damaged)
    for read in (lambda: Embeddings(tmp_path), lambda: read_fingerprint(store.folder)):
        with pytest.raises(
            PlmEmbedError,
            match=r"fingerprint\.json: .*delete it and results/{model}/embedded and run",
        ):
            read()
    assert not Store(tmp_path, MEAN).missing(KEYS).any()
    assert note.read_bytes() == whole
    assert len(Embeddings(tmp_path)) == len(SEQUENCES)


def test_a_part_whose_fingerprint_was_damaged_is_set_aside(store: Store) -> None:
    publish(store, SEQUENCES)
    (path,) = store.parts_folder.iterdir()
    path.write_bytes(path.read_bytes().replace(MEAN.weights_sha256.encode(), b"0" * 64))
    assert Store(store.folder.parent, MEAN).missing(KEYS).all()
    assert not path.exists()
