"""A model on one device: sequences on their way through it into parts of the store."""

import logging
import os
import platform
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from plm_embed.accuracy import SelfTest
from plm_embed.errors import DeviceError, NodeError, PlmEmbedError, no_space
from plm_embed.fingerprint import SPANS, Fingerprint, has_matrix
from plm_embed.inference.pipeline import Vectors
from plm_embed.inference.resolve import fingerprint_of
from plm_embed.inference.room import Room, room_for
from plm_embed.inference.self_test import self_test
from plm_embed.inference.settings import Settings
from plm_embed.inference.vector_stream import VectorStream
from plm_embed.io.scratch import scratch_folder
from plm_embed.io.threads import Behind
from plm_embed.jobs.completion_record import WorkerInfo
from plm_embed.jobs.heartbeat import Published
from plm_embed.jobs.nodes import job_id
from plm_embed.kernels import devices
from plm_embed.keys import Keys
from plm_embed.models import weights
from plm_embed.models.engine import Engine
from plm_embed.models.manifest import read_manifest
from plm_embed.sequence_windows import span_ends, stored_residues, window_count
from plm_embed.store.store import Store
from plm_embed.store.write_parts import BYTES_PER_PART, PartRows, write_part
from plm_embed.wording import now

log = logging.getLogger(__name__)


