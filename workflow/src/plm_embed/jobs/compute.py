"""Sequences of one bucket on their way through the model into parts of the store."""

import logging
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plm_embed.errors import PassingError, PlmEmbedError, out_of_memory
from plm_embed.fingerprint import Fingerprint, is_per_residue, representation
from plm_embed.inference.batches import Packer
from plm_embed.inference.pipeline import Inference, Launched, Prefetch, Vectors
from plm_embed.io.progress import progress
from plm_embed.io.threads import Behind
from plm_embed.jobs.heartbeats import Heartbeat
from plm_embed.kernels import devices
from plm_embed.keys import Keys
from plm_embed.models.packed import Batch, Engine
from plm_embed.store.parts import PartRows, write_part
from plm_embed.store.store import Store
from plm_embed.windows import Span, combine, spans, stored_residues, window_count


class Buffer:
    """Collects rows for one part; `bytes` is what they take as fp32."""

    def __init__(self, fingerprint: Fingerprint) -> None:
        self.keys: list[bytes] = []
        self.bytes = 0
        self._fingerprint = fingerprint
        self._largest = np.finfo(
            np.float16 if fingerprint.storage_dtype == "float16" else np.float32
        ).max
        self._lengths: list[int] = []
        self._windows: list[int] = []
        self._vectors: dict[str, list[NDArray[np.float32]]] = {
            name: [] for name in fingerprint.representations
        }

    def add(
        self, key: bytes, length: int, windows: int, vectors: dict[str, NDArray[np.float32]]
    ) -> None:
        """Take the vectors of one sequence; raise PlmEmbedError when a number is not finite in the
        storage type.
        """
        for name, vector in vectors.items():
            if (
                is_per_residue(name)
                and len(vector) != stored_residues(np.array([length]), self._fingerprint)[0]
            ):
                raise RuntimeError(
                    f"{name} of sequence {key.decode()}: {len(vector)} rows for {length} residues"
                )
            largest = np.abs(vector).max()
            if not largest <= self._largest:  # NaN compares false
                raise PlmEmbedError(
                    f"{name} of sequence {key.decode()} ({length} residues) is not finite or too "
                    "large to store "
                    f"({largest:.3g})\nset embedding.compute_dtype and storage_dtype to float32; "
                    "if they are, "
                    "suspect the device"
                )
            self._vectors[name].append(vector)
            self.bytes += vector.nbytes
        self.keys.append(key)
        self._lengths.append(length)
        self._windows.append(windows)

    def part(self) -> PartRows:
        return PartRows(
            keys=np.array(self.keys, dtype="S64"),
            length=np.array(self._lengths, dtype=np.int32),
            windows=np.array(self._windows, dtype=np.int32),
            representations={
                name: vectors if is_per_residue(name) else np.stack(vectors)
                for name, vectors in self._vectors.items()
            },
        )


log = logging.getLogger(__name__)
BYTES_PER_PART = 512 << 20
"""A part is published at the latest when it holds this much; bounds the job's memory."""


