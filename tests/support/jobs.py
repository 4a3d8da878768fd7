"""Jobs as processes: `plm-embed embed` as a command, or a fork of this process, which has loaded
torch and may have been prepared for a fault.
"""

import multiprocessing
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from plm_embed.inference.settings import Settings
from plm_embed.jobs import process as worker_process
from plm_embed.jobs.completion_record import Completion, read_completion
from plm_embed.jobs.job import Job, embed_bucket
from support.buckets import write_bucket

FORK = multiprocessing.get_context("fork")
ALPHABET = "LAGVSERTIDPKQNFYMHWCX" * 40
SECONDS = 300


class ForkedWorkers:
    """For the context of `jobs.process`: a worker that is spawned takes seconds to load torch."""

    def Pipe(self) -> tuple[Any, Any]:  # noqa: N802
        self._ours, theirs = FORK.Pipe()
        return self._ours, theirs

    def Process(self, target: Callable[..., None], args: tuple[Any, ...], daemon: bool) -> Any:  # noqa: N802
        ours = self._ours

        def serve() -> None:
            ours.close()  # or it would never see the other end closed
            target(*args)

        return FORK.Process(target=serve, daemon=daemon)


def sequences(count: int) -> list[str]:
    """Return so many different sequences of 205 to 604 residues."""
    codes = ["".join("ACDEFGHIKL"[int(digit)] for digit in f"{i:05}") for i in range(count)]
    return [code + ALPHABET[: 200 + i % 400] for i, code in enumerate(codes)]


def make_bucket(folder: Path, count: int) -> Path:
    return write_bucket(folder, sequences(count))


def start(folder: Path, prepared: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    """Start `plm-embed embed` on the bucket in a folder, its store and record beside it."""
    command = [
        *(sys.executable, "-P", "-m", "plm_embed", "embed", str(folder / "0000.parquet")),
        *("--weights", str(prepared), "--store", str(folder / "store")),
        *("--record", str(folder / "embedded" / "0000.json")),
        *("--device", "cpu", "--scratch", "", "--toks-per-batch", "512", *options),
    ]
    return subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
        start_new_session=True,
    )


def finish(job: "subprocess.Popen[str]", code: int = 0) -> str:
    """Wait for a job that is to end with this code. Returns what it printed."""
    with job:
        _, words = job.communicate(timeout=SECONDS)
    assert job.returncode == code, words
    return words


def forked(
    folder: Path, prepared: Path, *, fault: Callable[[], object] = lambda: None, **settings: Any
) -> str:
    """Embed the bucket in a folder in a fork of this process, after `fault` has prepared it.

    Returns '' or the error with its type; settings may have workers, minutes and nodes of the job.
    """
    numbers = {name: settings.pop(name) for name in ("workers", "minutes") if name in settings}
    job = Job(
        bucket=folder / "0000.parquet",
        weights=prepared,
        store=folder / "store",
        record=folder / "embedded" / "0000.json",
        **{"workers": 1, **numbers},
    )
    made = replace(Settings(device="cpu", scratch="", toks_per_batch=512), **settings)

    def run(pipe: Connection) -> None:
        worker_process.CONTEXT = ForkedWorkers()
        torch.set_num_threads(1)  # a fork has no threads, for which torch would wait for ever
        os.setsid()
        try:
            fault()
            embed_bucket(job, made)
            pipe.send("")
        except Exception as error:
            traceback.print_exc()
            pipe.send(f"{type(error).__name__}: {error}")

    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=run, args=(theirs,))
    process.start()
    theirs.close()
    try:
        assert ours.poll(SECONDS), "no answer"
        answer: str = ours.recv()
        process.join(SECONDS)
        return answer
    finally:
        process.kill()


def published(folder: Path) -> int:
    """Return how many vectors the parts in the store of a folder hold."""
    return sum(int(path.stem.split("-")[2]) for path in folder.glob("store/*/parts/[0-9a-f]*.h5"))


def wait_for_parts(folder: Path, number: int = 1) -> None:
    for _ in range(12_000):
        if published(folder) >= number:
            return
        time.sleep(0.025)
    raise AssertionError("no part within 300 s")


def record_of(folder: Path) -> Completion:
    return read_completion(folder / "embedded" / "0000.json")
