"""A worker in its process: a model on one device embeds the chunks of a bucket that the parent
sends, and their vectors become parts of the store.
"""

import logging
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

import numpy as np
import torch

from plm_embed.accuracy import SelfTest
from plm_embed.errors import NodeError, PassingError, no_space
from plm_embed.fingerprint import SCORES, SPANS, LongSequences, has_matrix
from plm_embed.inference import loading
from plm_embed.inference.loading import Room
from plm_embed.inference.settings import Settings, resolved
from plm_embed.inference.vector_stream import Vectors, VectorStream
from plm_embed.jobs.completion_record import WorkerInfo
from plm_embed.jobs.heartbeat import job_id, moment
from plm_embed.jobs.process import Chunk, Message
from plm_embed.jobs.scratch import scratch_folder
from plm_embed.kernels import devices
from plm_embed.keys import Keys
from plm_embed.models.weights import read_manifest
from plm_embed.sequence_windows import span_ends, stored_residues, window_counts
from plm_embed.store.hdf5 import Array
from plm_embed.store.parts import BYTES_PER_PART, PartInfo, PartRows, write_part
from plm_embed.store.store import Store

log = logging.getLogger(__name__)
SECONDS_BETWEEN_MESSAGES = 5.0
SECONDS_BETWEEN_LOOKS = 0.2
"""A worker that waits for a chunk looks so often whether a signal came."""


@dataclass
class Rows:
    """Vectors on their way into a part, and the work that they took.

    lengths: residues; vectors: by representation, (D,) or (L, D) for each key; size: bytes as fp32.
    """

    policy: LongSequences
    keys: list[bytes] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    vectors: dict[str, list[Array]] = field(default_factory=dict)
    size: int = 0
    tokens: int = 0
    seconds: float = 0.0
    began: float = field(default_factory=time.monotonic)

    def add(self, key: bytes, length: int, vectors: Vectors) -> None:
        """Add the vectors of a sequence of `length` residues; each of these must have its row."""
        expected = stored_residues(np.array([length]), self.policy)[0]
        for name, values in vectors.items():
            rows = span_ends(values)[-1, 1] if name == SPANS else len(values)
            if (name == SPANS or name.startswith("per_residue_")) and rows != expected:
                words = f"{name} of sequence {key.decode()}: {rows} rows"
                raise RuntimeError(f"{words} for {length} residues")
            self.vectors.setdefault(name, []).append(values)
            self.size += 4 * values.size
        self.keys.append(key)
        self.lengths.append(length)

    def part(self) -> PartRows:
        """Return the rows as `write_part` takes them."""
        lengths = np.array(self.lengths, dtype=np.int32)
        windows = window_counts(lengths, self.policy)
        scores: dict[str, Array] = {}
        vectors: dict[str, Array | list[Array]] = {}
        for name, rows in self.vectors.items():
            if name in SCORES:
                scores[name] = np.concatenate(rows)
            else:
                vectors[name] = rows if has_matrix(name) else np.stack(rows)
        return PartRows(np.array(self.keys, dtype="S64"), lengths, windows, vectors, scores)


