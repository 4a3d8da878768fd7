"""An embedder on a device that lacks memory, fails or computes wrongly, and on a disk that is
full: nothing wrong is stored, nothing finished is lost.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from plm_embed.errors import DeviceError, PlmEmbedError
from plm_embed.inference import batches
from plm_embed.inference.settings import Settings
from plm_embed.inference.vector_stream import VectorStream
from plm_embed.jobs import embedder as embedder_module
from plm_embed.kernels import devices
from plm_embed.models import weights
from plm_embed.models.engine import Engine
from plm_embed.models.packed_batch import Batch
from plm_embed.models.registry import MODELS
from plm_embed.models.tokens import Ids
from support import checkpoints
from support.buckets import SEQUENCES, write_bucket
from support.embedded import Embedder, check, run

MODEL = MODELS["esm2_t3_untrained"]


@pytest.mark.parametrize("fits", [1024, 512])
def test_out_of_memory_halves_the_budget_and_gives_up_only_what_never_fits(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch, fits: int
) -> None:
    forward = Engine.forward

    def short_of_memory(
        self: Engine, batch: Batch, layers: Sequence[int], _: bool = False
    ) -> dict[int, torch.Tensor]:
        if len(batch.tokens) > fits and max(layers) == MODEL.layers:
            # the self-test's pair stays below
            raise torch.OutOfMemoryError
        return forward(self, batch, layers)

    monkeypatch.setattr(Engine, "forward", short_of_memory)
    sequences = [*SEQUENCES, "M" * 900]
    record = run(tmp_path, prepared, sequences)
    assert record.toks_per_batch == fits
    small = [s for s in sequences if len(s) + 2 <= fits]
    check(tmp_path, prepared, small, record, 2e-3)
    assert [entry.reason for entry in record.skipped] == ["out_of_memory"] * (
        len(sequences) - len(small)
    )


def test_a_budget_that_was_lowered_stays_low_for_some_batches(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, refused = Engine.forward, []

    def short_of_memory(
        self: Engine, batch: Batch, layers: Sequence[int], _: bool = False
    ) -> dict[int, torch.Tensor]:
        if len(batch.tokens) > 768 and max(layers) == MODEL.layers:
            refused.append(len(batch.tokens))
            raise torch.OutOfMemoryError
        return forward(self, batch, layers)

    monkeypatch.setattr(Engine, "forward", short_of_memory)
    monkeypatch.setattr(batches, "BATCHES_TO_FORGET", 1000)
    embedder = Embedder(prepared, tmp_path / "store", Settings(scratch=""))
    for number in range(2):
        texts = [sequence + "M" * number for sequence in SEQUENCES]
        record = embedder.embed(
            write_bucket(tmp_path, texts, f"{number:04d}"), tmp_path / f"{number:04d}.json"
        )
        assert (record.computed, record.toks_per_batch, len(refused)) == (
            len(SEQUENCES),
            512,
            2,
        )


def test_a_device_without_room_for_the_model_is_to_blame_not_the_bucket(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(_: Path) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(weights, "load", load)
    with pytest.raises(DeviceError, match="has too little free memory for this model"):
        run(tmp_path, prepared, SEQUENCES)


def test_memory_that_runs_out_while_a_batch_is_prepared_loses_nothing(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, refused = Engine.pack, []

    def short_of_memory(self: Engine, pieces: Sequence[Ids]) -> Batch:
        if 702 in map(len, pieces) and sum(map(len, pieces)) > 1000:
            refused.append(pieces)
            raise RuntimeError("CUDA error: out of memory")  # of pinned memory
        return pack(self, pieces)

    monkeypatch.setattr(Engine, "pack", short_of_memory)
    record = run(tmp_path, prepared, [*SEQUENCES, "W" * 700])
    assert refused and record.skipped == ()
    check(tmp_path, prepared, [*SEQUENCES, "W" * 700], record, 2e-3)


def test_a_vector_that_is_not_finite_is_never_stored(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, longest = Engine.forward, max(map(len, SEQUENCES))

    @torch.inference_mode()
    def broken(
        self: Engine, batch: Batch, layers: Sequence[int], _: bool = False
    ) -> dict[int, torch.Tensor]:
        hidden = forward(self, batch, layers)
        if max(batch.lengths) == longest + 2 and 3 in layers:
            return {3: hidden[3].clone().index_fill_(0, torch.tensor([5]), float("nan"))}
        return hidden

    monkeypatch.setattr(Engine, "forward", broken)
    with pytest.raises(PlmEmbedError, match="not finite"):
        run(tmp_path, prepared, SEQUENCES)
    assert not (tmp_path / "0000.json").exists()


def test_what_was_finished_is_kept_whatever_ends_the_work(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = VectorStream._whole

    def wrong(self: VectorStream, i: int, windows: Any) -> Any:
        if len(self.sequences[i]) == 50:  # longer ones come first
            raise AssertionError("a bug")
        return whole(self, i, windows)

    monkeypatch.setattr(VectorStream, "_whole", wrong)
    with pytest.raises(AssertionError, match="a bug"):
        run(tmp_path, prepared, SEQUENCES, Settings(scratch="", toks_per_batch=1024))
    monkeypatch.undo()
    record = run(tmp_path, prepared, SEQUENCES)
    assert record.found > 0
    assert record.found + record.computed == len(SEQUENCES)


def test_what_was_finished_is_kept_when_the_device_fails(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, calls = Engine.forward, []

    def failing(
        self: Engine, batch: Batch, layers: Sequence[int], exact: bool = False
    ) -> dict[int, torch.Tensor]:
        calls.append(layers)
        if calls.count((MODEL.layers,)) == 3:  # the third batch of the job itself
            raise RuntimeError(
                "CUDA error: device-side assert triggered\nCUDA kernel errors might be ..."
            )
        return forward(self, batch, layers, exact)

    monkeypatch.setattr(Engine, "forward", failing)
    failure = devices.failure
    monkeypatch.setattr(
        devices, "failure", lambda error, _: failure(error, torch.device("cuda", 0))
    )
    with pytest.raises(
        DeviceError,
        match=r"CUDA error: the GPU .* failed: CUDA error: device-side assert triggered\n",
    ):
        run(tmp_path, prepared, SEQUENCES, Settings(scratch="", toks_per_batch=1024))
    assert not (tmp_path / "0000.json").exists()
    monkeypatch.undo()
    record = run(tmp_path, prepared, SEQUENCES)
    assert record.found > 0
    assert record.found + record.computed == len(SEQUENCES)


def test_a_part_that_cannot_be_written_ends_the_job(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(embedder_module, "write_part", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        run(
            tmp_path, prepared, SEQUENCES, Settings(scratch="", toks_per_batch=512, flush_minutes=0)
        )
    assert not (tmp_path / "0000.json").exists()


def test_a_device_that_computes_wrongly_computes_nothing(tmp_path: Path, prepared: Path) -> None:
    folder = Path(shutil.copytree(prepared, tmp_path / "weights"))
    checkpoints.spoil_golden(folder)
    with pytest.raises(PlmEmbedError, match="self-test failed"):
        run(tmp_path, folder, SEQUENCES[:3])
    assert not (tmp_path / "0000.json").exists()
