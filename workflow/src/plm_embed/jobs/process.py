"""A worker as its parent knows it: the process that it runs in, and what the two tell each other.

The parent never touches CUDA. A worker that fails ends its process, and with it whatever state the
device was left in.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
import traceback
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from plm_embed import errors, startup
from plm_embed.accuracy import SelfTest
from plm_embed.errors import NodeError, PassingError, PlmEmbedError
from plm_embed.fingerprint import Fingerprint
from plm_embed.inference.settings import Settings
from plm_embed.io.terminal import log_to_stderr, printable
from plm_embed.jobs.completion_record import WorkerInfo
from plm_embed.keys import Keys
from plm_embed.store.parts import PartInfo

CONTEXT: Any = multiprocessing.get_context("spawn")
Chunk = tuple[Keys, list[str], bool]
"""Keys and sequences to embed; True: have them, and all before, in the store before the answer."""


class Message(NamedTuple):
    """A sign of life of a worker, or its answer to a chunk.

    parts and skipped (reasons by key): of this process; share: of the chunk's tokens that are
    computed, 0 to 1; idle: the worker asks for a chunk, the first one or the next.
    """

    fingerprint: Fingerprint
    info: WorkerInfo
    parts: list[PartInfo]
    skipped: dict[str, str]
    self_test: SelfTest | None
    share: float
    idle: bool


class WorkerProcess:
    """A worker and its present process.

    state: as in `WorkerInfo`, which its process does not know. failures: in a row; tokens: of the
    present chunk; share: of these computed.
    """

    def __init__(self, name: str, gpu: str | None, *arguments: Any) -> None:
        self.name, self.info, self._arguments = name, WorkerInfo(gpu=gpu), (gpu, *arguments)
        self.state, self.failures = "ended", 0
        self.process: Any = None

    @property
    def rate(self) -> float:
        """Return the tokens per second of the last chunk, or of the present one so far."""
        return self.info.tokens_per_second or 0.0

    def start(self) -> None:
        """Start a process, the first one or in place of one that ended."""
        # a file beside the user's input must not stand in for a module of a library
        os.environ["PYTHONSAFEPATH"] = "1"
        self.pipe, theirs = CONTEXT.Pipe()
        arguments = (theirs, *self._arguments, self.info)
        self.process = CONTEXT.Process(target=serve, args=arguments, daemon=True)
        resource_tracker.ensure_running()  # which would unblock the signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the process ignores it
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        theirs.close()
        self.state, self.tokens, self.share = "starting", 0, 0.0

    async def receive(self) -> Message | PlmEmbedError:
        """Wait for the next message; the last one may be the error that ended the process. EOFError
        or OSError when no more will come.
        """
        readable, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_reader(self.pipe.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self.pipe.fileno())
        message: Message | PlmEmbedError = self.pipe.recv()
        return message


def serve(  # noqa: PLR0917
    pipe: Connection, gpu: str | None, weights: Path, store: Path, settings: Settings,
    info: WorkerInfo,
) -> None:  # fmt: skip
    """Run the process of a worker. To the parent go a `Message` when the device works, now and
    then, and for each chunk; and the error that ends it.

    After a SIGTERM, and when the parent has ended, what is finished is published, and the process
    ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    startup.spare_collector()
    log_to_stderr()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        # its numbers are those of schedulers and nvidia-smi; CUDA's own begin with the fastest GPU
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    worker = None
    failure: PlmEmbedError | None = None
    try:
        from plm_embed.jobs.worker import Worker  # torch: not in the parent

        with Worker(weights, store, settings, info) as worker:
            worker.serve(pipe)
    except (EOFError, BrokenPipeError):
        failure = PassingError("its parent process has ended")
    except BaseException as error:
        failure = _in_words(error, f"{store} or the scratch folder")
    try:
        for message in filter(None, (worker and worker.message(), failure)):
            pipe.send(message)
    except OSError:  # nobody else says so in the log of the job, which may be tried again
        words = f"plm-embed: unfinished: the job was killed: {failure}"
        print(printable(words), file=sys.stderr, flush=True)
    startup.end_at_once(1 if failure else 0)


def _in_words(error: BaseException, written: str) -> PlmEmbedError:
    """Return what ended a worker as an error of ours: a NodeError where the node is to blame, a
    PassingError where another worker may do better. written: the folders that it writes to.
    """
    if isinstance(error, PlmEmbedError):
        return error
    if reason := errors.in_words(error, written):
        return PlmEmbedError(reason)
    traceback.print_exc()
    lost = errors.device_lost(error) or errors.out_of_memory(error)
    return (NodeError if lost else PassingError)(f"{type(error).__name__}: {error}")
