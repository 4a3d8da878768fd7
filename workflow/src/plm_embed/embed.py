"""The embed job: the sequences of one bucket that the store lacks, through the model, into parts of the store."""

import json
import logging
import platform
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from plm_embed import __version__, devices, engine, weights
from plm_embed.batches import Packer
from plm_embed.buffer import Buffer
from plm_embed.errors import UserError
from plm_embed.files import write_json
from plm_embed.fingerprint import ComputeDtype, Fingerprint, LongSequences, Pooling, StorageDtype
from plm_embed.parts import write_part
from plm_embed.pooling import pool
from plm_embed.progress import progress
from plm_embed.scratch import scratch_folder
from plm_embed.self_test import self_test
from plm_embed.store import Store, keys_sha256
from plm_embed.windows import Span, combine, spans, window_count

log = logging.getLogger(__name__)
BYTES_PER_PART = 512 << 20
"""A part is published at the latest when it holds this much; bounds the job's memory."""
LIBRARIES = ("torch", "fair-esm", "h5py", "numpy")


@dataclass(frozen=True)
class Settings:
    """What to compute (part of the fingerprint) and how to get there (not part of it)."""

    layers: tuple[int, ...] = (-1,)
    pooling: tuple[Pooling, ...] = ("mean",)
    compute_dtype: ComputeDtype | Literal["auto"] = "auto"
    storage_dtype: StorageDtype = "float16"
    long_sequences: LongSequences = field(default_factory=LongSequences)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    toks_per_batch: int = 0
    scratch: str = "auto"
    flush_minutes: float = 5.0
    threads: int = 1


