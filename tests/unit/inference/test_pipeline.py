"""Batches through the model: pooling in one go, prefetching, float16's way out, budgets."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from plm_embed.errors import DeviceError, PlmEmbedError
from plm_embed.fingerprint import (
    Fingerprint,
    LongSequences,
    Pooling,
    StorageDtype,
    has_matrix,
)
from plm_embed.inference import loading
from plm_embed.inference.loading import Room
from plm_embed.inference.vector_stream import LARGEST, STORED, Vectors, VectorStream
from plm_embed.kernels import devices
from plm_embed.models.engine import Batch, Engine
from plm_embed.store.hdf5 import encode
from support import checkpoints
from support.packed import packed_batch

SEQUENCES = ["M", "MKTAYIAKQR" * 30, "ACD", "W" * 77]
POOLINGS: tuple[Pooling, ...] = ("mean", "max", "bos", "per_residue")


def engine_of(dtype: str, factor: float = 1.0, name: str = "layers.0.fc1.weight") -> Engine:
    model = checkpoints.TINY_ESM2
    state = checkpoints.random_state(model, 9)
    state[name] *= factor
    model = checkpoints.decided(model, token_dropout=True)
    return Engine(model, state, torch.device("cpu"), dtype)  # type: ignore[arg-type]


def stream_of(engine: Engine, sequences: list[str], **change: Any) -> VectorStream:
    fingerprint = replace(fingerprint_of(engine.precision), **change)
    return VectorStream(Room(engine, 2048), fingerprint, sequences)


def batch_of(engine: Engine, **change: Any) -> list[Vectors]:
    """Return the vectors of all sequences as those of a batch, not yet joined."""
    stream = stream_of(engine, [], **change)
    return stream.collect(stream.launch(packed_batch(engine, SEQUENCES)))


def fingerprint_of(dtype: str) -> Fingerprint:
    return Fingerprint("m", "0", (1, 2), POOLINGS, LongSequences(), dtype, "float32", "e")  # type: ignore[arg-type]


def test_float16_is_left_only_by_the_sequences_that_need_it() -> None:
    engine = engine_of("float16")
    plain = batch_of(engine)
    forward = engine.forward

    def overflowing(
        batch: Batch, layers: list[int], exact: bool = False
    ) -> dict[int, torch.Tensor]:
        found = forward(batch, layers, exact)
        if not exact:
            for states in found.values():
                batch.split(states)[1][5] = torch.inf
        return found

    engine.forward = overflowing  # type: ignore[method-assign, assignment]
    found = batch_of(engine)
    for i, (vectors, before) in enumerate(zip(found, plain, strict=True)):
        for name, vector in vectors.items():
            assert np.isfinite(vector).all()
            assert np.array_equal(vector, before[name]) is (i != 1)
            assert np.allclose(vector, before[name], atol=0.02)


def test_numbers_beyond_float16_are_computed_in_fp32() -> None:
    engine = engine_of("float16", factor=1e5)
    forward, calls = engine.forward, []

    def counting(batch: Batch, layers: list[int], exact: bool = False) -> dict[int, torch.Tensor]:
        calls.append(exact)
        return forward(batch, layers, exact)

    engine.forward = counting  # type: ignore[method-assign, assignment]
    found = batch_of(engine)
    expected = batch_of(engine_of("float32", factor=1e5))
    assert calls == [False, True]
    for ours, theirs in zip(found, expected, strict=True):
        a, b = (torch.from_numpy(vectors["mean_l2"]) for vectors in (ours, theirs))
        assert torch.cosine_similarity(a, b, dim=0) > 0.9999


@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
def test_rows_are_rounded_on_the_device_as_the_store_rounds_them(storage: StorageDtype) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    numbers = (halves.astype(np.uint32) << 16).view(np.float32)
    if storage == "float16":
        numbers = halves.view(np.float16).astype(np.float32)
    finite = np.sort(numbers[np.isfinite(numbers)])
    between = finite[:-1] + np.diff(finite) / 2  # ties
    beside = [np.nextafter(between, np.float32(end)) for end in (-np.inf, np.inf)]
    tried = np.concatenate([finite, between, *beside])
    rounded = torch.from_numpy(tried).to(STORED[storage]).view(torch.int16).numpy()
    assert np.array_equal(rounded.view(np.uint16), encode(tried, storage))

    engine = engine_of("float32")
    expected = batch_of(engine)
    rounded_here = batch_of(engine, storage_dtype=storage)
    for found, exact in zip(rounded_here, expected, strict=True):
        for name in fingerprint_of("float32").representations:
            same = encode(exact[name], storage) if has_matrix(name) else exact[name]
            assert np.array_equal(found[name], same)
            assert found[name + LARGEST] == np.abs(exact[name]).max()


@pytest.mark.parametrize("number", [65504.0, 65510.0, 7e4, np.inf, np.nan])
@pytest.mark.parametrize("long", [LongSequences(), LongSequences("window", 100, 20)])
def test_a_row_too_large_for_the_store_is_an_error_though_it_was_rounded(
    number: float, long: LongSequences
) -> None:
    engine = engine_of("float32")
    forward = engine.forward

    def outlying(batch: Batch, layers: list[int], *others: Any) -> dict[int, torch.Tensor]:
        found = forward(batch, layers, *others)
        found[2][5, 7] = -number
        return found

    engine.forward = outlying  # type: ignore[method-assign, assignment]
    kept: dict[str, Any] = {"pooling": ("per_residue",), "storage_dtype": "float16"}
    stream = stream_of(engine, SEQUENCES[1:2], long_sequences=long, **kept)
    if number == 65504:
        assert len([pair for step in stream.run() for pair in step.finished]) == 1
        return
    with pytest.raises(PlmEmbedError, match=r"per_residue_l2 .* not finite or too large to store"):
        list(stream.run())


def test_what_float16_cannot_store_is_refused() -> None:
    """The last norm makes numbers above 65,504; bfloat16 and float32 hold them."""
    engine = engine_of("float32", 2.0**20, "emb_layer_norm_after.weight")
    for storage in ("bfloat16", "float32"):
        (step,) = stream_of(engine, SEQUENCES[:1], storage_dtype=storage).run()
        ((_, vectors),) = step.finished
        assert np.abs(vectors["mean_l2"]).max() > 65_504
    with pytest.raises(PlmEmbedError, match=r"mean_l2 .* not finite or too large to store"):
        list(stream_of(engine, SEQUENCES[:1], storage_dtype="float16").run())


def test_what_goes_wrong_while_packing_is_raised() -> None:
    with pytest.raises(ValueError, match="not a normalized sequence"):
        list(stream_of(engine_of("float32"), ["MKV", "AC*"]).run())


def test_a_shortage_shrinks_batches_then_products_and_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "BATCHES_TO_FORGET", 3)
    engine: Any = SimpleNamespace(rows=16384, device=torch.device("cuda"))
    room = Room(engine, 32768)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(devices, "device_name", lambda _: "a GPU")
    seen = []
    with pytest.raises(DeviceError, match=r"a GPU .* has too little free memory"):
        while room.shrink([room.budget // 4] * 4):
            seen.append((room.budget, engine.rows))
    # padded to whole products: with half of a product's tokens, the product itself is halved
    assert seen == [(n, n) for n in (16384,)] + [(n, n) for n in (8192, 4096, 2048, 1024)]
    sizes = []
    for _ in range(15):
        room.grow()
        sizes.append(engine.rows)
    assert sizes[2::3] == [2048, 4096, 8192, 16384, 16384] and sizes[1] == 1024
    assert (room.budget, engine.rows) == (32768, 16384)
    assert room.shrink([16384, 16384])  # what did not last is tried less often
    sizes = []
    for _ in range(6):
        room.grow()
        sizes.append(room.budget)
    assert sizes == [16384] * 5 + [32768]
    assert not room.shrink([40000])  # alone, and larger than a product
    assert (room.budget, engine.rows) == (32768, 16384)


def test_a_gpu_without_room_for_a_product_computes_in_smaller_ones() -> None:
    engine = engine_of("float32")
    engine.rows = 4096
    whole = engine.forward
    refused = []

    def short_of_memory(batch: Batch, *others: Any) -> dict[int, torch.Tensor]:
        if len(batch.tokens) > 1024 and len(refused) < 9:
            refused.append(len(batch.tokens))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(batch, *others)

    engine.forward = short_of_memory  # type: ignore[method-assign]
    fingerprint = replace(fingerprint_of("float32"), pooling=("mean",))
    stream = VectorStream(Room(engine, 8192), fingerprint, SEQUENCES * 12)
    found = dict(pair for step in stream.run() for pair in step.finished)
    assert sorted(found) == list(range(48)) and not stream.left_out
    assert refused == [8192, 4096, 2048] and engine.rows == 1024
    expected = (
        engine_of("float32").forward(packed_batch(engine, SEQUENCES[1:2]), [2])[2][1:301].mean(0)
    )
    for i in range(1, 48, 4):
        np.testing.assert_allclose(found[i]["mean_l2"], expected.numpy(), atol=2e-6)
