"""One process per GPU: it embeds the buckets that its parent sends, with the model loaded once.

The parent never touches CUDA. A worker that fails in any way ends its process, and with it whatever
state the device was left in; the parent decides what happens to the bucket.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, Self

from plm_embed import startup
from plm_embed.errors import (
    DeviceError,
    PassingError,
    PlmEmbedError,
    device_lost,
    missing_extra,
    no_space,
    out_of_memory,
)
from plm_embed.inference.settings import Settings
from plm_embed.io.paths import unusable_path
from plm_embed.io.terminal import log_to_stderr, printable
from plm_embed.jobs.gpus import near_cores

Blames = Literal["", "device", "user", "disk"]
Answer = tuple[str, Blames] | float
CONTEXT = multiprocessing.get_context("spawn")
SECONDS_TO_START = 900.0
"""A worker that has not checked its device by then hangs; libraries on a busy network filesystem
load in minutes.
"""
SECONDS_TO_END = 10.0
"""The kernel may never let go of a process that waits for a broken device."""


class WorkerError(Exception):
    """A worker ended without finishing its bucket; says why.

    blames: "device" when another device may do the same bucket, "user" when trying again is of no
    use, "disk" when that is so of every bucket, because a disk is full or read-only, or a folder is
    not to be written to; else "".
    """

    def __init__(self, reason: str, blames: Blames = "") -> None:
        super().__init__(reason)
        self.blames = blames

    @classmethod
    def of(cls, error: Exception) -> Self:
        """Of whatever the parent met."""
        if isinstance(error, cls):
            return error
        if disk := no_space(error) or unusable_path(error):
            return cls(disk, "disk")
        return cls(f"{type(error).__name__}: {error}")


class Worker:
    """The parent's handle on one worker process."""

    def __init__(
        self, weights_folder: Path, store: Path, settings: Settings, gpu: str | None
    ) -> None:
        """Start the process. `gpu` becomes its CUDA_VISIBLE_DEVICES; None leaves that as it is."""
        self._connection, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(
            target=serve, args=(theirs, weights_folder, store, settings, gpu), daemon=True
        )
        self._process.start()
        theirs.close()

    def wait_until_ready(self) -> None:
        """Wait until the worker has checked its device; raises WorkerError when that failed."""
        if not self._connection.poll(SECONDS_TO_START):
            self._process.kill()
            self._process.join(SECONDS_TO_END)
            raise WorkerError(
                f"its device gave no sign of life within {SECONDS_TO_START:.0f} s", "device"
            )
        self._answer()

    def embed(self, bucket: Path, output: Path) -> float:
        """Have one bucket embedded and its completion record written; raises WorkerError when the
        worker ended.

        Returns how much of it had to be computed, 0 to 1.
        """
        with suppress(OSError):  # of a worker that has ended; the answer says how
            self._connection.send((bucket, output))
        return self._answer()

    def _answer(self) -> float:
        try:
            answer: Answer = self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode or 0
            memory = "; out of memory?" if -code == signal.SIGKILL else ""
            raise WorkerError(
                f"a worker was killed (signal {-code}{memory})"
                if code < 0
                else f"a worker ended with {code}"
            ) from None
        if isinstance(answer, tuple):
            self._process.join(SECONDS_TO_END)
            raise WorkerError(*answer)
        return answer

    def terminate(self) -> None:
        """Ask the worker to publish what it has and to end."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    def close(self) -> None:
        """Let an idle worker end."""
        self._connection.close()
        self._process.join()


def serve(
    connection: Connection, weights_folder: Path, store: Path, settings: Settings, gpu: str | None
) -> None:
    """The worker's process: check the device, embed each bucket received; after a failure say what
    went wrong and end.

    The answers: 0 for the device, then for each bucket how much of it was computed, 0 to 1; or what
    went wrong and who is to blame.
    """
    startup.spare_collector()
    log_to_stderr()
    # Ctrl-C reaches the parent too, which ends the workers in order
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    if gpu is not None:
        _take(gpu, settings.threads)
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        # its numbers are those of schedulers and nvidia-smi; CUDA's own begin with the fastest GPU
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    embedder = None
    try:
        from plm_embed.jobs.embed_bucket import Embedder
        from plm_embed.jobs.finished_bucket import is_finished
        from plm_embed.kernels import devices

        device = devices.choose_device(settings.device)
        devices.set_up(device, settings.threads, settings.compute_dtype)
        devices.check(device)
        _tell(connection, 0.0)
        while True:
            bucket, output = connection.recv()
            embedder = embedder or Embedder(weights_folder, store, settings)
            finished = is_finished(bucket, output, embedder.store)
            _tell(connection, 0.0 if finished else embedder.embed(bucket, output).share)
    except EOFError:
        startup.end_at_once(0)
    except DeviceError as error:
        _tell(connection, (str(error), "device"))
        startup.end_at_once(1)
    except PassingError as error:
        _tell(connection, (str(error), ""))
    except PlmEmbedError as error:
        _tell(connection, (str(error), "disk" if no_space(error) else "user"))
    except BaseException as error:
        disk = no_space(error, f"{store} or the scratch folder") or unusable_path(error)
        mendable = disk or missing_extra(error)
        if not mendable:
            traceback.print_exc()
        # another device may do the same bucket
        blames: Blames = "device" if device_lost(error) or out_of_memory(error) else ""
        if mendable:
            blames = "disk" if disk else "user"
        _tell(connection, (mendable or f"{type(error).__name__}: {error}", blames))
        if blames == "device":
            startup.end_at_once(1)
    sys.exit(1)


def _tell(connection: Connection, answer: Answer) -> None:
    """Answer the parent. If it was killed, nobody else says so in the log of the job, which the
    workflow tries again.
    """
    try:
        connection.send(answer)
    except BrokenPipeError:
        reason = answer[0] if isinstance(answer, tuple) else "its worker has ended in order"
        said = f"plm-embed: unfinished: the job was killed: {reason}"
        print(printable(said), file=sys.stderr, flush=True)


def _take(gpu: str, threads: int) -> None:
    """See this GPU only (CUDA is not loaded yet), and stay on the CPU cores next to it, if they are
    enough for the threads that compute and the one that prepares.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    if hasattr(os, "sched_setaffinity"):
        cores = near_cores(gpu) & os.sched_getaffinity(0)
        if len(cores) > threads:
            os.sched_setaffinity(0, cores)


def _end_with_parent() -> None:
    """Have the kernel send SIGTERM when the parent dies, however it dies. Without Linux, the closed
    pipe must do.
    """
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
