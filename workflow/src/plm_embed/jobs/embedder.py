"""A model on one device: sequences on their way through it into parts of the store."""

import logging
import os
import platform
import resource
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from plm_embed.errors import NodeError, no_space
from plm_embed.fingerprint import SPANS, Fingerprint, has_matrix
from plm_embed.inference import loading
from plm_embed.inference.batches import Room
from plm_embed.inference.settings import Settings
from plm_embed.inference.vector_stream import Vectors, VectorStream
from plm_embed.jobs.completion_record import WorkerInfo
from plm_embed.jobs.gpus import Meter
from plm_embed.jobs.heartbeat import Results, WorkerBeat
from plm_embed.jobs.nodes import job_id
from plm_embed.jobs.scratch import scratch_folder
from plm_embed.jobs.worker import Report
from plm_embed.kernels import devices
from plm_embed.keys import Keys
from plm_embed.models.engine import Engine
from plm_embed.models.manifest import read_manifest
from plm_embed.sequence_windows import span_ends, stored_residues, window_count
from plm_embed.store.parts import BYTES_PER_PART, PartInfo, PartRows, write_part
from plm_embed.store.store import Store
from plm_embed.wording import now

log = logging.getLogger(__name__)


class Buffer:
    """Rows for one part and what they took, then for another in the same memory: a fresh array
    would take the system as long as the copy into it.

    bytes: of the rows as fp32.
    """

    def __init__(self, fingerprint: Fingerprint) -> None:
        self._fingerprint = fingerprint
        self._rows: dict[str, NDArray[Any]] = {}
        self.clear()

    def clear(self) -> None:
        """Forget the rows, and keep the memory."""
        self.keys: list[bytes] = []
        self.bytes, self.work = 0, Results()
        self._lengths: list[int] = []
        self._ends = {name: [0] for name in self._fingerprint.representations}

    def add(self, key: bytes, length: int, vectors: Vectors) -> None:
        """Take the vectors of one sequence of `length` residues."""
        kept = stored_residues(np.array([length]), self._fingerprint.long_sequences)[0]
        for name, vector in vectors.items():
            rows, ends = np.atleast_2d(vector), self._ends[name]
            if name.startswith("per_residue_") and len(rows) != kept:
                raise RuntimeError(
                    f"{name} of sequence {key.decode()}: {len(rows)} rows for {length} residues"
                )
            if name == SPANS and span_ends(rows)[-1, 1] != kept:
                raise RuntimeError(f"sequence {key.decode()}: its tokens are not all its letters")
            start, end = ends[-1], ends[-1] + len(rows)
            held = self._rows.get(name, rows[:0])
            if end > len(held):
                # what is not filled takes no memory
                count = max(end, 2 * start, BYTES_PER_PART // (4 * rows.shape[1] * len(vectors)))
                self._rows[name] = np.empty((count, rows.shape[1]), rows.dtype)
                self._rows[name][:start] = held[:start]
            self._rows[name][start:end] = rows
            ends.append(end)
            self.bytes += 4 * rows.size
        self.keys.append(key)
        self._lengths.append(length)

    def part(self) -> PartRows:
        policy = self._fingerprint.long_sequences
        return PartRows(
            keys=np.array(self.keys, dtype="S64"),
            length=np.array(self._lengths, dtype=np.int32),
            windows=np.array([window_count(length, policy) for length in self._lengths], np.int32),
            representations={
                name: [self._rows[name][start:end] for start, end in pairwise(ends)]
                if has_matrix(name)
                else self._rows[name][: ends[-1]]
                for name, ends in self._ends.items()
            },
        )


class Embedder:
    """Embeds lists of sequences, with the model loaded once, and publishes their vectors.

    A context manager. A part is published by a thread when it is full or `flush_minutes` have
    passed, at `publish`, and at the end, whatever ends the block: what is finished is kept.
    """

    def __init__(self, weights_folder: Path, store_root: Path, settings: Settings) -> None:
        """Set up and check the device. The model is loaded when something is to be computed."""
        self.device = devices.choose_device(settings.device)
        devices.set_up(self.device, settings.threads, settings.compute_dtype)
        devices.check(self.device)
        manifest = read_manifest(weights_folder)
        fingerprint = loading.fingerprint_of(manifest, settings, self.device)
        devices.set_up(self.device, settings.threads, fingerprint.compute_dtype)
        self.store = Store(store_root, fingerprint)
        self.stopping = False
        """Set by a signal: no further batch is computed."""
        self._weights_folder, self._settings = weights_folder, settings
        self._model: tuple[Engine, Room] | None = None
        self._worker = worker_info(self.device)
        self._results = Results(workers=(self._worker,))  # since the last report
        self._meter = Meter(
            f"GPU-{torch.cuda.get_device_properties(self.device).uuid}"
            if self.device.type == "cuda"
            else ""
        )
        self._published: SimpleQueue[tuple[PartInfo, Results]] = SimpleQueue()
        self._stack = ExitStack()
        self._writer = self._stack.enter_context(ThreadPoolExecutor(1))
        self._writing: Future[None] | None = None
        self._scratch: Path | None = None
        self._computed, self._rate = 0, 0.0  # sequences; tokens per second of the present chunk
        self._progressed: str | None = None
        self._use: dict[str, Any] = {}  # of the device, as it was last
        self._buffer, self._other = Buffer(fingerprint), Buffer(fingerprint)
        self._began = time.monotonic()  # of the buffer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.publish(wait=True)
        finally:
            self._stack.close()

    def load(self) -> tuple[Engine, Room]:
        """Load the model and test it, once. Raises PlmEmbedError when the test fails."""
        if self._model is None:
            began = time.monotonic()
            fingerprint = self.store.fingerprint
            model, room, tested = loading.load(
                self._weights_folder,
                self.device,
                fingerprint.compute_dtype,
                fingerprint.layers,
                self._settings.toks_per_batch,
            )
            self._model, seconds = (model, room), time.monotonic() - began
            self._results += Results(loading_seconds=seconds, self_test=tested)
            log.info("model loaded, self-test passed in %.1f s: %s", seconds, tested)
        return self._model

    def embed(
        self,
        keys: Keys,
        sequences: list[str],
        tell: Callable[[float], object] = lambda _: None,
    ) -> None:
        """Compute the vectors of sequences, long ones first if they come so. `tell` is called
        after each batch with the share of the tokens that is computed, 0 to 1.

        The last ones may not be published when it returns. None may be too long for the policy.
        """
        # before anything is computed: it may be missing or full
        self._scratch = self._scratch or self._stack.enter_context(
            scratch_folder(
                self._settings.scratch, 2 * BYTES_PER_PART, self.store.folder / "scratch"
            )
        )
        stream = VectorStream(*self.load(), self.store.fingerprint, sequences)
        total, done, busy, exact = max(stream.tokens, 1), 0, 0.0, 0
        began = last = time.monotonic()
        for step in stream.run():
            for i, vectors in step.finished:
                self._buffer.add(keys[i], len(sequences[i]), vectors)
            time_now = time.monotonic()
            self._buffer.work += Results(
                computed=len(step.finished),
                tokens=step.tokens,
                exact=stream.exact - exact,
                seconds=time_now - last,
                busy_seconds=stream.busy - busy,
            )
            busy, exact, last = stream.busy, stream.exact, time_now
            self._computed += len(step.finished)
            done += step.counted
            self._rate, self._progressed = done / max(time_now - began, 1e-6), now()
            tell(done / total)
            full = self._buffer.bytes >= BYTES_PER_PART
            if full or time_now - self._began > 60 * self._settings.flush_minutes:
                self.publish()
            if self.stopping:
                break
        skipped: dict[str, str] = {
            keys[i].decode(): reason for i, reason in stream.left_out.items()
        }
        self._results += Results(skipped=skipped, toks_per_batch=stream.room.least)

    def publish(self, wait: bool = False) -> None:
        """Begin to publish what is finished, after the part before; wait: until it is there."""
        if self._buffer.keys:
            self._wait()
            self._writing = self._writer.submit(self._write, self._buffer)
            self._buffer, self._other = self._other, self._buffer
            self._buffer.clear()
            self._began = time.monotonic()
        if wait:
            self._wait()

    def _wait(self) -> None:
        """Return when the last part is published; raise what prevented it."""
        writing, self._writing = self._writing, None
        if writing:
            writing.result()

    def _write(self, buffer: Buffer) -> None:
        """Write a part: on scratch, then beside its final place, then by rename."""
        assert self._scratch
        local = self._scratch / "part.h5"
        origin = {
            "device": devices.device_name(self.device),
            "host": socket.gethostname(),
            "job": job_id(),
            "ended": now(),
            "seconds": round(buffer.work.seconds, 3),
            "tokens": buffer.work.tokens,
        }
        try:
            write_part(local, buffer.part(), self.store.fingerprint, origin)
        except OSError as error:
            full = no_space(error, str(local))
            if full and not local.is_relative_to(self.store.folder):
                raise NodeError(f"{socket.gethostname()}: {full}") from error
            raise
        info = self.store.publish(local)
        local.unlink()
        self._published.put((info, buffer.work))
        log.info("published %s: %d sequences, %.1f MB", info.name, info.rows, info.bytes / 1e6)

    def report(
        self,
        state: Literal["computing", "idle", "ended"],
        share: float = 0.0,
        *,
        answer: bool = False,
    ) -> Report:
        """Return the next message to the parent."""
        parts = []
        while not self._published.empty():
            part, work = self._published.get()
            self._results += work
            parts.append(part)
        if state != "ended":  # a device that is lost may not answer
            if self.device.type == "cuda":
                memory = int(torch.cuda.max_memory_reserved(self.device))
            else:
                unit = 1 if platform.system() == "Darwin" else 1024
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
            self._use = {"memory_bytes": memory, **self._meter.load()}
        worker = self._worker
        beat = WorkerBeat(
            pid=worker.pid,
            state=state,
            device=worker.device,
            gpu=worker.gpu,
            tokens_per_second=self._rate or None,
            sequences=self._computed,
            progressed=self._progressed,
            **self._use,
        )
        results, self._results = self._results, Results()
        results.joules = self._meter.joules()
        return Report(self.store.fingerprint, beat, results, parts, share, answer)


def worker_info(device: torch.device) -> WorkerInfo:
    """Describe this process and a device."""
    host, pid, job = socket.gethostname(), os.getpid(), job_id() or None
    name = devices.device_name(device)
    if device.type != "cuda":
        threads = torch.get_num_threads()
        return WorkerInfo(host=host, pid=pid, job=job, device=name, threads=threads)
    properties = torch.cuda.get_device_properties(device)
    return WorkerInfo(
        host=host,
        pid=pid,
        job=job,
        device=name,
        gpu=os.environ.get("CUDA_VISIBLE_DEVICES"),
        capability=f"{properties.major}.{properties.minor}",
        memory_bytes=properties.total_memory,
        cuda=torch.version.cuda,
    )
