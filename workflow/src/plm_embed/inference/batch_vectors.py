"""A packed batch to the vectors of its sequences: forward pass, pooling and scores on the device,
then the copy to the host.
"""

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plm_embed.fingerprint import SPANS, TOKEN_SCORES, Fingerprint, has_matrix, representation
from plm_embed.inference.pooling import pool_batch
from plm_embed.kernels import devices
from plm_embed.models.engine import Engine
from plm_embed.models.packed_batch import Batch

Vectors = dict[str, NDArray[Any]]
"""Vectors of a sequence or window by representation, (D,) or (L, D): fp32, or of a matrix stored
bits (uint16) where the storage dtype is narrower.
"""
MASKED = "masked"
"""The log-probabilities (V,) of all tokens at the place that is masked."""
LARGEST = "_largest"
"""Ending of the name of the largest absolute number that a representation had before it was
rounded; NaN if any was.
"""
STORED = {"float16": torch.float16, "bfloat16": torch.bfloat16}
"""Storage dtypes that matrices are rounded to on the device: half as much to copy and to hold."""


class Launched(NamedTuple):
    """A batch on its way, and its rows by name: on CUDA in pinned memory, complete after the event
    `copied`.
    """

    batch: Batch
    rows: dict[str, Tensor]
    exact: bool
    copied: torch.cuda.Event | None


class BatchVectors:
    """Computes batch after batch what a fingerprint asks for. Several may be launched before the
    first is collected.
    """

    def __init__(self, engine: Engine, fingerprint: Fingerprint) -> None:
        self._engine, self._fingerprint = engine, fingerprint
        self._copies: torch.cuda.Stream | None = None

    @torch.inference_mode()
    def launch(self, batch: Batch, exact: bool = False) -> Launched:
        """Queue a batch: its forward pass, and the rows of each representation, one per sequence,
        residue or token, with the largest number of each. Of scores TOKEN_SCORES, or MASKED.

        `exact` as in `Engine.forward`. An error about memory leaves nothing that matters in the
        queue.
        """
        engine, asked = self._engine, self._fingerprint
        last, stored = engine.model.layers, STORED.get(asked.storage_dtype)
        head = bool(asked.scores) or batch.masked is not None
        on_device = batch.to(engine.device)
        layers = {*asked.layers, last} if head else {*asked.layers}
        states = engine.forward(on_device, layers, exact)
        rows = {
            representation(pooling, layer): pool_batch(pooling, states[layer], on_device)
            for layer, pooling in product(asked.layers, asked.pooling)
        }
        if on_device.masked is not None:
            rows[MASKED] = engine.log_probabilities(states[last])[on_device.masked]
        elif head:
            scores = engine.token_scores(states[last], on_device.tokens)
            rows[TOKEN_SCORES] = pool_batch("per_residue", scores, on_device)
        for name in [*rows]:
            low, high = torch.aminmax(rows[name], dim=1)
            rows[name + LARGEST] = torch.maximum(-low, high)
            if stored is not None and has_matrix(name) and name != TOKEN_SCORES:
                rows[name] = rows[name].to(stored)
        if engine.device.type != "cuda":
            return Launched(batch, rows, exact, None)
        pinned = {
            name: torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
            for name, part in rows.items()
        }
        # the next batch need not wait until this one is copied
        self._copies = self._copies or torch.cuda.Stream(engine.device)  # type: ignore[no-untyped-call]
        self._copies.wait_stream(torch.cuda.current_stream(engine.device))
        with torch.cuda.stream(self._copies):
            for name, part in rows.items():
                pinned[name].copy_(part, non_blocking=True)
                part.record_stream(self._copies)
        return Launched(batch, pinned, exact, self._copies.record_event())

    def collect(self, launched: Launched) -> list[Vectors]:
        """Return the vectors of each sequence of a batch when it is done. What float16 could not
        hold is computed again in fp32.
        """
        batch = launched.batch
        if launched.copied:
            devices.wait(launched.copied)
        starts = np.cumsum([0, *(stop - first for first, stop in batch.residues)])[:-1]
        sequences: list[Vectors] = [{} for _ in batch.lengths]
        for name, rows in launched.rows.items():
            halves = rows.dtype != torch.float32
            parts: Any = rows.view(torch.int16).numpy().view(np.uint16) if halves else rows.numpy()
            if rows.is_pinned():  # which is scarce: the next batches need it
                parts = parts.copy()
            if has_matrix(name) and name.endswith(LARGEST):
                parts = np.maximum.reduceat(parts, starts)
            elif has_matrix(name):
                parts = np.split(parts, starts[1:])
            for vectors, part in zip(sequences, parts, strict=True):
                vectors[name] = part
        if "per_token" in self._fingerprint.pooling:
            for vectors, ids in zip(sequences, batch.split(batch.tokens), strict=True):
                vectors[SPANS] = self._engine.spans(ids.numpy().astype(np.uint16))
        if self._engine.dtype == torch.float16 and not launched.exact:
            largest = [name for name in launched.rows if name.endswith(LARGEST)]
            overflown = [
                i
                for i, vectors in enumerate(sequences)
                if not np.isfinite([vectors[name] for name in largest]).all()
            ]
            again = self.collect(self.launch(batch, exact=True)) if overflown else sequences
            for i in overflown:
                sequences[i] = again[i]
        return sequences
