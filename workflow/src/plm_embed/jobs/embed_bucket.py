"""The embed job of one bucket: what the store lacks is computed, then the completion record is
written.
"""

import logging
import os
import platform
import socket
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from plm_embed._version import __version__
from plm_embed.accuracy import SelfTest
from plm_embed.inference.resolve import fingerprint_of
from plm_embed.inference.room import Room, room_for
from plm_embed.inference.self_test import self_test
from plm_embed.inference.settings import Settings
from plm_embed.inference.vector_stream import VectorStream
from plm_embed.io.scratch import scratch_folder
from plm_embed.jobs.completion_record import (
    Completion,
    Skipped,
    Work,
    WorkerInfo,
    write_completion,
)
from plm_embed.jobs.compute_vectors import Computation
from plm_embed.jobs.heartbeats import Heartbeat
from plm_embed.kernels import devices
from plm_embed.keys import Keys, key_array, keys_sha256
from plm_embed.models import weights
from plm_embed.models.engine import Engine
from plm_embed.models.manifest import read_manifest
from plm_embed.sequence_windows import spans
from plm_embed.sequences.summary import bucket_table, check_kind
from plm_embed.sites.scheduler import job_id
from plm_embed.store.reuse import COPY_BYTES, Reuse, Reused
from plm_embed.store.store import Store
from plm_embed.store.write_parts import BYTES_PER_PART

log = logging.getLogger(__name__)
LIBRARIES = ("torch", "fair-esm", "h5py", "numpy")


def worker_info(device: torch.device) -> WorkerInfo:
    """This process and its device, for the completion record."""
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


class Embedder:
    """Embeds bucket after bucket on one device. The model is loaded when a bucket first needs it,
    and then kept.
    """

    def __init__(self, weights_folder: Path, store_root: Path, settings: Settings) -> None:
        self.weights_folder = weights_folder
        self.settings = settings
        self.device = devices.choose_device(settings.device)
        devices.set_up(self.device, settings.threads, settings.compute_dtype)
        self._manifest = read_manifest(weights_folder)
        fingerprint = fingerprint_of(self._manifest, settings, self.device)
        self.reuse = Reuse(settings.reuse, fingerprint)
        self.store = Store(store_root, fingerprint)
        self.tested: SelfTest | None = None
        self._loading = 0.0  # seconds spent on loading the model since the last completion record
        self._model: tuple[Engine, Room] | None = None

    def embed(self, bucket: Path, output: Path) -> Completion:
        """Fill the store with the vectors of one bucket file and write its completion record to
        `output`.

        Only keys that no part and no source of `reuse` holds are computed. What was published
        before a kill stays published; the record is written last. Returns the record.
        """
        started = datetime.now(UTC)
        check_kind(bucket, self._manifest.family.alphabet.name, self.settings.strand)
        table = bucket_table(bucket, ["key", "sequence"])
        keys = key_array(table["key"])
        sequences: list[str] = table["sequence"].to_pylist()
        policy = self.store.fingerprint.long_sequences
        excluded = {
            i: "too_long"
            for i, sequence in enumerate(sequences)
            if not spans(len(sequence), policy)
        }
        missing = self.store.missing(keys)
        found = int((~missing).sum())
        lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int32)
        reused = self._reuse(
            keys, lengths, missing & ~np.isin(np.arange(len(keys)), list(excluded))
        )
        if reused.total:
            missing = self.store.missing(keys)
        spared = ~missing
        todo = [int(i) for i in np.flatnonzero(missing) if i not in excluded]
        work = Work()
        if todo:
            with (
                Heartbeat(output.parent, bucket.stem, self.device) as heartbeat,
                scratch_folder(
                    self.settings.scratch, 2 * BYTES_PER_PART, self.store.folder / "scratch"
                ) as scratch,
            ):
                stream = VectorStream(*self._loaded(), self.store.fingerprint, sequences)
                work = Computation(stream, self.store, keys, self.settings.bar).run(
                    todo, scratch, self.settings.flush_minutes, heartbeat
                )
            excluded |= stream.left_out
        kept = np.ones(len(keys), dtype=bool)
        kept[list(excluded)] = False
        if self.store.missing(keys[kept]).any():
            raise RuntimeError(f"{bucket}: the store lacks keys that were just published")
        ended = datetime.now(UTC)
        record = Completion(
            **vars(work),
            bucket=bucket.stem,
            unique=len(keys),
            keys_sha256=keys_sha256(keys),
            fingerprint=self.store.fingerprint,
            fingerprint_id=self.store.fingerprint.id,
            parts=tuple(self.store.covering(keys[kept])),
            skipped=tuple(
                Skipped(keys[i].decode(), len(sequences[i]), reason)
                for i, reason in sorted(excluded.items())
            ),
            found=found,
            reused=reused.total,
            reused_from=dict(reused.counts),
            reused_devices=tuple(sorted(reused.devices)),
            spared_tokens=self._manifest.family.tokens(
                int(lengths[spared].sum()), int(spared.sum())
            ),
            self_test=self.tested,
            worker=worker_info(self.device),
            versions={
                **{name: version(name) for name in LIBRARIES},
                "plm-embed": __version__,
                "python": platform.python_version(),
            },
            loading_seconds=self._loading,
            seconds=(ended - started).total_seconds(),
            started=started.isoformat(timespec="milliseconds"),
            ended=ended.isoformat(timespec="milliseconds"),
        )
        self._loading = 0.0
        write_completion(output, record)
        log.info(
            "bucket %s: %d sequences, %d already in the store, %d reused, %d computed, %d "
            "skipped, %.1f s%s",
            bucket.stem,
            len(keys),
            found,
            reused.total,
            record.computed,
            len(excluded),
            record.seconds,
            f"; {work.tokens_per_second:,.0f} tokens/s on {record.worker.device}"
            if work.tokens_per_second is not None
            else "",
        )
        return record

    def _reuse(self, keys: Keys, lengths: NDArray[np.int32], wanted: NDArray[np.bool_]) -> Reused:
        if not self.settings.reuse or not wanted.any():
            return Reused()
        with scratch_folder(
            self.settings.scratch, 2 * COPY_BYTES, self.store.folder / "scratch"
        ) as scratch:
            return self.reuse.copy(keys[wanted], lengths[wanted], self.store, scratch)

    def _loaded(self) -> tuple[Engine, Room]:
        if self._model is None:
            began = time.monotonic()
            with devices.loading(self.device):
                manifest, tensors = weights.load(self.weights_folder)
                model = Engine(manifest, tensors, self.device, self.store.fingerprint.compute_dtype)
                room = room_for(model, self.store.fingerprint.layers, self.settings.toks_per_batch)
                self.tested = self_test(model, self.weights_folder, room.budget)
            self._model = model, room
            self._loading = time.monotonic() - began
            log.info("model loaded, self-test passed in %.1f s: %s", self._loading, self.tested)
        return self._model
