"""Whether a job's host keeps up with a GPU where each residue has a row: everything but the model,
which a stand-in replaces that is as fast as an H100 on paper.

    python benchmarks/per_residue.py [--seconds 0.08] [--batches 40] [--dim 1280]

Every `--seconds` the stand-in hands over the rows of a batch of 32,768 tokens, in memory that
stands for pinned memory. What is timed is a job's own: rows to parts, checksums, files, SHA-256,
the copy into the store. Says what a batch took, in wall time and in processor time.
"""

import argparse
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from plm_embed.fingerprint import Fingerprint, LongSequences
from plm_embed.inference import pipeline, vector_stream
from plm_embed.inference.batches import Room
from plm_embed.inference.settings import Settings
from plm_embed.inference.weights import prepare
from plm_embed.jobs.embedder import Buffer, Embedder
from plm_embed.kernels import devices
from plm_embed.keys import key
from plm_embed.models.packed_batch import pack
from plm_embed.models.registry import find_model
from plm_embed.store.store import Store

TOKENS, ROWS, LENGTH = 32768, 16384, 350


class Pinned:
    """A tensor in memory that says that it is pinned."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)

    def is_pinned(self) -> bool:
        return True


class StandIn(pipeline.Inference):
    """Hands over the same rows for each batch, when a device would have computed them."""

    seconds, rows, free_at = 0.0, torch.empty(0), 0.0

    def launch(self, sequences: list[str], batch: Any, _: bool = False) -> pipeline.Launched:
        StandIn.free_at = max(time.monotonic(), StandIn.free_at) + self.seconds
        count = sum(stop - first for first, stop in batch.residues)
        found = {}
        for name in self.fingerprint.representations:
            found[name] = Pinned(self.rows[:count])
            if self.rows.dtype != torch.float32:
                found["largest_" + name] = Pinned(torch.ones(count))
        return pipeline.Launched(sequences, batch, found, (StandIn.free_at,))  # type: ignore[arg-type]

    def _wait(self, launched: pipeline.Launched) -> None:
        time.sleep(max(0.0, launched.marks[0] - time.monotonic()))
        self.busy += self.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.08)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--dim", type=int, default=1280)
    parser.add_argument("--storage", default="float16")
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    family = find_model("esm2_650m").family
    fingerprint = Fingerprint(
        "m", "0", (33,), ("per_residue",), LongSequences(), "bfloat16", asked.storage, "e"
    )  # fmt: skip
    model = SimpleNamespace(
        device=SimpleNamespace(type="cuda"),
        dtype=torch.bfloat16,
        rows=ROWS,
        manifest=SimpleNamespace(family=family),
        prepare=lambda texts: pack(
            [np.zeros(len(text) + 2, np.uint8) for text in texts],
            [(1, len(text) + 1) for text in texts],
            ROWS, 1, False,
        ),
    )  # fmt: skip
    random = np.random.default_rng(1)
    per_batch = TOKENS // (LENGTH + 2)
    letters = random.choice(list("ACDEFGHIKLMNPQRSTVWY"), (asked.batches * per_batch, LENGTH))
    sequences = ["".join(row) for row in letters]
    keys = np.array([key(sequence).encode() for sequence in sequences], dtype="S64")
    stored = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(asked.storage)
    rows = torch.randn(TOKENS, asked.dim)
    StandIn.rows = rows if stored is None else rows.to(stored)
    StandIn.seconds = asked.seconds
    vector_stream.Inference = StandIn  # type: ignore[misc]
    devices.device_name = lambda _: "stand-in"
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        weights, store = Path(folder) / "weights", Store(Path(folder) / "store", fingerprint)
        prepare(find_model("esm2_t3_untrained"), None, weights)
        settings = Settings(device="cpu", flush_minutes=60)
        with Embedder(weights, Path(folder) / "own", settings) as embedder:
            # the real way into the store, behind a device that computes nothing
            embedder.store = store
            embedder._buffer, embedder._other = Buffer(fingerprint), Buffer(fingerprint)
            embedder._model = model, Room(TOKENS, ROWS, ROWS)  # type: ignore[assignment]
            began, spent = time.monotonic(), time.process_time()
            embedder.embed(keys, sequences)
            embedder.publish(wait=True)
            wall, cpu = time.monotonic() - began, time.process_time() - spent
        size = sum(file.stat().st_size for file in store.parts_folder.iterdir())
    print(
        f"a batch: {wall / asked.batches:.3f} s, {cpu / asked.batches:.3f} s of a processor "
        f"(the device {asked.seconds} s); {size / wall / 1e6:,.0f} MB/s of rows"
    )


if __name__ == "__main__":
    main()
