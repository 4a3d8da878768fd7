"""A worker: one process per GPU, which embeds and publishes the chunks of a bucket that its parent
sends.

The parent never touches CUDA. A worker that fails ends its process, and with it whatever state the
device was left in; the parent decides what happens to its sequences.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from plm_embed import startup
from plm_embed.accuracy import SelfTest
from plm_embed.errors import (
    NodeError,
    PassingError,
    PlmEmbedError,
    device_lost,
    missing_extra,
    no_space,
    out_of_memory,
)
from plm_embed.fingerprint import Fingerprint
from plm_embed.inference.settings import Settings
from plm_embed.io.paths import unusable_path
from plm_embed.io.terminal import log_to_stderr, printable
from plm_embed.jobs.completion_record import WorkerInfo
from plm_embed.jobs.gpus import near_cores
from plm_embed.keys import Keys

if TYPE_CHECKING:
    from plm_embed.jobs.embedder import Embedder

CONTEXT: Any = multiprocessing.get_context("spawn")
SECONDS_BETWEEN_MESSAGES = 5.0
SECONDS_BETWEEN_LOOKS = 0.2
"""While a worker waits for a chunk: whether a signal came."""


class Chunk(NamedTuple):
    """Sequences to embed. publish: have them, and all before, in the store before the answer."""

    keys: Keys
    sequences: list[str]
    publish: bool


@dataclass(frozen=True)
class Ready:
    """The first message of a worker: its device works."""

    fingerprint: Fingerprint
    info: WorkerInfo


@dataclass(frozen=True)
class Progress:
    """How far the present sequences are. share: of their tokens, 0 to 1; beat: fields of a
    `WorkerBeat`.
    """

    share: float
    beat: dict[str, Any]


@dataclass(frozen=True)
class Computed:
    """The answer to a chunk. seconds: that it took; skipped: reasons by key."""

    seconds: float
    skipped: dict[str, str]
    toks_per_batch: int
    loading_seconds: float
    self_test: SelfTest | None


@dataclass(frozen=True)
class Failed:
    """The last message of a worker that fails. fatal: no other worker could do better; node: the
    device or another part of this node is to blame.
    """

    reason: str
    fatal: bool = False
    node: bool = False


def start(*arguments: Any) -> tuple[Any, Connection]:
    """Start a process of `serve`. Returns it and the parent's end of its pipe."""
    # a file beside the user's input must not stand in for a module of a library
    os.environ["PYTHONSAFEPATH"] = "1"
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=serve, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def serve(
    pipe: Connection, weights_folder: Path, store: Path, settings: Settings, gpu: str | None
) -> None:
    """Embed chunks until the parent closes the pipe. `gpu` becomes CUDA_VISIBLE_DEVICES; None
    leaves that as it is.

    Messages to the parent: `Ready`; `Progress` and `Published` now and then; `Computed` for each
    chunk; `Failed`. After a SIGTERM what is finished is published, and the process ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":  # elsewhere the closed pipe must do
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
    startup.spare_collector()
    log_to_stderr()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        if hasattr(os, "sched_setaffinity"):
            cores = near_cores(gpu) & os.sched_getaffinity(0)
            if len(cores) > settings.threads:  # enough for those and the one that prepares
                os.sched_setaffinity(0, cores)
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        # its numbers are those of schedulers and nvidia-smi; CUDA's own begin with the fastest GPU
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    embedder = None
    try:
        from plm_embed.jobs.embedder import Embedder, worker_info

        with Embedder(weights_folder, store, settings) as embedder:
            pipe.send(Ready(embedder.store.fingerprint, worker_info(embedder.device)))
            embed_chunks(pipe, embedder)
        if embedder.stopping:
            raise PassingError("stopped by a signal")
        send_published(pipe, embedder)
    except BaseException as error:
        if embedder is not None:
            send_published(pipe, embedder)
        failure = failure_of(error, f"{store} or the scratch folder")
        try:
            pipe.send(failure)
        except OSError:  # nobody else says so in the log of the job, which may be tried again
            words = f"plm-embed: unfinished: the job was killed: {failure.reason}"
            print(printable(words), file=sys.stderr, flush=True)
        startup.end_at_once(1)
    startup.end_at_once(0)


def embed_chunks(pipe: Connection, embedder: "Embedder") -> None:
    """Answer chunk after chunk, until the pipe closes or a signal comes."""
    told = time.monotonic()

    def tell(share: float, rate: float) -> None:
        nonlocal told
        if time.monotonic() - told > SECONDS_BETWEEN_MESSAGES:
            told = time.monotonic()
            send_published(pipe, embedder)
            pipe.send(Progress(share, {"tokens_per_second": rate, **embedder.use()}))

    def stop(*_: object) -> None:
        embedder.stopping = True

    while not embedder.stopping:
        if not pipe.poll(SECONDS_BETWEEN_LOOKS):
            continue
        try:
            chunk = pipe.recv()
        except EOFError:
            return
        if chunk.sequences:
            embedder.load()
        # only now: until there is something to publish, a signal ends the process at once
        signal.signal(signal.SIGTERM, stop)
        began = time.monotonic()
        skipped = {}
        if chunk.sequences:
            skipped = embedder.embed(chunk.keys, chunk.sequences, tell)
        seconds = time.monotonic() - began
        if chunk.publish:
            embedder.publish(wait=True)
        send_published(pipe, embedder)
        if not embedder.stopping:
            pipe.send(
                Computed(
                    seconds,
                    {chunk.keys[i].decode(): reason for i, reason in skipped.items()},
                    embedder.budget,
                    embedder.loading_seconds,
                    embedder.self_test,
                )
            )


def send_published(pipe: Connection, embedder: "Embedder") -> None:
    """Tell the parent of the parts that are in the store."""
    while not embedder.published.empty():
        part = embedder.published.get()
        with suppress(BrokenPipeError):
            pipe.send(part)


def failure_of(error: BaseException, written: str) -> Failed:
    """Judge what ended a worker. written: the folders that it writes to."""
    if isinstance(error, PassingError):
        return Failed(str(error), node=isinstance(error, NodeError))
    if isinstance(error, PlmEmbedError):
        return Failed(str(error), fatal=True)
    if reason := no_space(error, written) or unusable_path(error) or missing_extra(error):
        return Failed(reason, fatal=True)
    traceback.print_exc()
    lost = device_lost(error) or out_of_memory(error)
    return Failed(f"{type(error).__name__}: {error}", node=lost)