def embed(bucket: Path, weights_folder: Path, store_root: Path, output: Path, settings: Settings) -> dict[str, Any]:
    """Fill the store with the vectors of one bucket file and write its completion record to `output`.

    Only keys that no part holds are computed. What was published before a kill stays published; the record is
    written last. Returns the record.
    """
    started = datetime.now(UTC)
    manifest = weights.read_manifest(weights_folder)
    device = devices.choose_device(settings.device)
    devices.set_up(device, settings.threads)
    fingerprint = fingerprint_of(manifest, settings, device)
    store = Store(store_root, fingerprint)
    table = pq.read_table(bucket, columns=["key", "sequence"])
    keys = np.array(table["key"].to_pylist(), dtype="S64")
    sequences: list[str] = table["sequence"].to_pylist()
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int32)

    policy = fingerprint.long_sequences
    excluded = {i: "too_long" for i, length in enumerate(lengths) if not spans(int(length), policy)}
    missing = store.missing(keys)
    todo = [i for i in np.flatnonzero(missing) if i not in excluded]
    work: dict[str, Any] = {"computed": 0, "tokens": 0, "busy": None, "tokens_per_second": None, "self_test": None}
    if todo:
        run = _Run(store, fingerprint, keys, sequences, device, settings)
        with scratch_folder(settings.scratch, 2 * BYTES_PER_PART, store.folder / "scratch") as scratch:
            work = run.compute(todo, weights_folder, scratch)
        excluded |= run.out_of_memory
    seconds = (datetime.now(UTC) - started).total_seconds()
    kept = np.ones(len(keys), dtype=bool)
    kept[list(excluded)] = False
    record = {
        "schema_version": 1,
        "bucket": bucket.stem,
        "unique": len(keys),
        "keys_sha256": keys_sha256(keys),
        "fingerprint": json.loads(fingerprint.to_json()),
        "fingerprint_id": fingerprint.id,
        "parts": [part.__dict__ for part in store.covering(keys[kept])],
        "skipped": [
            {"key": keys[i].decode(), "length": int(lengths[i]), "reason": reason}
            for i, reason in sorted(excluded.items())
        ],
        "found": int((~missing).sum()),
        "worker": devices.describe(device),
        "versions": {name: version(name) for name in LIBRARIES}
        | {"plm-embed": __version__, "python": platform.python_version()},
        "seconds": seconds,
        "started": started.isoformat(timespec="seconds"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
    } | work
    if store.missing(keys[kept]).any():
        raise RuntimeError(f"bucket {bucket.stem}: the store lacks keys that were just published")
    write_json(output, record)
    log.info(
        "bucket %s: %d sequences, %d already in the store, %d computed, %d skipped, %.1f s",
        bucket.stem, len(keys), record["found"], work["computed"], len(excluded), seconds,
    )  # fmt: skip
    return record


def fingerprint_of(manifest: weights.Manifest, settings: Settings, device: torch.device) -> Fingerprint:
    """Resolve layer -1 and dtype `auto`; check that the model can do what is asked."""
    layers = tuple(
        layer % (manifest.layers + 1) if -manifest.layers - 1 <= layer < 0 else layer for layer in settings.layers
    )
    if any(not 0 <= layer <= manifest.layers for layer in layers) or len(set(layers)) < len(layers):
        raise UserError(
            f"embedding.layers: {list(settings.layers)}: {manifest.model} has layers 0 to {manifest.layers}, "
            "-1 is the last\nname existing layers, each once"
        )
    long = settings.long_sequences
    if manifest.max_residues is not None and (
        long.policy == "whole" or not 0 < long.max_residues <= manifest.max_residues
    ):
        if long.policy != "whole" or long.max_residues:
            raise UserError(
                f"embedding.long_sequences: {manifest.model} takes at most {manifest.max_residues} residues\n"
                f"set max_residues to {manifest.max_residues} or less, with policy window, crop or skip"
            )
        long = LongSequences("skip", manifest.max_residues)
    return Fingerprint(
        model=manifest.model,
        weights_sha256=manifest.sha256,
        layers=layers,
        pooling=settings.pooling,
        long_sequences=long,
        compute_dtype=devices.choose_dtype(settings.compute_dtype, device),
        storage_dtype=settings.storage_dtype,
        engine=engine.NAME,
    )


@dataclass
class _Run:
    """The vectors of one bucket on their way from the model to the store."""

    store: Store
    fingerprint: Fingerprint
    keys: NDArray[np.bytes_]
    sequences: list[str]
    device: torch.device
    settings: Settings
    out_of_memory: dict[int, str] = field(default_factory=dict)

    def compute(self, todo: list[int], weights_folder: Path, scratch: Path) -> dict[str, Any]:
        """Embed the sequences `todo` (indices), publishing a part every `flush_minutes` and at the end."""
        loading = time.monotonic()
        manifest, tensors = weights.load(weights_folder)
        model = engine.Engine(manifest, tensors, self.device, self.fingerprint.compute_dtype)
        del tensors
        tested = self_test(model, weights_folder)
        log.info("model loaded and self-test passed in %.1f s: %s", time.monotonic() - loading, tested)

        pieces = [(i, span) for i in todo for span in spans(len(self.sequences[i]), self.fingerprint.long_sequences)]
        costs = [stop - start + 2 for _, (start, stop) in pieces]
        packer = Packer(costs, self.settings.toks_per_batch or engine.TOKENS[self.device.type])
        buffer = Buffer(self.fingerprint)
        waiting: dict[int, dict[Span, dict[str, NDArray[np.float32]]]] = {}
        began = flushed = time.monotonic()
        busy, computed, tokens = 0.0, 0, 0
        with _stop_signal() as stopped, progress("embed", sum(costs), "tokens") as meter:
            for batch in packer:
                entered = time.monotonic()
                try:
                    vectors = self._forward(model, [pieces[at] for at in batch])
                except torch.OutOfMemoryError:
                    self._make_room(packer, pieces, costs, batch)
                    continue
                busy += time.monotonic() - entered
                done = sum(costs[at] for at in batch)
                tokens += done
                meter.advance(done)
                for (i, span), found in zip((pieces[at] for at in batch), vectors, strict=True):
                    where = spans(len(self.sequences[i]), self.fingerprint.long_sequences)
                    parts = waiting.setdefault(i, {})
                    parts[span] = found
                    if len(parts) == len(where):
                        self._finish(buffer, i, [parts[span] for span in where], where)
                        del waiting[i]
                        computed += 1
                overdue = time.monotonic() - flushed > 60 * self.settings.flush_minutes
                if buffer.bytes >= BYTES_PER_PART or overdue or stopped():
                    self._flush(buffer, scratch)
                    buffer, flushed = Buffer(self.fingerprint), time.monotonic()
                if stopped():
                    raise UserError(
                        f"stopped by a signal: {computed} of {len(todo)} sequences are in the store\n"
                        "run it again: only the rest will be computed"
                    )
            self._flush(buffer, scratch)
        elapsed = time.monotonic() - began
        return {
            "computed": computed,
            "tokens": tokens,
            "tokens_per_second": tokens / elapsed,
            "busy": busy / elapsed,
            "self_test": tested,
            "toks_per_batch": packer.budget,
        }

    def _forward(self, model: engine.Engine, pieces: list[tuple[int, Span]]) -> list[dict[str, NDArray[np.float32]]]:
        """Pooled vectors of each piece, by representation name."""
        batch = model.prepare([self.sequences[i][start:stop] for i, (start, stop) in pieces])
        hidden = model.forward(batch, self.fingerprint.layers)
        found: list[dict[str, NDArray[np.float32]]] = [{} for _ in pieces]
        for layer, states in hidden.items():
            for pooling in self.fingerprint.pooling:
                pooled = [pool(pooling, state) for state in model.split(batch, states)]
                # one transfer for all sequences: a vector at a time would stall the device
                rows = [1 if tensor.ndim == 1 else len(tensor) for tensor in pooled]
                joined = torch.cat([tensor.view(-1, tensor.shape[-1]) for tensor in pooled]).cpu().numpy()
                for vectors, tensor, rows_of_one in zip(
                    found, pooled, np.split(joined, np.cumsum(rows)[:-1]), strict=True
                ):
                    vectors[f"{pooling}_l{layer}"] = rows_of_one.reshape(tensor.shape)
        return found

    def _make_room(self, packer: Packer, pieces: list[tuple[int, Span]], costs: list[int], batch: list[int]) -> None:
        """After an out-of-memory error: halve the budget, or give up a sequence that does not fit alone."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if len(batch) == 1:
            i = pieces[batch[0]][0]
            log.warning(
                "sequence %s of %d residues does not fit into memory: skipped",
                self.keys[i].decode(),
                len(self.sequences[i]),
            )
            self.out_of_memory[i] = "out_of_memory"
            return
        packer.put_back([costs[at] for at in batch], batch)
        packer.budget = max(packer.budget // 2, 1)
        log.warning("out of memory: token budget lowered to %d", packer.budget)

    def _finish(self, buffer: Buffer, i: int, pieces: list[dict[str, NDArray[np.float32]]], where: list[Span]) -> None:
        vectors = {
            f"{pooling}_l{layer}": combine(pooling, [piece[f"{pooling}_l{layer}"] for piece in pieces], where)
            for pooling in self.fingerprint.pooling
            for layer in self.fingerprint.layers
        }
        length = len(self.sequences[i])
        buffer.add(self.keys[i], length, window_count(length, self.fingerprint.long_sequences), vectors)

    def _flush(self, buffer: Buffer, scratch: Path) -> None:
        """Write what is finished as one part: on scratch first, then beside its final place, then by rename."""
        if not buffer.keys:
            return
        local = scratch / "part.h5"
        write_part(local, buffer.part(), self.fingerprint, {"worker": devices.device_name(self.device)})
        part = self.store.publish(local)
        local.unlink()
        log.info("published %s: %d sequences, %.1f MB", part.name, part.rows, part.bytes / 1e6)


@contextmanager
def _stop_signal() -> Iterator[Any]:
    """Yield a function that says whether SIGTERM or SIGINT came; the loop then publishes what it has and ends."""
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