class Matrices:
    """Matrices one below the other, in memory that is allocated once and filled for part after
    part: a fresh array for each batch would take the system as long as the copy into it.
    """

    def __init__(self) -> None:
        self._rows: NDArray[Any] = np.empty((0, 0))
        self._ends = [0]

    def append(self, matrix: NDArray[Any]) -> None:
        """Copy a matrix behind the others."""
        start, end = self._ends[-1], self._ends[-1] + len(matrix)
        if end > len(self._rows):
            # what is not filled takes no memory
            count = max(end, 2 * len(self._rows), BYTES_PER_PART // (4 * matrix.shape[1]))
            held, self._rows = self._rows, np.empty((count, matrix.shape[1]), matrix.dtype)
            if start:
                self._rows[:start] = held[:start]
        self._rows[start:end] = matrix
        self._ends.append(end)

    def clear(self) -> None:
        self._ends = [0]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (self._rows[start:end] for start, end in pairwise(self._ends))


class Buffer:
    """Collects rows for one part, then for another; `bytes` is what they take as fp32."""

    def __init__(self, fingerprint: Fingerprint) -> None:
        self.keys: list[bytes] = []
        self.bytes = 0
        self._fingerprint = fingerprint
        self._lengths: list[int] = []
        self._vectors: dict[str, list[NDArray[np.float32]] | Matrices] = {
            name: Matrices() if has_matrix(name) else [] for name in fingerprint.representations
        }

    def add(self, key: bytes, length: int, vectors: Vectors) -> None:
        """Take the vectors of one sequence of `length` residues."""
        for name, vector in vectors.items():
            if has_matrix(name):
                self._check(name, key, length, vector)
            self._vectors[name].append(vector)
            self.bytes += 4 * vector.size
        self.keys.append(key)
        self._lengths.append(length)

    def clear(self) -> None:
        """Forget the rows, and keep the memory."""
        self.keys, self._lengths, self.bytes = [], [], 0
        for vectors in self._vectors.values():
            vectors.clear()

    def _check(self, name: str, key: bytes, length: int, matrix: NDArray[Any]) -> None:
        kept = stored_residues(np.array([length]), self._fingerprint.long_sequences)[0]
        if name.startswith("per_residue_") and len(matrix) != kept:
            raise RuntimeError(
                f"{name} of sequence {key.decode()}: {len(matrix)} rows for {length} residues"
            )
        if name == SPANS and span_ends(matrix)[-1, 1] != kept:
            raise RuntimeError(f"sequence {key.decode()}: its tokens are not all its letters")

    def part(self) -> PartRows:
        policy = self._fingerprint.long_sequences
        return PartRows(
            keys=np.array(self.keys, dtype="S64"),
            length=np.array(self._lengths, dtype=np.int32),
            windows=np.array([window_count(each, policy) for each in self._lengths], np.int32),
            representations={
                name: np.stack(vectors) if isinstance(vectors, list) else list(vectors)
                for name, vectors in self._vectors.items()
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
        fingerprint = fingerprint_of(read_manifest(weights_folder), settings, self.device)
        self.store = Store(store_root, fingerprint)
        self.self_test: SelfTest | None = None
        self.loading_seconds = 0.0
        self.budget = 0
        """The fewest tokens per batch so far; fewer where memory ran out."""
        self.stopping = False
        """Set by a signal: no further batch is computed."""
        self.published: SimpleQueue[Published] = SimpleQueue()
        self._weights_folder, self._settings = weights_folder, settings
        self._model: tuple[Engine, Room] | None = None
        self._stack = ExitStack()
        self._writer = self._stack.enter_context(Behind(1))
        self._scratch: Path | None = None
        self._load = gpu_load(self.device)
        self._computed = 0
        self._buffer, self._other = Buffer(fingerprint), Buffer(fingerprint)
        self._began = time.monotonic()
        self._tokens, self._exact, self._seconds, self._busy = 0, 0, 0.0, 0.0  # of the buffer

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
            with devices.loading(self.device):
                manifest, tensors = weights.load(self._weights_folder)
                fingerprint = self.store.fingerprint
                model = Engine(manifest, tensors, self.device, fingerprint.compute_dtype)
                room = room_for(model, fingerprint.layers, self._settings.toks_per_batch)
                self.budget = room.budget
                try:
                    self.self_test = self_test(model, self._weights_folder, room.budget)
                except PlmEmbedError as error:
                    if self.device.type == "cuda":  # the weights were right where they were made
                        raise DeviceError(str(error)) from error
                    raise
            self._model = model, room
            self.loading_seconds = time.monotonic() - began
            log.info(
                "model loaded, self-test passed in %.1f s: %s", self.loading_seconds, self.self_test
            )
        return self._model

    def embed(
        self,
        keys: Keys,
        sequences: list[str],
        tell: Callable[[float, float], object] = lambda *_: None,
    ) -> dict[int, str]:
        """Compute the vectors of sequences, long ones first if they come so; return why sequences,
        by index, have none. `tell` is called after each batch with the share of the tokens that is
        computed, 0 to 1, and the tokens per second.

        The last ones may not be published when it returns. None may be too long for the policy.
        """
        # before anything is computed: it may be missing or full
        self._scratch = self._scratch or self._stack.enter_context(
            scratch_folder(
                self._settings.scratch, 2 * BYTES_PER_PART, self.store.folder / "scratch"
            )
        )
        stream = VectorStream(*self.load(), self.store.fingerprint, sequences)
        todo = list(range(len(sequences)))
        total, done, busy, exact = stream.tokens(todo), 0, 0.0, 0
        began = last = time.monotonic()
        for step in stream.run(todo):
            for i, vectors in step.finished:
                self._buffer.add(keys[i], len(sequences[i]), vectors)
            self._computed += len(step.finished)
            done += step.counted
            self._tokens += step.tokens
            self._busy, busy = self._busy + stream.busy - busy, stream.busy
            self._exact, exact = self._exact + stream.exact - exact, stream.exact
            time_now = time.monotonic()
            self._seconds, last = self._seconds + time_now - last, time_now
            tell(done / max(total, 1), done / max(time_now - began, 1e-6))
            full = self._buffer.bytes >= BYTES_PER_PART
            if full or time_now - self._began > 60 * self._settings.flush_minutes:
                self.publish()
            if self.stopping:
                break
        self.budget = min(self.budget, stream.room.least)
        return dict(stream.left_out)

    def publish(self, wait: bool = False) -> None:
        """Begin to publish what is finished, after the part before; wait: until it is there."""
        if self._buffer.keys:
            took = self._buffer, self._tokens, self._exact, self._seconds, self._busy
            self._buffer, self._other, self._began = self._other, self._buffer, time.monotonic()
            self._tokens, self._exact, self._seconds, self._busy = 0, 0, 0.0, 0.0
            self._writer.do(self._write, *took)
            # the writer is one call behind, so it is done with this one
            self._buffer.clear()
        if wait:
            self._writer.wait()

    def _write(self, buffer: Buffer, tokens: int, exact: int, seconds: float, busy: float) -> None:
        """Write a part: on scratch, then beside its final place, then by rename."""
        if self._scratch is None:
            raise RuntimeError("nothing can be finished before there is scratch")
        local = self._scratch / "part.h5"
        origin = {
            "device": devices.device_name(self.device),
            "host": socket.gethostname(),
            "job": job_id(),
            "ended": now(),
            "seconds": round(seconds, 3),
            "tokens": tokens,
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
        self.published.put(Published(info, info.rows, tokens, exact, seconds, busy))
        log.info("published %s: %d sequences, %.1f MB", info.name, info.rows, info.bytes / 1e6)

    def use(self) -> dict[str, Any]:
        """Return what is known of the device's use, as fields of a `WorkerBeat`."""
        if self.device.type == "cuda":
            memory = int(torch.cuda.max_memory_reserved(self.device))
        else:
            unit = 1 if platform.system() == "Darwin" else 1024
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        return {"sequences": self._computed, "memory_bytes": memory, **self._load()}


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


def gpu_load(device: torch.device) -> Callable[[], dict[str, Any]]:
    """Return a function for what the GPU does now: utilization in per cent of the time, and watts,
    None where the driver does not tell them.
    """
    unknown = {"utilization": None, "watts": None}
    if device.type != "cuda":
        return unknown.copy
    with suppress(Exception):  # whatever NVML says, an embedding does not fail for it
        import pynvml

        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)

        def load() -> dict[str, Any]:
            values: dict[str, Any] = dict(unknown)
            with suppress(Exception):
                values["utilization"] = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
                values["watts"] = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
            return values

        return load
    return unknown.copy
