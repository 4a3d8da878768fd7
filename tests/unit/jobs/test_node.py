"""The workers of a node: what fails does not stop the others, and what no worker can do ends the
job in words. The workers are forks of this process, which prepares their faults.
"""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plm_embed.errors import DeviceError
from plm_embed.fingerprint import LongSequences
from plm_embed.inference.vector_stream import LARGEST, VectorStream
from plm_embed.jobs import node, worker
from plm_embed.jobs.heartbeat import heartbeats
from plm_embed.kernels import devices
from plm_embed.models.engine import Batch, Engine
from plm_embed.models.family import Ids
from plm_embed.store.store import Store
from support.buckets import write_bucket
from support.jobs import forked, make_bucket, published, record_of

CPU = torch.device("cpu")


def gpus(broken: str = "", fault: Callable[[], object] = lambda: None) -> Callable[[], None]:
    """Let two GPUs be visible that are CPUs, of which one does something wrong at its check."""

    def check(_: torch.device) -> None:
        if os.environ["CUDA_VISIBLE_DEVICES"] == broken:
            fault()

    def prepare() -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
        devices.choose_device = lambda _: CPU  # type: ignore[assignment]
        devices.check = check

    return prepare


def at(name: str, fault: Callable[[str], object]) -> Callable[[], None]:
    """Have workers meet a fault when a batch has a sequence that begins so."""
    tokenize = Engine.tokenize

    def faulty(self: Engine, sequence: str) -> Ids:
        if sequence.startswith(name):
            fault(sequence)
        return tokenize(self, sequence)

    def patch() -> None:
        Engine.tokenize = faulty  # type: ignore[method-assign]

    return patch


def die(_: object = None) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(_: object = None) -> None:
    raise DeviceError("no usable CUDA device on x1")


def test_a_gpu_that_fails_three_times_is_retired_and_the_other_goes_on(
    tmp_path: Path, prepared: Path
) -> None:
    make_bucket(tmp_path, 40)

    def wait() -> None:
        """Have the good one wait until the broken one is given up."""
        gpus("1", refuse)()
        begin = worker.Worker.serve

        def later(mine: worker.Worker, pipe: Any) -> None:
            for _ in range(6_000):
                if (tmp_path / "starts").stat().st_size >= node.FAILURES_IN_A_ROW:
                    break
                time.sleep(0.01)
            begin(mine, pipe)

        check = devices.check

        def counted(device: torch.device) -> None:
            if os.environ["CUDA_VISIBLE_DEVICES"] == "1":
                with (tmp_path / "starts").open("a") as file:
                    file.write("x")
            check(device)

        worker.Worker.serve, devices.check = later, counted  # type: ignore[method-assign]

    (tmp_path / "starts").touch()
    assert not forked(tmp_path, prepared, fault=wait, workers=2, device="cuda")
    assert published(tmp_path) == record_of(tmp_path).computed == 40
    assert (tmp_path / "starts").read_text() == "xxx"


def test_where_no_gpu_works_the_node_is_to_blame(tmp_path: Path, prepared: Path) -> None:
    make_bucket(tmp_path, 5)

    def prepare() -> None:
        gpus()()
        devices.check = refuse

    answer = forked(tmp_path, prepared, fault=prepare, workers=2, device="cuda")
    assert answer.startswith("NodeError: no worker started:")
    assert answer.count("is retired: no usable CUDA device on x1") == 2
    (beat,) = heartbeats(tmp_path)
    assert (beat.outcome, len(beat.workers)) == ("failed", 2)


def test_more_workers_than_gpus_are_refused(tmp_path: Path, prepared: Path) -> None:
    make_bucket(tmp_path, 5)
    answer = forked(tmp_path, prepared, fault=gpus(), workers=3, device="cuda")
    assert answer.startswith("PlmEmbedError: 3 workers for 2 visible GPUs (0, 1)\n")


@pytest.mark.parametrize("fault", [die, lambda _: 1 / 0], ids=["dies", "raises"])
def test_a_sequence_that_ends_its_workers_costs_no_other(
    tmp_path: Path, prepared: Path, fault: Callable[[str], object]
) -> None:
    make_bucket(tmp_path, 60)

    answer = forked(tmp_path, prepared, fault=at("AAACC", fault))
    assert answer.startswith("PassingError: 1 sequence not embedded:")
    assert "worker 0.0 is retired: " in answer
    assert published(tmp_path) == 59
    assert not (tmp_path / "embedded" / "0000.json").exists()
    assert not forked(tmp_path, prepared)
    assert (record_of(tmp_path).found, record_of(tmp_path).computed) == (59, 1)


