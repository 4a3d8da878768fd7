"""Sequences of one bucket on their way through the model into parts of the store."""

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plm_embed import devices
from plm_embed.batches import Packer
from plm_embed.buffer import Buffer
from plm_embed.engine import TOKENS, Engine
from plm_embed.errors import DeviceError, UserError
from plm_embed.heartbeats import Heartbeat
from plm_embed.parts import Keys, write_part
from plm_embed.pooling import pool
from plm_embed.progress import progress
from plm_embed.store import Store
from plm_embed.windows import Span, combine, spans, window_count

log = logging.getLogger(__name__)
BYTES_PER_PART = 512 << 20
"""A part is published at the latest when it holds this much; bounds the job's memory."""

Vectors = dict[str, NDArray[np.float32]]
"""Of one sequence or window, by representation name: (D,), or (L, D) per residue."""


@dataclass
class Computation:
    """Computes the vectors of some of `sequences`, whose keys are `keys`, and publishes them in `store`."""

    model: Engine
    store: Store
    keys: Keys
    sequences: list[str]
    out_of_memory: list[int] = field(default_factory=list)
    """Indices of sequences that did not fit into the device's memory even alone."""

    def run(
        self, todo: list[int], scratch: Path, toks_per_batch: int, flush_minutes: float, heartbeat: Heartbeat
    ) -> dict[str, Any]:
        """Embed the sequences `todo` (indices); returns counts and speed for the completion record.

        A part is published every `flush_minutes` and at the end, so a kill loses at most that much work. SIGTERM and
        SIGINT publish what is finished and raise UserError.
        """
        pieces = [(i, span) for i in todo for span in self._spans(i)]
        costs = [stop - start + 2 for _, (start, stop) in pieces]
        packer = Packer(costs, toks_per_batch or TOKENS[self.model.device.type])
        buffer = Buffer(self.store.fingerprint)
        waiting: dict[int, dict[Span, Vectors]] = {}
        heartbeat.begin(sum(costs))
        began = flushed = time.monotonic()
        busy, computed, tokens = 0.0, 0, 0
        with _stop_signal() as stopped, progress("embed", sum(costs), "tokens") as meter:
            for batch in packer:
                entered = time.monotonic()
                try:
                    vectors = self._forward([pieces[at] for at in batch])
                except torch.OutOfMemoryError:
                    self._make_room(packer, pieces, costs, batch)
                    continue
                busy += time.monotonic() - entered
                done = sum(costs[at] for at in batch)
                tokens += done
                meter.advance(done)
                for (i, span), found in zip((pieces[at] for at in batch), vectors, strict=True):
                    windows = waiting.setdefault(i, {})
                    windows[span] = found
                    if len(windows) == len(self._spans(i)):
                        try:
                            self._finish(buffer, i, waiting.pop(i))
                        except UserError:
                            self._publish(buffer, scratch)
                            raise
                        computed += 1
                heartbeat.advance(done, computed)
                overdue = time.monotonic() - flushed > 60 * flush_minutes
                if buffer.bytes >= BYTES_PER_PART or overdue or stopped():
                    self._publish(buffer, scratch)
                    buffer, flushed = Buffer(self.store.fingerprint), time.monotonic()
                if stopped():
                    raise UserError(
                        f"stopped by a signal: {computed} of {len(todo)} sequences are in the store\n"
                        "run it again: only the rest will be computed"
                    )
            self._publish(buffer, scratch)
        elapsed = time.monotonic() - began
        return {
            "computed": computed,
            "tokens": tokens,
            "tokens_per_second": tokens / elapsed,
            "busy": busy / elapsed,
            "busy_seconds": busy,
            "toks_per_batch": packer.budget,
        }

    def _spans(self, i: int) -> list[Span]:
        return spans(len(self.sequences[i]), self.store.fingerprint.long_sequences)

    def _forward(self, pieces: list[tuple[int, Span]]) -> list[Vectors]:
        fingerprint = self.store.fingerprint
        batch = self.model.prepare([self.sequences[i][start:stop] for i, (start, stop) in pieces])
        hidden = self.model.forward(batch, fingerprint.layers)
        found: list[Vectors] = [{} for _ in pieces]
        for layer, states in hidden.items():
            for pooling in fingerprint.pooling:
                pooled = [pool(pooling, state) for state in self.model.split(batch, states)]
                # one transfer for all sequences: a vector at a time would stall the device
                joined = torch.cat([tensor.view(-1, tensor.shape[-1]) for tensor in pooled]).cpu().numpy()
                ends = np.cumsum([tensor.numel() // tensor.shape[-1] for tensor in pooled])
                for vectors, tensor, rows in zip(found, pooled, np.split(joined, ends[:-1]), strict=True):
                    vectors[f"{pooling}_l{layer}"] = rows.reshape(tensor.shape)
        return found

    def _make_room(self, packer: Packer, pieces: list[tuple[int, Span]], costs: list[int], batch: list[int]) -> None:
        """After an out-of-memory error: halve the budget, or give up a sequence that does not fit alone."""
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()
        if len(batch) == 1 and costs[batch[0]] <= self.model.rows:
            # even the smallest batch does not fit: the sequence is not to blame
            raise DeviceError(f"{devices.device_name(self.model.device)} has too little free memory for this model")
        if len(batch) == 1:
            i = pieces[batch[0]][0]
            length = len(self.sequences[i])
            log.warning("sequence %s of %d residues does not fit into memory: skipped", self.keys[i].decode(), length)
            self.out_of_memory.append(i)
            return
        packer.put_back([costs[at] for at in batch], batch)
        packer.budget = max(packer.budget // 2, 1)
        log.warning("out of memory: token budget lowered to %d", packer.budget)

    def _finish(self, buffer: Buffer, i: int, windows: dict[Span, Vectors]) -> None:
        fingerprint, where = self.store.fingerprint, self._spans(i)
        vectors = {
            f"{pooling}_l{layer}": combine(pooling, [windows[span][f"{pooling}_l{layer}"] for span in where], where)
            for pooling in fingerprint.pooling
            for layer in fingerprint.layers
        }
        length = len(self.sequences[i])
        buffer.add(self.keys[i], length, window_count(length, fingerprint.long_sequences), vectors)

    def _publish(self, buffer: Buffer, scratch: Path) -> None:
        """Write what is finished as one part: on scratch first, then beside its final place, then by rename."""
        if not buffer.keys:
            return
        local = scratch / "part.h5"
        provenance = {"device": devices.device_name(self.model.device)}
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