class Worker:
    """Embeds lists of sequences, with the model loaded once, and publishes their vectors.

    A context manager. A part is published by a thread when it is full or `flush_minutes` have
    passed, at `publish`, and at the end, whatever ends the block: finished vectors are stored.
    """

    def __init__(
        self, weights: Path, store: Path, settings: Settings, info: WorkerInfo | None = None
    ) -> None:
        """Set up and check the device. info: of the process before, to count on from."""
        self.device = devices.choose_device(settings.device)
        manifest = read_manifest(weights)
        settled = resolved(settings, manifest.as_model)
        fingerprint = loading.fingerprint_of(manifest, settled, self.device)
        devices.set_up(self.device, settings.threads, fingerprint.compute_dtype)
        devices.check(self.device)
        self.store = Store(store, fingerprint)
        name = devices.device_name(self.device)
        self.info = replace(
            info or WorkerInfo(), host=socket.gethostname(), pid=os.getpid(), device=name
        )
        if self.device.type == "cuda":
            self.info.gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
        else:
            self.info.threads = torch.get_num_threads()
        self._weights, self._settings = weights, settings
        self._room: Room | None = None  # the engine, and its room for batches
        self._self_test: SelfTest | None = None
        self._pipe: Connection | None = None
        self._told = time.monotonic()
        self._stopped = False  # by a signal: no further batch is computed
        self._rows = Rows(fingerprint.long_sequences)
        self._parts: list[PartInfo] = []
        self._skipped: dict[str, str] = {}
        self._scratch: Path | None = None
        self._stack = ExitStack()
        self._writer = self._stack.enter_context(ThreadPoolExecutor(1))
        self._writing = self._writer.submit(lambda: None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            self.publish(wait=True)

    def serve(self, pipe: Connection) -> None:
        """Embed chunk after chunk, until the parent sends None or a signal comes. EOFError or
        BrokenPipeError when the parent has ended.
        """

        def stop(*_: object) -> None:
            self._stopped = True

        self._pipe = pipe
        pipe.send(self.message(idle=True))
        while not self._stopped:
            if not pipe.poll(SECONDS_BETWEEN_LOOKS):
                continue
            chunk: Chunk | None = pipe.recv()
            if chunk is None:
                return
            self.load()
            # until there is something to publish, a signal ends the process at once
            signal.signal(signal.SIGTERM, stop)
            keys, sequences, publish = chunk
            self.embed(keys, sequences)
            if publish:
                self.publish(wait=True)
            if not self._stopped:
                pipe.send(self.message(idle=True))
        raise PassingError("stopped by a signal")

    def message(self, share: float = 0.0, *, idle: bool = False) -> Message:
        """Return a message to the parent."""
        fingerprint, tested = self.store.fingerprint, self._self_test
        return Message(fingerprint, self.info, self._parts, self._skipped, tested, share, idle)

    def load(self) -> Room:
        """Load the model and test it, once. Raises PlmEmbedError when the test fails."""
        if self._room is None:
            began, fingerprint = time.monotonic(), self.store.fingerprint
            dtype, budget = fingerprint.compute_dtype, self._settings.toks_per_batch
            self._room, self._self_test = loading.load(
                self._weights,
                self.device,
                dtype,
                fingerprint.layers,
                budget,
                scores=bool(fingerprint.scores),
            )
            seconds = time.monotonic() - began
            log.info("model loaded and tested in %.1f s: %s", seconds, self._self_test)
        return self._room

    def embed(self, keys: Keys, sequences: list[str]) -> None:
        """Compute the vectors of sequences, long ones first if they come so. The last ones may not
        be published when it returns. None may be too long for the policy.
        """
        if self._scratch is None:  # before anything is computed: it may be missing or full
            beside = self.store.folder / "scratch"
            folder = scratch_folder(self._settings.scratch, 2 * BYTES_PER_PART, beside)
            self._scratch = self._stack.enter_context(folder)
        stream = VectorStream(self.load(), self.store.fingerprint, sequences)
        began = last = time.monotonic()
        done = 0
        for step in stream.run():
            for i, vectors in step.finished:
                self._rows.add(keys[i], stream.lengths[i], vectors)
            now = time.monotonic()
            self._rows.tokens += step.tokens
            self._rows.seconds += now - last
            last, done = now, done + step.counted
            self.info.tokens_per_second = done / max(now - began, 1e-6)
            self.info.progressed = moment()
            if self._pipe and now - self._told > SECONDS_BETWEEN_MESSAGES:
                self._told = now
                self._pipe.send(self.message(done / stream.tokens))
            minutes = (now - self._rows.began) / 60
            if self._rows.size >= BYTES_PER_PART or minutes > self._settings.flush_minutes:
                self.publish()
            if self._stopped:
                break
        self._skipped |= {keys[i].decode(): reason for i, reason in stream.left_out.items()}

    def publish(self, wait: bool = False) -> None:
        """Begin to publish the finished vectors, after the part before; wait: until it is there."""
        self._writing.result()  # or what prevented it
        if self._rows.keys:
            self._writing = self._writer.submit(self._write, self._rows)
            self._rows = Rows(self.store.fingerprint.long_sequences)
        if wait:
            self._writing.result()

    def _write(self, rows: Rows) -> None:
        """Write a part: on scratch, then beside its final place, then by rename."""
        assert self._scratch
        info, local = self.info, self._scratch / "part.h5"
        origin = {
            "device": info.device,
            "host": info.host,
            "job": job_id(),
            "ended": moment(),
            "seconds": round(rows.seconds, 3),
            "tokens": rows.tokens,
        }
        try:
            write_part(local, rows.part(), self.store.fingerprint, origin)
        except OSError as error:
            full = no_space(error, str(local))
            if full and not local.is_relative_to(self.store.folder):
                raise NodeError(f"{info.host}: {full}") from error
            raise
        part = self.store.publish(local)
        local.unlink()
        self._parts.append(part)
        info.computed += len(rows.keys)
        info.tokens += rows.tokens
        info.seconds += rows.seconds
        log.info("published %s: %d sequences, %.1f MB", part.name, part.rows, part.bytes / 1e6)