@dataclass
class Computation:
    """Computes the vectors of some of `sequences`, whose keys are `keys`, and publishes them in
    `store`.
    """

    model: Engine
    store: Store
    keys: Keys
    sequences: list[str]
    budget: int
    """Tokens per batch."""
    bar: bool
    """Whether progress may be drawn; see `Settings.bar`."""
    out_of_memory: list[int] = field(default_factory=list)
    """Indices of sequences that did not fit into the device's memory even alone."""

    def run(
        self, todo: list[int], scratch: Path, flush_minutes: float, heartbeat: Heartbeat
    ) -> dict[str, Any]:
        """Embed the sequences `todo` (indices); returns counts and speed for the completion record.

        A part is published every `flush_minutes` and at the end, so a kill loses at most that much
        work. SIGTERM and SIGINT publish what is finished and raise PassingError; so does a device
        that fails, with DeviceError.
        """
        pieces = [(i, span) for i in todo for span in self._spans(i)]
        costs = [self.model.cost(stop - start) for _, (start, stop) in pieces]
        packer = Packer(costs, self.budget)
        inference = Inference(self.model, self.store.fingerprint)
        provenance = {"device": devices.device_name(self.model.device)}
        buffer = Buffer(self.store.fingerprint)
        waiting: dict[int, dict[Span, Vectors]] = {}
        problem: PlmEmbedError | None = None
        heartbeat.begin(sum(costs))
        began = flushed = time.monotonic()
        computed = tokens = 0
        interrupted = False
        with (
            _stop_signal() as stopped,
            progress("embed", sum(costs), "tokens", self.bar) as meter,
            Behind(1) as writer,
        ):
            try:
                for batch, vectors in self._results(inference, packer, pieces, costs):
                    computed += self._take(buffer, waiting, [pieces[at] for at in batch], vectors)
                    done = sum(costs[at] for at in batch)
                    tokens += done
                    meter.advance(done)
                    heartbeat.advance(done, computed)
                    if (
                        buffer.bytes >= BYTES_PER_PART
                        or time.monotonic() - flushed > 60 * flush_minutes
                    ):
                        writer.do(self._publish, buffer, scratch, provenance)
                        buffer, flushed = Buffer(self.store.fingerprint), time.monotonic()
                    if interrupted := stopped():
                        break
            except PlmEmbedError as error:
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
        return {
            "computed": computed,
            "tokens": tokens,
            "tokens_per_second": tokens / elapsed,
            "busy": inference.busy / elapsed,
            "busy_seconds": inference.busy,
            "exact": inference.exact,
            "toks_per_batch": packer.budget,
        }

    def _results(
        self, inference: Inference, packer: Packer, pieces: list[tuple[int, Span]], costs: list[int]
    ) -> Iterator[tuple[list[int], list[Vectors]]]:
        """The indices and vectors of batch after batch. Raises DeviceError when the device is of no
        more use.
        """

        def texts(batch: list[int]) -> list[str]:
            return [
                self.sequences[i][start:stop] for i, (start, stop) in (pieces[at] for at in batch)
            ]

        def prepare(batch: list[int]) -> Batch:
            return self.model.prepare(texts(batch))

        cuda = self.model.device.type == "cuda"
        launched: deque[tuple[list[int], Launched]] = deque()
        with Prefetch(packer, costs, prepare, ahead=2 if cuda else 0) as batches:
            while True:
                batch: list[int] = []
                exhausted = False
                try:
                    taken = batches.next()
                    if not taken and not launched:
                        return
                    if taken:
                        batch = taken[0]
                        launched.append((batch, inference.launch(texts(batch), taken[1])))
                        if (
                            len(launched) <= cuda
                        ):  # a GPU has one batch in hand while the host looks at the one before
                            continue
                    batch, waited_for = launched.popleft()
                    vectors = inference.collect(waited_for)
                except RuntimeError as error:
                    if lost := devices.failure(error, self.model.device):
                        raise lost from error
                    if not out_of_memory(error):
                        raise
                    exhausted = True
                if exhausted:  # only now: the error held on to the tensors of the call that failed
                    self._make_room(batches, pieces, batch or batches.give_up())
                else:
                    yield batch, vectors

    def _take(
        self,
        buffer: Buffer,
        waiting: dict[int, dict[Span, Vectors]],
        pieces: list[tuple[int, Span]],
        vectors: list[Vectors],
    ) -> int:
        """Put vectors of pieces into the buffer; pieces wait for the others of their sequence.
        Sequences finished.
        """
        finished = 0
        for (i, span), found in zip(pieces, vectors, strict=True):
            windows = waiting.setdefault(i, {})
            windows[span] = found
            if len(windows) == len(self._spans(i)):
                self._finish(buffer, i, waiting.pop(i))
                finished += 1
        return finished

    def _spans(self, i: int) -> list[Span]:
        return spans(len(self.sequences[i]), self.store.fingerprint.long_sequences)

    def _make_room(
        self, batches: Prefetch, pieces: list[tuple[int, Span]], batch: list[int]
    ) -> None:
        """After an out-of-memory error: halve the budget, or give up a sequence that does not fit
        alone.
        """
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()
        if len(batch) > 1:
            batches.put_back(batch, max(batches.packer.budget // 2, 1))
            log.warning("out of memory: token budget lowered to %d", batches.packer.budget)
            return
        i, (start, stop) = pieces[batch[0]]
        if self.model.cost(stop - start) <= self.model.rows:
            # even the smallest batch does not fit: the sequence is not to blame
            raise devices.too_small(self.model.device)
        length = len(self.sequences[i])
        log.warning(
            "sequence %s of %d residues does not fit into memory: skipped",
            self.keys[i].decode(),
            length,
        )
        self.out_of_memory.append(i)

    def _finish(self, buffer: Buffer, i: int, windows: dict[Span, Vectors]) -> None:
        fingerprint, where = self.store.fingerprint, self._spans(i)
        vectors = {
            (name := representation(pooling, layer)): combine(
                pooling, [windows[span][name] for span in where], where
            )
            for pooling in fingerprint.pooling
            for layer in fingerprint.layers
        }
        length = len(self.sequences[i])
        buffer.add(self.keys[i], length, window_count(length, fingerprint.long_sequences), vectors)

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


@contextmanager
def _stop_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether SIGTERM or SIGINT came."""
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
