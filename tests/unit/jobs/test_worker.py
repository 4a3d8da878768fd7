"""A worker on real files: right vectors, only what is missing; and on a device that lacks memory,
fails or computes wrongly: nothing wrong is stored, nothing finished is lost.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plm_embed.errors import DeviceError, PlmEmbedError
from plm_embed.fingerprint import LongSequences
from plm_embed.inference import vector_stream
from plm_embed.inference.settings import Settings
from plm_embed.jobs.completion_record import Skipped, is_done, read_completion
from plm_embed.jobs.worker import Rows
from plm_embed.kernels import attention, devices
from plm_embed.keys import key
from plm_embed.models import weights
from plm_embed.models.engine import Batch, Engine
from plm_embed.models.family import Ids
from plm_embed.models.registry import MODELS
from plm_embed.store.parts import Part
from support import checkpoints
from support.buckets import SEQUENCES, write_bucket
from support.campaigns import DIM
from support.embedded import check, run, stored

MODEL = MODELS["esm2_t3_untrained"]
SMALL = Settings(scratch="", toks_per_batch=1024)


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
    assert record.computed == record.unique == len(SEQUENCES[::6])
    assert read_completion(tmp_path / "0000.json") == record
    (info,) = record.parts
    with Part(tmp_path / "store" / record.fingerprint_id / "parts" / info.name) as part:
        origin = part.provenance
    assert (origin["device"], origin["host"]) == (record.worker.device, record.worker.host)
    assert origin["tokens"] == record.tokens and origin["seconds"] > 0


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
    settings = replace(
        SMALL, pooling=("mean", "per_residue"), long_sequences=policy, storage_dtype="float32"
    )
    record = run(tmp_path, prepared, sequences, settings)
    check(tmp_path, prepared, [s for s in sequences if len(s) in windows], record, 2e-5)
    (info,) = record.parts
    with Part(tmp_path / "store" / record.fingerprint_id / "parts" / info.name) as part:
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
    assert (grown.found, grown.computed, len(grown.parts)) == (20, 10, 2)
    shrunk = run(tmp_path, prepared, SEQUENCES[25:30])
    assert (shrunk.found, shrunk.computed, len(shrunk.parts)) == (5, 0, 1)
    other = run(tmp_path, prepared, SEQUENCES[:3], Settings(pooling=("max",), scratch=""))
    assert other.computed == 3  # of another fingerprint
    empty = run(tmp_path, prepared, [])
    assert (empty.unique, empty.parts, empty.skipped) == (0, (), ())


def test_a_part_that_changed_is_computed_again(tmp_path: Path, prepared: Path) -> None:
    run(tmp_path, prepared, SEQUENCES[:5])
    (path,) = (tmp_path / "store").glob("*/parts/*.h5")
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    assert run(tmp_path, prepared, SEQUENCES[:5]).computed == 5


def test_speed_settings_do_not_change_a_bit(tmp_path: Path, prepared: Path) -> None:
    vectors = []
    for settings in (Settings(scratch=""), Settings(toks_per_batch=512, flush_minutes=0)):
        folder = tmp_path / str(len(vectors))
        folder.mkdir()
        vectors.append(stored(folder, run(folder, prepared, SEQUENCES, settings)))
    assert vectors[0].keys() == vectors[1].keys()
    assert all(
        np.array_equal(vectors[0][k]["mean_l3"], vectors[1][k]["mean_l3"]) for k in vectors[0]
    )


def test_a_bucket_is_done_when_its_record_and_the_store_say_so(
    tmp_path: Path, prepared: Path
) -> None:
    record = run(tmp_path, prepared, SEQUENCES[:5])
    bucket, path, root = tmp_path / "0000.parquet", tmp_path / "0000.json", tmp_path / "store"
    assert not is_done(bucket, path, root, replace(record.fingerprint, compute_dtype="bfloat16"))
    write_bucket(tmp_path, SEQUENCES[:6])
    assert not is_done(bucket, path, root)
    write_bucket(tmp_path, SEQUENCES[:5])
    assert is_done(bucket, path, root, record.fingerprint)
    (part,) = root.glob("*/parts/*.h5")
    part.write_bytes(part.read_bytes()[:-1])
    assert not is_done(bucket, path, root)
    part.unlink()
    assert not is_done(bucket, path, root)


@pytest.mark.parametrize(("rows", "right"), [(39, False), (40, True), (41, False)])
def test_every_residue_has_its_row(rows: int, right: bool) -> None:
    taken, batch = Rows(LongSequences()), np.ones((rows, DIM), dtype=np.uint16)
    if not right:
        with pytest.raises(RuntimeError, match=f"{rows} rows for 40 residues"):
            taken.add(b"0" * 64, 40, {"per_residue_l2": batch})
        return
    taken.add(b"0" * 64, 40, {"per_residue_l2": batch})
    (matrix,) = taken.part().representations["per_residue_l2"]
    assert (matrix == 1).all() and taken.size == 4 * matrix.size


Forward = Callable[[Engine, Batch, Sequence[int], bool], dict[int, torch.Tensor]]


def patch_forward(
    patch: pytest.MonkeyPatch, fault: Callable[[Batch, Sequence[int]], object]
) -> Forward:
    """Have a fault happen before each forward pass."""
    forward: Forward = Engine.forward

    def faulty(
        self: Engine, batch: Batch, layers: Sequence[int], exact: bool = False
    ) -> dict[int, torch.Tensor]:
        fault(batch, layers)
        return forward(self, batch, layers, exact)

    patch.setattr(Engine, "forward", faulty)
    return forward


@pytest.mark.parametrize("fits", [1024, 512])
def test_out_of_memory_halves_the_budget_and_gives_up_only_what_never_fits(
    tmp_path: Path,
    prepared: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fits: int,
) -> None:
    def short_of_memory(batch: Batch, layers: Sequence[int]) -> None:
        if len(batch.tokens) > fits and max(layers) == MODEL.layers:
            raise torch.OutOfMemoryError  # the self-test's pair stays below

    patch_forward(monkeypatch, short_of_memory)
    sequences = [*SEQUENCES, "M" * 900]
    record = run(tmp_path, prepared, sequences)
    assert f"token budget lowered to {fits}" in caplog.text
    small = [s for s in sequences if len(s) + 2 <= fits]
    check(tmp_path, prepared, small, record, 2e-3)
    reasons = [skip.reason for skip in record.skipped]
    assert reasons == ["out_of_memory"] * (len(sequences) - len(small))


def test_a_device_without_room_for_the_model_is_to_blame_not_the_bucket(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(_: Path, **__: bool) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(weights, "load", load)
    with pytest.raises(DeviceError, match="has too little free memory for this model"):
        run(tmp_path, prepared, SEQUENCES)


def test_memory_that_runs_out_while_a_batch_is_prepared_loses_nothing(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, refused = vector_stream.pack, []

    def short_of_memory(pieces: Sequence[Ids], *more: Any, **options: Any) -> Batch:
        if 702 in map(len, pieces) and sum(map(len, pieces)) > 1000:
            refused.append(pieces)
            raise RuntimeError("CUDA error: out of memory")  # of pinned memory
        return pack(pieces, *more, **options)

    monkeypatch.setattr(vector_stream, "pack", short_of_memory)
    record = run(tmp_path, prepared, [*SEQUENCES, "W" * 700])
    assert refused and record.skipped == ()
    check(tmp_path, prepared, [*SEQUENCES, "W" * 700], record, 2e-3)


@pytest.mark.parametrize("lost", [False, True], ids=["a bug", "the device fails"])
def test_what_was_finished_is_kept_whatever_ends_the_work(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    calls: list[Sequence[int]] = []

    def failing(_: Batch, layers: Sequence[int]) -> None:
        calls.append(layers)
        if calls.count({MODEL.layers}) == 3:  # the third batch of the job itself
            cuda = "CUDA error: device-side assert triggered\nCUDA kernel errors might be ..."
            raise RuntimeError(cuda if lost else "a bug")

    patch_forward(monkeypatch, failing)
    raise_others, gpu = devices.raise_others, torch.device("cuda", 0)
    monkeypatch.setattr(devices, "raise_others", lambda error, _: raise_others(error, gpu))
    words = r"CUDA error: the GPU .* failed: CUDA error: device-side assert" if lost else "a bug"
    with pytest.raises(DeviceError if lost else RuntimeError, match=words):
        run(tmp_path, prepared, SEQUENCES, SMALL)
    assert not (tmp_path / "0000.json").exists()
    monkeypatch.undo()
    record = run(tmp_path, prepared, SEQUENCES)
    assert record.found > 0
    assert record.found + record.computed == len(SEQUENCES)


def test_a_device_that_computes_wrongly_computes_nothing(tmp_path: Path, prepared: Path) -> None:
    folder = Path(shutil.copytree(prepared, tmp_path / "weights"))
    checkpoints.spoil_golden(folder)
    with pytest.raises(PlmEmbedError, match="self-test failed"):
        run(tmp_path, folder, SEQUENCES[:3])
    assert not (tmp_path / "0000.json").exists()
