"""Batches through the model: prepared ahead in a thread, queued on the device, pooled there,
fetched when done.

On a GPU three things happen at a time: a thread packs the next batch, the device computes one, and
the host takes over the pooled vectors of the one before. On a CPU they happen one after the other.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plm_embed.fingerprint import SPANS, Fingerprint, has_matrix, representation
from plm_embed.inference.batches import Packer
from plm_embed.inference.pooling import pool_batch
from plm_embed.io.threads import give_up
from plm_embed.kernels import devices
from plm_embed.models.engine import Engine
from plm_embed.models.packed_batch import Batch

Vectors = dict[str, NDArray[Any]]
"""Vectors of one sequence or window, by representation name: (D,) fp32, or (L, D) per residue:
fp32, or stored bits (uint16), which were rounded on the device; then `largest_number` knows what
they were before. Stored bits may lie in memory that the next batches need: copy them.
"""
LARGEST = "largest_"
STORED = {"float16": torch.float16, "bfloat16": torch.bfloat16}
"""Storage types that matrices are rounded to on the device: half as much to copy and to hold."""


@dataclass(frozen=True)
class Launched:
    """A batch on its way: `rows` are its pooled rows by representation, in pinned memory on CUDA.

    marks: CUDA events of the begin, of the end and of the rows' arrival; none on a CPU, where the
    batch is done.
    """

    sequences: list[str]
    batch: Batch
    rows: dict[str, Tensor]
    marks: Sequence[Any] = ()


@dataclass
class Inference:
    """Runs sequences through a model. busy: seconds that the device was at work on what was
    collected.
    """

    model: Engine
    fingerprint: Fingerprint
    busy: float = 0.0
    exact: int = 0
    """Sequences that were computed in fp32, because float16 could not hold their numbers."""
    _copies: torch.cuda.Stream | None = None

    def launch(self, sequences: list[str], batch: Batch, exact: bool = False) -> Launched:
        """Queue a batch. An error about memory leaves nothing that matters in the queue."""
        if self.model.device.type != "cuda":
            began = time.monotonic()
            rows = self._pooled(batch, exact)
            self.busy += time.monotonic() - began
            return Launched(sequences, batch, rows)
        marks: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(3)]  # type: ignore[no-untyped-call]
        marks[0].record()
        pooled = self._pooled(batch, exact)
        marks[1].record()
        rows = {
            name: torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
            for name, found in pooled.items()
        }
        # the next batch need not wait until this one is copied
        self._copies = self._copies or torch.cuda.Stream(self.model.device)  # type: ignore[no-untyped-call]
        self._copies.wait_event(marks[1])
        with torch.cuda.stream(self._copies):
            for name, found in pooled.items():
                rows[name].copy_(found, non_blocking=True)
                found.record_stream(self._copies)
            marks[2].record()
        return Launched(sequences, batch, rows, marks)

    def collect(self, launched: Launched) -> list[Vectors]:
        """The vectors of a batch, when it is done. What is not finite in float16 is computed again
        in fp32.
        """
        self._wait(launched)
        found = self._split(launched)
        if self.model.dtype == torch.float16:
            broken = [
                i
                for i, vectors in enumerate(found)
                if not all(np.isfinite(largest_number(vectors, name)) for name in vectors)
            ]
            # fp32 takes twice the memory that the budget was measured for
            for batch in Packer([launched.batch.lengths[i] for i in broken], self.model.rows):
                texts = [launched.sequences[broken[at]] for at in batch]
                again = self.launch(texts, self.model.prepare(texts), exact=True)
                self._wait(again)
                for at, vectors in zip(batch, self._split(again), strict=True):
                    found[broken[at]] = vectors
            self.exact += len(broken)
        return found

    def _wait(self, launched: Launched) -> None:
        if launched.marks:
            began, ended, copied = launched.marks
            devices.wait(copied)
            self.busy += began.elapsed_time(ended) / 1000

    @torch.inference_mode()
    def _pooled(self, batch: Batch, exact: bool) -> dict[str, Tensor]:
        """Rows of each representation, on the device: one per sequence, residue or token. Of those
        that are rounded to the storage type, also the largest number of each row, (rows,).
        """
        batch = batch.to(self.model.device)
        stored = STORED.get(self.fingerprint.storage_dtype)
        rows = {}
        for layer, states in self.model.forward(batch, self.fingerprint.layers, exact).items():
            for pooling in self.fingerprint.pooling:
                name = representation(pooling, layer)
                rows[name] = pool_batch(pooling, states, batch)
                if stored is not None and has_matrix(name):
                    low, high = torch.aminmax(rows[name], dim=1)
                    rows[LARGEST + name] = torch.maximum(-low, high)
                    rows[name] = rows[name].to(stored)
        return rows

    def _split(self, launched: Launched) -> list[Vectors]:
        lengths = [stop - first for first, stop in launched.batch.residues]
        found: list[Vectors] = [{} for _ in lengths]
        ends = np.cumsum(lengths, dtype=np.int64)
        for name, rows in launched.rows.items():
            if name.startswith(LARGEST):
                parts = list(np.maximum.reduceat(rows.numpy(), [0, *ends[:-1]]))
            elif rows.dtype != torch.float32:
                parts = np.split(rows.view(torch.int16).numpy().view(np.uint16), ends[:-1])
            else:
                # pinned memory is scarce: the next batches need it
                array = rows.numpy().copy() if rows.is_pinned() else rows.numpy()
                parts = np.split(array, ends[:-1]) if has_matrix(name) else list(array)
            for vectors, part in zip(found, parts, strict=True):
                vectors[name] = part
        if "per_token" in self.fingerprint.pooling:
            pieces = launched.batch.split(launched.batch.tokens)
            for vectors, ids in zip(found, pieces, strict=True):
                vectors[SPANS] = self.model.spans(ids.numpy().astype(np.uint16))
        return found


def largest_number(vectors: Vectors, name: str) -> float:
    """The largest absolute number of a representation as it was computed; NaN if one is."""
    known = vectors.get(LARGEST + name)
    return float(np.abs(vectors[name]).max() if known is None else known)


@dataclass
class Prefetch:
    """Batches of a packer, with their sequences packed; `ahead` of them in a thread before they are
    asked for.
    """

    packer: Packer
    costs: Sequence[int]
    prepare: Callable[[list[int]], Batch]
    ahead: int
    _pool: ThreadPoolExecutor | None = None
    _waiting: deque[tuple[list[int], Callable[[], Batch]]] = field(default_factory=deque)

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(1) if self.ahead else None
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            give_up(self._pool)

    def next(self) -> tuple[list[int], Batch] | None:
        """The next batch's indices and the batch; None when there are no more, until some are put
        back.

        What `prepare` raises is raised here; then the batch still waits.
        """
        while len(self._waiting) <= self.ahead and (indices := self.packer.take()):
            self._waiting.append((indices, self._start(indices)))
        if not self._waiting:
            return None
        indices, prepared = self._waiting[0]
        batch = prepared()
        self._waiting.popleft()
        return indices, batch

    def _start(self, indices: list[int]) -> Callable[[], Batch]:
        if self._pool is None:
            return partial(self.prepare, indices)
        return self._pool.submit(self.prepare, indices).result

    def give_up(self) -> list[int]:
        """The indices of the batch that could not be prepared; it waits no longer."""
        return self._waiting.popleft()[0]

    def put_back(self, indices: list[int], budget: int) -> None:
        """Have these packed again, in batches of at most `budget` tokens, and all that was packed
        ahead too.
        """
        self.packer.budget = budget
        for each in (indices, *(taken for taken, _ in self._waiting)):
            self.packer.add([self.costs[at] for at in each], each)
        self._waiting.clear()
