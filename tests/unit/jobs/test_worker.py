"""What a worker's process answers when something goes wrong: the reason, and who is to blame."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from plm_embed.errors import PassingError, PlmEmbedError
from plm_embed.inference.settings import Settings
from plm_embed.jobs import embed_bucket, worker
from plm_embed.kernels import devices
from plm_embed.models import engine, weights
from plm_embed.workflow.failures import error_at_the_end
from support.buckets import SEQUENCES, write_bucket

pytestmark = pytest.mark.workflow
FULL_STORE = PlmEmbedError("no room for a part")  # an error of ours that a full disk has caused
FULL_STORE.__cause__ = OSError(28, "No space left on device")
FULL = "CUDA out of memory. Tried to allocate 2.00 GiB"


def raising(error: Exception) -> Callable[..., NoReturn]:
    def fail(*_: Any) -> NoReturn:
        raise error

    return fail


@pytest.mark.parametrize(
    ("owner", "name", "error", "reason", "blames"),
    [
        (engine.Engine, "forward", RuntimeError("a bug"), "RuntimeError: a bug", ""),
        (
            engine.Engine,
            "forward",
            RuntimeError("CUDA error: device-side assert triggered"),
            "device-side",
            "device",
        ),
        (
            weights,
            "load",
            torch.OutOfMemoryError(FULL),
            "too little free memory for this model",
            "device",
        ),
        (embed_bucket, "fingerprint_of", torch.OutOfMemoryError(FULL), "out of memory", "device"),
        (
            embed_bucket,
            "write_completion",
            OSError(28, "No space left on device"),
            "store or the scratch folder)",  # which disk, where the system does not say it
            "disk",
        ),
        (
            embed_bucket,
            "write_completion",
            OSError(28, "No space left on device", "records/0000.json"),
            "no space left on the disk, or no quota (records/0000.json)",
            "disk",
        ),
        (
            embed_bucket,
            "Store",
            FileExistsError(17, "File exists", "store/parts"),
            "store/parts: File exists",
            "disk",
        ),
        (
            embed_bucket,
            "write_completion",
            FULL_STORE,
            "no room for a part",
            "disk",
        ),
    ],
)
def test_the_reason_and_who_is_to_blame(  # noqa: PLR0917
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch,
    owner: Any, name: str, error: Exception, reason: str, blames: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(owner, name, raising(error))
    fork = multiprocessing.get_context("fork")  # the process has what was set here
    ours, theirs = fork.Pipe()
    settings = Settings(device="cpu", scratch="")
    process = fork.Process(
        target=worker.serve, args=(theirs, prepared, tmp_path / "store", settings, None)
    )
    process.start()
    theirs.close()
    try:
        ours.send((write_bucket(tmp_path, SEQUENCES[:9]), tmp_path / "0000.json"))
        for _ in range(2):
            assert ours.poll(300), "no answer"
            answer = ours.recv()
        process.join(300)
        assert process.exitcode == 1
    finally:
        process.kill()
    assert reason in answer[0] and answer[1] == blames
    assert not (tmp_path / "0000.json").exists()


def test_a_worker_whose_job_was_killed_says_so_in_the_log(
    tmp_path: Path,
    prepared: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(engine.Engine, "forward", raising(PassingError("2 of 9 are in the store")))
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()

    def serve() -> None:
        ours.close()
        worker.serve(theirs, prepared, tmp_path / "store", Settings(device="cpu", scratch=""), None)

    process = fork.Process(target=serve)
    process.start()
    theirs.close()
    try:
        assert ours.poll(300) and ours.recv() == 0
        ours.send((write_bucket(tmp_path, SEQUENCES[:9]), tmp_path / "0000.json"))
        ours.close()
        process.join(300)
        assert process.exitcode == 1
    finally:
        process.kill()
    log = tmp_path / "0000.log"
    log.write_text(capfd.readouterr().err, encoding="utf-8")
    assert error_at_the_end(log) == "the job was killed: 2 of 9 are in the store"


@pytest.mark.parametrize(
    ("given", "gpu", "order"),
    [
        ({}, None, "not set"),  # CUDA's own first GPU is the fastest
        ({}, "1", "PCI_BUS_ID"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, None, "PCI_BUS_ID"),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "1", "FASTEST_FIRST"),
    ],
)
def test_a_number_is_the_gpu_that_schedulers_mean(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
    gpu: str | None,
    order: str,
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)

    def seen(_: str) -> NoReturn:
        raise PassingError(os.environ.get("CUDA_DEVICE_ORDER", "not set"))

    monkeypatch.setattr(devices, "choose_device", seen)
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    arguments = theirs, tmp_path, tmp_path, Settings(device="cpu", scratch=""), gpu
    process = fork.Process(target=worker.serve, args=arguments)
    process.start()
    theirs.close()
    try:
        assert ours.poll(300) and ours.recv() == (order, "")
    finally:
        process.kill()


@pytest.mark.parametrize(("near", "bound"), [({0, 1, 2, 3}, [[0, 1, 2]]), ({2, 9}, []), ((), [])])
def test_a_worker_is_bound_to_the_cores_near_its_gpu_only_where_they_are_enough(
    near: set[int], bound: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[int]] = []
    monkeypatch.setattr(worker, "near_cores", lambda _: set(near))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})  # of the job
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: calls.append(sorted(cores)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def seen(_: str) -> NoReturn:
        raise PassingError(str(calls))

    monkeypatch.setattr(devices, "choose_device", seen)
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    arguments = theirs, tmp_path, tmp_path, Settings(device="cpu", scratch="", threads=2), "0"
    process = fork.Process(target=worker.serve, args=arguments)
    process.start()
    theirs.close()
    try:
        assert ours.poll(300) and ours.recv() == (str(bound), "")
    finally:
        process.kill()
