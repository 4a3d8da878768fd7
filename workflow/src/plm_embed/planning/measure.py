"""How fast this machine embeds: a sample of the campaign's own sequences, tried with as many
workers as will run.

Workers share memory bandwidth, caches and clock rate, so one alone would promise too much: each
runs the engine in a process of its own, as in the campaign. On machines that others use too the
speed moves; the spread is told with it.
"""

import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from plm_embed.errors import PlmEmbedError, StoreError, WeightsError
from plm_embed.inference.settings import Settings
from plm_embed.io.parquet import read_table
from plm_embed.jobs.completion_record import WorkerInfo
from plm_embed.models.family import Family
from plm_embed.models.manifest import MANIFEST
from plm_embed.models.registry import find_model
from plm_embed.planning.costs import Speed, device_label
from plm_embed.planning.model_settings import weights_folder
from plm_embed.sequence_windows import spans
from plm_embed.sequences.summary import bucket_names, verified
from plm_embed.setting import from_config
from plm_embed.workflow.config import Config

SLICES, SLICE_SECONDS = 3, 8.0
"""What is timed: so many slices of the sample, each of about so many seconds."""
ROWS = 50_000
"""Sequences to choose the slices from."""


class _Slice(NamedTuple):
    """Tokens that were computed, and how many per second."""

    tokens: int
    rate: float


@dataclass(frozen=True)
class _Trial:
    """What one worker found. startup: seconds from its start until the model is loaded and
    tested.
    """

    startup: float
    slices: list[_Slice]
    worker: WorkerInfo


def measure(config: Config, sequences: Path, threads: int, workers: int) -> Speed:
    """The speed of one of `workers` that work here at the same time, with `threads` CPU threads
    each.

    PlmEmbedError when there are no weights yet, nothing to embed, or a worker is killed.
    """
    weights = Path(weights_folder(config))
    if not (weights / MANIFEST).is_file():
        raise WeightsError(
            f"--measure: {weights}: no weights yet",
            remedy="run `snakemake --until weights --cores 1`",
            path=weights,
        )
    table = _some(sequences)
    if not table.num_rows:
        raise StoreError(
            f"--measure: {sequences}: no sequence to try\nplan without --measure", path=sequences
        )
    settings = replace(from_config(Settings, config), threads=threads)
    with (
        tempfile.TemporaryDirectory(prefix="plm-embed-plan-") as folder,
        ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        pq.write_table(table, Path(folder) / "some.parquet")
        asked = [
            pool.submit(
                _try,
                weights,
                Path(folder) / "some.parquet",
                Path(folder) / str(number),
                settings,
                time.time(),
            )
            for number in range(workers)
        ]
        try:
            trials = [future.result() for future in asked]
        except BrokenProcessPool:
            raise PlmEmbedError(
                "--measure: a worker was killed, perhaps for want of memory\ntry --workers 1"
            ) from None
    slices = [one for trial in trials for one in trial.slices]
    rates = [one.rate for one in slices]
    tokens = sum(one.tokens for one in slices)
    worker = trials[0].worker
    at_once = f", {workers} workers at a time" if workers > 1 else ""
    return Speed(
        device=device_label(worker.device, worker.threads),
        tokens_per_second=tokens / sum(one.tokens / one.rate for one in slices),
        basis="measured here",
        why=f"{tokens:,} tokens of the sequences, just now on "
        f"{worker.host}{at_once}; "
        f"{min(rates):,.0f} to {max(rates):,.0f} tokens/s in {len(rates)} slices",
        startup=sum(trial.startup for trial in trials) / workers,
        workers=workers,
    )


def _some(sequences: Path) -> pa.Table:
    """Unique sequences of the first buckets, ROWS or more if there are as many: a sample, since
    keys are random.
    """
    tables: list[pa.Table] = []
    for name in bucket_names(sequences):
        tables.append(read_table(verified(sequences, f"buckets/{name}.parquet")))
        if sum(table.num_rows for table in tables) >= ROWS:
            break
    return pa.concat_tables(tables)


def _try(weights: Path, sequences: Path, folder: Path, settings: Settings, asked: float) -> _Trial:
    """A worker's process: warm up, find out how much a slice is, then time the slices."""
    from plm_embed.inference.vector_stream import VectorStream
    from plm_embed.jobs.embedder import Embedder, worker_info

    table = read_table(sequences)
    embedder = Embedder(weights, folder, settings)
    model, room = embedder.load()
    fingerprint = embedder.store.fingerprint
    family = find_model(fingerprint.model).family

    def run(tokens: float, phase: float = 0.5) -> _Slice:
        """Embed about so many tokens, of lengths as in the whole, longest first."""
        texts = sample(table, tokens, phase, family)["sequence"].to_pylist()
        texts.sort(key=len, reverse=True)
        stream = VectorStream(model, room, fingerprint, texts)
        todo = [i for i, text in enumerate(texts) if spans(len(text), fingerprint.long_sequences)]
        began = time.monotonic()
        done = sum(step.tokens for step in stream.run(todo))
        return _Slice(done, done / (time.monotonic() - began))

    warm = run(2000)
    startup = time.time() - asked - warm.tokens / warm.rate
    rate = run(8000).rate
    slices: list[_Slice] = []
    for number in range(SLICES):
        slices.append(run(rate * SLICE_SECONDS, (number + 0.5) / SLICES))
        rate = slices[-1].rate
    return _Trial(startup, slices, worker_info(embedder.device))


def sample(table: pa.Table, tokens: float, phase: float, family: Family) -> pa.Table:
    """Rows with about so many tokens, evenly spaced in the order of length, so that long ones have
    their share.

    `phase`, 0 to 1, shifts them within their spacing.
    """
    table = table.take(pc.sort_indices(table["length"]))
    total = family.tokens(pc.sum(table["length"]).as_py(), table.num_rows)
    count = max(1, min(table.num_rows, round(table.num_rows * tokens / total)))
    rows = np.floor((np.arange(count) + phase) * table.num_rows / count).astype(np.int64)
    return table.take(pa.array(rows)).sort_by("key")