def test_a_sequence_without_device_memory_is_skipped_with_its_reason(
    tmp_path: Path, prepared: Path
) -> None:
    make_bucket(tmp_path, 400)
    forward = Engine.forward

    def patch() -> None:
        def short(
            self: Engine, batch: Batch, layers: Sequence[int], _: bool = False
        ) -> dict[int, torch.Tensor]:
            if len(batch.tokens) > 512 and max(layers) == self.model.layers:
                raise torch.OutOfMemoryError
            return forward(self, batch, layers)

        Engine.forward = short  # type: ignore[method-assign]

    assert not forked(tmp_path, prepared, fault=patch, workers=2)
    record = record_of(tmp_path)
    assert {skip.reason for skip in record.skipped} == {"out_of_memory"}
    assert min(skip.length for skip in record.skipped) >= 511
    assert record.computed + len(record.skipped) == 400
    # a device with more memory takes them up
    assert not forked(tmp_path, prepared)
    assert record_of(tmp_path).skipped == () and published(tmp_path) == 400


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("store", "PlmEmbedError: no space left on the disk, or no quota (store/part.h5)"),
        ("scratch", "NodeError: "),
    ],
)
def test_a_full_disk_ends_the_job_and_says_which(
    tmp_path: Path, prepared: Path, place: str, expected: str
) -> None:
    make_bucket(tmp_path, 60)

    def patch() -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device", f"{place}/part.h5")

        if place == "store":
            Store.publish = full  # type: ignore[method-assign,assignment]
        else:
            worker.write_part = full  # type: ignore[attr-defined,assignment]

    with tempfile.TemporaryDirectory(prefix="s") as scratch:
        answer = forked(
            tmp_path, prepared, fault=patch, workers=2, scratch=scratch, flush_minutes=0
        )
        assert not os.listdir(scratch)  # noqa: PTH208
    assert answer.startswith(expected)
    assert "no space left on the disk" in answer and f"{place}/part.h5" in answer
    assert not (tmp_path / "embedded" / "0000.json").exists()


def test_a_vector_that_is_not_finite_is_refused_at_once(tmp_path: Path, prepared: Path) -> None:
    make_bucket(tmp_path, 5)

    def patch() -> None:
        whole = VectorStream._whole

        def spoiled(self: VectorStream, i: int, windows: Any) -> Any:
            for vectors in windows.values():
                vectors[f"mean_l3{LARGEST}"] *= np.nan
            return whole(self, i, windows)

        VectorStream._whole = spoiled  # type: ignore[method-assign]

    answer = forked(tmp_path, prepared, fault=patch)
    assert answer.startswith("PlmEmbedError: mean_l3 of a sequence of") and "not finite" in answer


def test_work_is_counted_in_tokens_of_all_passes(tmp_path: Path, prepared: Path) -> None:
    """Tokens of a pseudo-perplexity grow with the square of the length; what the store has counts
    as much as it took.
    """
    texts = ["MKLV" * 10, "ACDEF" * 4, "ACDEF" * 5, "M" * 90]
    settings = {"scores": ("pseudo_perplexity",), "long_sequences": LongSequences("skip", 60)}
    write_bucket(tmp_path, texts[2:])
    assert not forked(tmp_path, prepared, **settings)
    assert record_of(tmp_path).tokens == 27 * 26
    write_bucket(tmp_path, texts)
    assert not forked(tmp_path, prepared, workers=2, **settings)
    record, last = record_of(tmp_path), heartbeats(tmp_path)[-1]
    assert (record.found, record.tokens) == (1, 42 * 41 + 22 * 21)
    assert last.tokens == last.tokens_total == 42 * 41 + 22 * 21 + 27 * 26


def test_two_jobs_of_a_bucket_at_once_do_no_harm(tmp_path: Path, prepared: Path) -> None:
    make_bucket(tmp_path, 60)

    def meanwhile() -> None:
        """Have another job do all of it when this one has listed what is missing."""
        list_missing = node.missing

        def first(*arguments: Any) -> Any:
            node.missing = list_missing
            todo = list_missing(*arguments)
            assert not forked(tmp_path, prepared)
            return todo

        node.missing = first

    assert not forked(tmp_path, prepared, fault=meanwhile)
    assert published(tmp_path) == 120 and record_of(tmp_path).unique == 60


def test_a_small_bucket_makes_one_part_a_worker(tmp_path: Path, prepared: Path) -> None:
    make_bucket(tmp_path, 300)
    assert not forked(tmp_path, prepared, workers=2)
    assert 1 <= len(record_of(tmp_path).parts) <= 2


def test_a_worker_that_gives_no_sign_of_life_is_killed(tmp_path: Path, prepared: Path) -> None:
    make_bucket(tmp_path, 5)

    def hang() -> None:
        node.SECONDS_TO_START = 0.2
        devices.check = lambda _: time.sleep(600)

    answer = forked(tmp_path, prepared, fault=hang)
    assert answer.startswith("NodeError") and "did not answer within 0 s" in answer


@pytest.mark.parametrize(
    ("given", "gpu", "order"),
    [
        ({}, None, "not set"),  # CUDA's own first GPU is the fastest
        ({}, "1", "PCI_BUS_ID"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, None, "PCI_BUS_ID"),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "1", "FASTEST_FIRST"),
    ],
)
def test_a_number_is_the_gpu_that_schedulers_mean(  # noqa: PLR0917
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str], gpu: str | None, order: str,
) -> None:  # fmt: skip
    make_bucket(tmp_path, 5)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)

    def see() -> None:
        def say(_: object) -> torch.device:
            raise DeviceError(f"order: {os.environ.get('CUDA_DEVICE_ORDER', 'not set')}")

        node.assign = lambda *_: [gpu]
        devices.choose_device = say  # type: ignore[assignment]

    assert f"order: {order}" in forked(tmp_path, prepared, fault=see)
