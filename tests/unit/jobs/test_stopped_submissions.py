"""Submissions that are stopped, and workers that die or are killed, at any instant."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from plm_embed.errors import PassingError
from plm_embed.inference.settings import Settings
from plm_embed.jobs import dispatch
from plm_embed.jobs.submission import embed_buckets
from plm_embed.jobs.worker import WorkerError
from support.submissions import plan_of, published, records, start, wait_for_parts, write_buckets

pytestmark = pytest.mark.workflow


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda n: signal.Signals(n).name
)
def test_a_stopped_job_loses_at_most_the_part_it_was_filling(
    tmp_path: Path, prepared: Path, number: int
) -> None:
    (bucket,) = write_buckets(tmp_path, 700)
    with start(tmp_path, prepared, [bucket], "--flush-minutes", "0.001") as job:
        wait_for_parts(tmp_path)
        time.sleep(int.from_bytes(os.urandom(1)) / 512)
        # a scheduler kills all processes of a job; a signal may also reach the parent alone
        os.killpg(job.pid, number) if number == signal.SIGKILL else job.send_signal(number)
        _, errors = job.communicate(timeout=300)
    assert not (tmp_path / "0000.json").exists()
    assert not (tmp_path / "done.json").exists()
    if number != signal.SIGKILL:
        assert job.returncode == 1
        assert "stopped by a signal" in errors
        assert "Traceback" not in errors
    before = published(tmp_path)
    assert 0 < before < 700
    with start(tmp_path, prepared, [bucket]) as again:
        _, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    record = records(tmp_path)["0000"]
    assert (record.found, record.computed, record.unique) == (before, 700 - before, 700)


def test_a_worker_does_not_outlive_its_parent(tmp_path: Path, prepared: Path) -> None:
    (bucket,) = write_buckets(tmp_path, 700)
    with start(tmp_path, prepared, [bucket], "--flush-minutes", "0.001") as job:
        wait_for_parts(tmp_path)
        job.kill()
        job.communicate(timeout=300)  # ends when the worker, too, has closed its end of the pipe
    assert not (tmp_path / "0000.json").exists()
    assert 0 < published(tmp_path) < 700


def worker_of(parent: int) -> int:
    """Process id of the parent's first worker (not of multiprocessing's resource tracker)."""
    for _ in range(12_000):
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                ours = status.read_text().rsplit(")", 1)[1].split()[1] == str(parent)
                if ours and b"spawn_main" in (status.parent / "cmdline").read_bytes():
                    return int(status.parent.name)
            except OSError:
                continue
        time.sleep(0.025)
    raise AssertionError("no worker")


def test_a_killed_workers_bucket_is_done_by_another(tmp_path: Path, prepared: Path) -> None:
    buckets = write_buckets(tmp_path, 400, 20, 20)
    with start(tmp_path, prepared, buckets, "--flush-minutes", "0.001", "--workers", "2") as job:
        wait_for_parts(tmp_path)
        os.kill(worker_of(job.pid), signal.SIGKILL)
        _, errors = job.communicate(timeout=300)
    assert job.returncode == 0, errors
    assert "a worker was killed (signal 9; out of memory?)" in errors
    assert {name: record.unique for name, record in records(tmp_path).items()} == {
        "0000": 400,
        "0001": 20,
        "0002": 20,
    }


def test_a_signal_is_handled_whichever_thread_the_kernel_gives_it_to(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After SIGSTOP and SIGCONT that is any one; the worker's thread is the one that the handler
    does not run in.
    """
    told = threading.Event()

    class Computing:
        def __init__(self, *_: object) -> None: ...

        def wait_until_ready(self) -> None: ...

        def embed(self, *_: object) -> float:
            time.sleep(0.5)  # so that the main thread waits
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            raise WorkerError(
                "stopped by a signal" if told.wait(300) else "nobody told the worker to stop"
            )

        def terminate(self) -> None:
            told.set()

    monkeypatch.setattr(dispatch, "Worker", Computing)
    plan = plan_of(tmp_path, prepared, write_buckets(tmp_path, 3), 1)
    with pytest.raises(
        PassingError, match=r"^not all buckets are embedded:\n  stopped by a signal; run it again"
    ):
        embed_buckets(plan, Settings(device="cpu"), tmp_path / "done.json")
    assert told.is_set()
