"""Sequences of one bucket on their way through the model into parts of the store."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import PassingError
from plm_embed.fingerprint import SPANS, Fingerprint, has_matrix
from plm_embed.inference.pipeline import Vectors
from plm_embed.inference.vector_stream import VectorStream
from plm_embed.io.progress import progress
from plm_embed.io.threads import Behind
from plm_embed.jobs.completion_record import Work
from plm_embed.jobs.heartbeats import Heartbeat
from plm_embed.jobs.stop_signals import on_stop
from plm_embed.kernels import devices
from plm_embed.keys import Keys
from plm_embed.sequence_windows import span_ends, stored_residues, window_count
from plm_embed.store.store import Store
from plm_embed.store.write_parts import BYTES_PER_PART, PartRows, write_part

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


@dataclass
class Computation:
    """Computes the vectors of some of a bucket's sequences, whose keys are `keys`, and publishes
    them in `store`.
    """

    stream: VectorStream
    store: Store
    keys: Keys
    bar: bool
    """Whether progress may be drawn; see `Settings.bar`."""

    def run(
        self, todo: list[int], scratch: Path, flush_minutes: float, heartbeat: Heartbeat
    ) -> Work:
        """Embed the sequences `todo` (indices); returns counts and speed for the completion record.

        A part is published every `flush_minutes` and at the end, so a kill loses at most that much
        work. SIGTERM and SIGINT publish what is finished and raise PassingError; so does a device
        that fails, with DeviceError.
        """
        total = self.stream.tokens(todo)
        provenance = {"device": devices.device_name(self.stream.model.device)}
        buffer, other = Buffer(self.store.fingerprint), Buffer(self.store.fingerprint)
        problem: Exception | None = None
        heartbeat.begin(total)
        began = flushed = time.monotonic()
        computed = tokens = 0
        stopped: list[bool] = []
        interrupted = False
        with (
            on_stop(lambda: stopped.append(True)),
            progress("embed", total, "tokens", self.bar) as meter,
            Behind(1) as writer,
        ):
            try:
                for step in self.stream.run(todo):
                    for i, vectors in step.finished:
                        buffer.add(self.keys[i], len(self.stream.sequences[i]), vectors)
                    computed += len(step.finished)
                    tokens += step.tokens
                    meter.advance(step.counted)
                    heartbeat.advance(step.counted, computed)
                    if (
                        buffer.bytes >= BYTES_PER_PART
                        or time.monotonic() - flushed > 60 * flush_minutes
                    ):
                        writer.do(self._publish, buffer, scratch, provenance)
                        # the writer is one call behind, so it is done with the other one
                        buffer, other, flushed = other, buffer, time.monotonic()
                        buffer.clear()
                    if interrupted := bool(stopped):
                        break
            except Exception as error:
                problem = error
            # what is finished is kept, whatever ended the loop
            writer.do(self._publish, buffer, scratch, provenance)
        if problem is not None:
            raise problem
        if interrupted:
            raise PassingError(
                f"stopped by a signal: {computed} of {len(todo)} sequences are in the store\n"
                "run it again: only the rest will be computed"
            )
        elapsed = time.monotonic() - began
        return Work(
            computed=computed,
            tokens=tokens,
            tokens_per_second=tokens / elapsed,
            busy=self.stream.busy / elapsed,
            busy_seconds=self.stream.busy,
            exact=self.stream.exact,
            toks_per_batch=self.stream.room.least,
        )

    def _publish(self, buffer: Buffer, scratch: Path, provenance: dict[str, str]) -> None:
        """Write what is finished as one part: on scratch first, then beside its final place, then
        by rename.
        """
        if not buffer.keys:
            return
        local = scratch / "part.h5"
        write_part(local, buffer.part(), self.store.fingerprint, provenance)
        part = self.store.publish(local)
        local.unlink()
        log.info("published %s: %d sequences, %.1f MB", part.name, part.rows, part.bytes / 1e6)
