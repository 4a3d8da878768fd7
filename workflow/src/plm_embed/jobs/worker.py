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
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from plm_embed import startup
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
from plm_embed.jobs.gpus import near_cores
from plm_embed.jobs.heartbeat import Results, WorkerBeat
from plm_embed.keys import Keys
from plm_embed.store.parts import PartInfo

if TYPE_CHECKING:
    from plm_embed.jobs.embedder import Embedder

CONTEXT: Any = multiprocessing.get_context("spawn")
SECONDS_BETWEEN_MESSAGES = 5.0
SECONDS_BETWEEN_LOOKS = 0.2
"""A worker that waits for a chunk looks so often whether a signal came."""


class Chunk(NamedTuple):
    """Sequences to embed. publish: have them, and all before, in the store before the answer."""

    keys: Keys
    sequences: list[str]
    publish: bool


class Report(NamedTuple):
    """A message of a worker.

    results and parts: since the last message; share: of the tokens of the present chunk that are
    computed, 0 to 1; answer: whether the chunk is done.
    """

    fingerprint: Fingerprint
    beat: WorkerBeat
    results: Results
    parts: list[PartInfo]
    share: float
    answer: bool


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
    """Embed chunks until the parent sends None. `gpu` becomes CUDA_VISIBLE_DEVICES; None
    leaves that as it is.

    Messages to the parent: a `Report` when the device works, now and then, and for each chunk; the
    error that ends it. After a SIGTERM what is finished is published, and the process ends.
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
        from plm_embed.jobs.embedder import Embedder

        with Embedder(weights_folder, store, settings) as embedder:
            pipe.send(embedder.report("idle"))
            embed_chunks(pipe, embedder)
        if embedder.stopping:
            raise PassingError("stopped by a signal")
    except BaseException as error:
        failure = failure_of(error, f"{store} or the scratch folder")
        try:
            if embedder is not None:
                pipe.send(embedder.report("ended"))
            pipe.send(failure)
        except OSError:  # nobody else says so in the log of the job, which may be tried again
            words = f"plm-embed: unfinished: the job was killed: {failure}"
            print(printable(words), file=sys.stderr, flush=True)
        startup.end_at_once(1)
    startup.end_at_once(0)


def embed_chunks(pipe: Connection, embedder: "Embedder") -> None:
    """Answer chunk after chunk, until None or a signal comes."""
    last = time.monotonic()

    def tell(share: float) -> None:
        nonlocal last
        if time.monotonic() - last > SECONDS_BETWEEN_MESSAGES:
            last = time.monotonic()
            pipe.send(embedder.report("computing", share))

    def stop(*_: object) -> None:
        embedder.stopping = True

    while not embedder.stopping:
        if not pipe.poll(SECONDS_BETWEEN_LOOKS):
            continue
        try:
            chunk: Chunk | None = pipe.recv()
        except EOFError:
            raise PassingError("its parent is gone") from None
        if chunk is None:
            return
        if chunk.sequences:
            embedder.load()
        # only now: until there is something to publish, a signal ends the process at once
        signal.signal(signal.SIGTERM, stop)
        if chunk.sequences:
            embedder.embed(chunk.keys, chunk.sequences, tell)
        if chunk.publish:
            embedder.publish(wait=True)
        if not embedder.stopping:
            pipe.send(embedder.report("idle", answer=True))


def failure_of(error: BaseException, written: str) -> PlmEmbedError:
    """Return what ended a worker in words: as a NodeError where the node is to blame, as a
    PassingError where another worker may do better. written: the folders that it writes to.
    """
    if isinstance(error, PlmEmbedError):
        kinds = (NodeError, PassingError, PlmEmbedError)
        return next(kind(str(error)) for kind in kinds if isinstance(error, kind))
    if reason := no_space(error, written) or unusable_path(error) or missing_extra(error):
        return PlmEmbedError(reason)
    traceback.print_exc()
    lost = device_lost(error) or out_of_memory(error)
    return (NodeError if lost else PassingError)(f"{type(error).__name__}: {error}")
