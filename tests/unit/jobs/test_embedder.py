"""What an embedder makes of buckets, on real files: right vectors, and only what is missing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import LongPolicy, LongSequences
from plm_embed.inference.settings import Settings
from plm_embed.inference.weights import prepare
from plm_embed.jobs.bucket import is_done
from plm_embed.jobs.completion_record import Skipped, read_completion, write_completion
from plm_embed.kernels import attention
from plm_embed.keys import key
from plm_embed.models.registry import MODELS
from plm_embed.store.parts import read_part
from plm_embed.store.store import Store
from support import checkpoints
from support.buckets import SEQUENCES, write_bucket
from support.embedded import Embedder, check, run, stored
from support.families import TINY, source

MODEL = MODELS["esm2_t3_untrained"]


def test_vectors_equal_the_reference_for_every_pooling_and_layer(
    tmp_path: Path, prepared: Path
) -> None:
    settings = Settings(
        layers=(0, 2, -1),
        pooling=("mean", "bos", "max", "per_residue"),
        storage_dtype="float32",
        scratch="",
    )
    record = run(tmp_path, prepared, SEQUENCES[::6], settings)
    check(tmp_path, prepared, SEQUENCES[::6], record, 2e-5)
    assert record.self_test and record.self_test.batch_invariant
    heads, width = MODEL.heads, MODEL.dim // MODEL.heads
    chosen = attention.choose(torch.device("cpu"), torch.float32, heads, width)
    assert record.self_test.attention == chosen.name
    assert record.fingerprint.engine == "packed-2"
    assert record.computed == record.unique == len(SEQUENCES[::6])
    assert read_completion(tmp_path / "0000.json") == record


@pytest.mark.parametrize(
    ("policy", "windows"),
    [
        (LongSequences("window", 100, 20), {50: 1, 100: 1, 101: 2, 393: 5}),
        (LongSequences("crop", 100), {50: 1, 100: 1, 101: 0, 393: 0}),
        (LongSequences("skip", 100), {50: 1, 100: 1}),
    ],
    ids=lambda value: getattr(value, "policy", ""),
)
def test_long_sequences(
    tmp_path: Path, prepared: Path, policy: LongSequences, windows: dict[int, int]
) -> None:
    sequences = [("LAGVSERTIDPKQNFYMHWCX" * 20)[:length] for length in (50, 100, 101, 393)]
    settings = Settings(
        pooling=("mean", "per_residue"),
        long_sequences=policy,
        storage_dtype="float32",
        scratch="",
        toks_per_batch=256,
    )
    record = run(tmp_path, prepared, sequences, settings)
    check(tmp_path, prepared, [s for s in sequences if len(s) in windows], record, 2e-5)
    (info,) = record.parts
    with read_part(tmp_path / "store" / record.fingerprint_id / "parts" / info.name) as part:
        columns = [part.column_at(name, np.arange(part.count)) for name in ("length", "windows")]
        assert dict(zip(*(column.tolist() for column in columns), strict=True)) == windows
    skipped = [s for s in sequences if len(s) not in windows]
    assert record.skipped == tuple(
        Skipped(k, n, "too_long") for k, n in sorted((key(s), len(s)) for s in skipped)
    )


def test_only_what_no_part_holds_is_computed(tmp_path: Path, prepared: Path) -> None:
    first = run(tmp_path, prepared, SEQUENCES[:20])
    again = run(tmp_path, prepared, SEQUENCES[:20])
    assert (again.found, again.computed, again.self_test) == (20, 0, None)
    assert again.parts == first.parts
    grown = run(tmp_path, prepared, SEQUENCES[:30])
    assert (grown.found, grown.computed) == (20, 10)
    assert len(grown.parts) == 2
    shrunk = run(tmp_path, prepared, SEQUENCES[25:30])
    assert (shrunk.found, shrunk.computed, len(shrunk.parts)) == (5, 0, 1)


def test_another_setting_has_its_own_store(tmp_path: Path, prepared: Path) -> None:
    first = run(tmp_path, prepared, SEQUENCES[:3])
    other = run(tmp_path, prepared, SEQUENCES[:3], Settings(pooling=("max",), scratch=""))
    assert other.computed == 3
    assert other.fingerprint_id != first.fingerprint_id
    assert run(tmp_path, prepared, SEQUENCES[:3]).computed == 0


def test_speed_settings_do_not_change_a_bit(tmp_path: Path, prepared: Path) -> None:
    found = []
    for settings in (Settings(scratch=""), Settings(toks_per_batch=512, flush_minutes=0)):
        folder = tmp_path / str(len(found))
        folder.mkdir()
        found.append(stored(folder, run(folder, prepared, SEQUENCES, settings)))
    assert found[0].keys() == found[1].keys()
    assert all(np.array_equal(found[0][k]["mean_l3"], found[1][k]["mean_l3"]) for k in found[0])


def test_empty_bucket(tmp_path: Path, prepared: Path) -> None:
    record = run(tmp_path, prepared, [])
    assert (record.unique, record.computed, record.parts, record.skipped) == (
        0,
        0,
        (),
        (),
    )


@pytest.mark.parametrize("layers", [(4,), (-5,), (3, -1)])
def test_layers_that_do_not_exist(tmp_path: Path, prepared: Path, layers: tuple[int, ...]) -> None:
    with pytest.raises(PlmEmbedError, match="has layers 0 to 3"):
        run(tmp_path, prepared, SEQUENCES[:1], Settings(layers=layers))


def test_a_model_without_a_first_token_has_no_bos(tmp_path: Path) -> None:
    prepare(TINY["prott5"], source("prott5"), tmp_path / "weights")
    with pytest.raises(PlmEmbedError, match="prott5_tiny has no <cls> token"):
        run(tmp_path, tmp_path / "weights", SEQUENCES[:1], Settings(pooling=("bos",)))


def test_models_with_a_hard_limit(tmp_path: Path) -> None:
    model = checkpoints.TINY_ESM1B
    source = checkpoints.write_fair_esm(
        tmp_path / f"{model.name}.pt", model, checkpoints.random_state(model, 1)
    )
    prepare(model, source, tmp_path / "weights")
    sequences = ["M" * 1022, "M" * 1023]
    record = run(tmp_path, tmp_path / "weights", sequences)
    assert [entry.length for entry in record.skipped] == [1023]
    windowed = Settings(
        long_sequences=LongSequences("window", 1022, 100), storage_dtype="float32", scratch=""
    )
    check(
        tmp_path,
        tmp_path / "weights",
        sequences,
        run(tmp_path, tmp_path / "weights", sequences, windowed),
        2e-5,
    )
    with pytest.raises(PlmEmbedError, match="at most 1022 residues"):
        run(
            tmp_path,
            tmp_path / "weights",
            sequences,
            replace(windowed, long_sequences=LongSequences("crop", 1023)),
        )


@pytest.mark.parametrize(
    "policy", [("window", 100, 100), ("window", 100, 150), ("crop", 0, 0), ("skip", 0, 0)]
)
def test_windows_that_cannot_be(
    tmp_path: Path, prepared: Path, policy: tuple[LongPolicy, int, int]
) -> None:
    with pytest.raises(PlmEmbedError, match="needs max_residues above 0 and an overlap below it"):
        run(tmp_path, prepared, SEQUENCES[:1], Settings(long_sequences=LongSequences(*policy)))


def test_a_record_that_does_not_answer_for_each_sequence_is_made_anew(
    tmp_path: Path, prepared: Path
) -> None:
    run(tmp_path, prepared, SEQUENCES[:5])
    record = run(tmp_path, prepared, SEQUENCES[:10])
    assert len(record.parts) == 2
    path, bucket = tmp_path / "0000.json", tmp_path / "0000.parquet"
    skipped = (Skipped(key(SEQUENCES[0]), len(SEQUENCES[0]), "too_long"),)
    write_completion(path, replace(record, skipped=skipped))
    embedder = Embedder(prepared, tmp_path / "store", Settings(scratch=""))
    assert not is_done(bucket, path, embedder.store)
    again = embedder.embed(bucket, path)
    assert (again.computed, again.parts, again.skipped) == (0, record.parts, ())
    assert is_done(bucket, path, embedder.store)


def test_a_part_that_changed_is_computed_again(tmp_path: Path, prepared: Path) -> None:
    record = run(tmp_path, prepared, SEQUENCES[:5])
    (path,) = (tmp_path / "store").glob("*/parts/*.h5")
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    bucket, made = tmp_path / "0000.parquet", tmp_path / "0000.json"
    store = Store(tmp_path / "store", record.fingerprint)
    assert not is_done(bucket, made, store)
    again = run(tmp_path, prepared, SEQUENCES[:5])
    assert again.computed == 5
    assert is_done(bucket, made, Store(tmp_path / "store", record.fingerprint))


def test_a_part_says_where_and_how_fast_it_was_computed(tmp_path: Path, prepared: Path) -> None:
    record = run(tmp_path, prepared, SEQUENCES[:9])
    (info,) = record.parts
    with read_part(tmp_path / "store" / record.fingerprint_id / "parts" / info.name) as part:
        origin = part.provenance
    assert (origin["device"], origin["host"]) == (record.worker.device, record.worker.host)
    assert origin["tokens"] == record.tokens and origin["seconds"] > 0


def test_another_record_of_the_bucket_is_not_done(tmp_path: Path, prepared: Path) -> None:
    record = run(tmp_path, prepared, SEQUENCES[:5])
    bucket, path, root = tmp_path / "0000.parquet", tmp_path / "0000.json", tmp_path / "store"
    other = Store(root, replace(record.fingerprint, compute_dtype="bfloat16"))
    assert not is_done(bucket, path, other)
    store = Store(root, record.fingerprint)
    write_bucket(tmp_path, SEQUENCES[:6])
    assert not is_done(bucket, path, store)
    write_bucket(tmp_path, SEQUENCES[:5])
    assert is_done(bucket, path, store)
