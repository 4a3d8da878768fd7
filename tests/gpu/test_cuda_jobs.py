"""Embed jobs on a CUDA device: their vectors, short of memory, beyond float16, and when the device
fails.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from cuda_models import CPU, CUDA, ENVIRONMENT, WIDE, random_sequence, states

from plm_embed.inference import weights as preparation
from plm_embed.inference.settings import Settings
from plm_embed.jobs.completion_record import Completion
from plm_embed.keys import key
from plm_embed.models import weights
from plm_embed.models.engine import ROWS, Engine
from plm_embed.models.registry import MODELS, Model
from plm_embed.store.parts import Part
from support import checkpoints
from support.checkpoints import mean_of
from support.embedded import Embedder

pytestmark = pytest.mark.gpu


def prepare(folder: Path, model: Model, factor: float = 1.0) -> Path:
    state = checkpoints.random_state(model, 6)
    state["layers.0.fc1.weight"] *= factor
    source = checkpoints.write_fair_esm(folder / f"{model.name}.pt", model, state)
    preparation.prepare(model, source, folder / "weights")
    return folder / "weights"


def write_bucket(folder: Path, sequences: list[str]) -> Path:
    rows = sorted((key(sequence), sequence) for sequence in set(sequences))
    columns = {"key": [row[0] for row in rows], "sequence": [row[1] for row in rows]}
    table = pa.table(columns | {"length": pa.array([len(row[1]) for row in rows], pa.int32())})
    pq.write_table(table, folder / "0000.parquet")
    return folder / "0000.parquet"


def vectors(folder: Path, record: Completion) -> dict[str, np.ndarray]:
    found = {}
    for info in record.parts:
        with Part(folder / "store" / record.fingerprint_id / "parts" / info.name) as part:
            name = part.names[0]
            rows = part.rows(name, np.arange(part.count))
            found |= {held.decode(): vector for held, vector in zip(part.keys, rows, strict=True)}
    return found


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("model"), WIDE)


@pytest.mark.parametrize("dtype", ["auto", "float32", "float16"])
def test_the_embed_job(tmp_path: Path, prepared: Path, dtype: Any) -> None:
    sequences = [
        random_sequence(int(length), i) for i, length in enumerate(np.linspace(1, 1200, 300))
    ]
    settings = Settings(device="cuda", compute_dtype=dtype, storage_dtype="float32", scratch="")
    record = Embedder(prepared, tmp_path / "store", settings).embed(
        write_bucket(tmp_path, sequences), tmp_path / "0000.json"
    )
    print(record.self_test, record.tokens_per_second)
    assert record.computed == 300
    assert record.self_test and record.self_test.batch_invariant
    assert record.fingerprint.engine.startswith("packed-4-")
    assert record.worker.seconds > 0
    found = vectors(tmp_path, record)
    expected = states(engine_of_folder(prepared), sequences[::20], [WIDE.layers])
    for sequence, exact in zip(sequences[::20], expected, strict=True):
        mean = mean_of(exact[WIDE.layers])
        assert torch.cosine_similarity(torch.from_numpy(found[key(sequence)]), mean, dim=0) > 0.9995


def engine_of_folder(folder: Path) -> Engine:
    manifest, tensors, _ = weights.load(folder)
    return Engine(manifest.as_model, tensors, CPU, "float32")


def test_out_of_memory_loses_no_sequence(tmp_path: Path, prepared: Path) -> None:
    settings = Settings(
        device="cuda", compute_dtype="float32", toks_per_batch=16 * ROWS["cuda"], scratch=""
    )
    embedder = Embedder(prepared, tmp_path / "store", settings)
    sequences = [random_sequence(900, i) for i in range(300)]
    batches = embedder.worker.load()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    # room for what is there and for two of the smallest batches: one row takes about 15 times its
    # fp32 residual
    room = torch.cuda.memory_reserved() + 2 * ROWS["cuda"] * WIDE.dim * 4 * 15
    torch.cuda.set_per_process_memory_fraction(
        room / torch.cuda.get_device_properties(CUDA).total_memory
    )
    try:
        record = embedder.embed(write_bucket(tmp_path, sequences), tmp_path / "0000.json")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert batches.engine.rows <= batches.budget < 16 * ROWS["cuda"]
    assert (record.computed, record.skipped) == (300, ())


def test_float16_falls_back_to_fp32_for_what_it_cannot_hold(tmp_path: Path) -> None:
    folder = prepare(tmp_path, MODELS["esm2_t3_untrained"], factor=1e5)  # products beyond 65,504
    sequences = [random_sequence(length, length) for length in (5, 50, 200)]
    settings = Settings(device="cuda", compute_dtype="float16", storage_dtype="float32", scratch="")
    record = Embedder(folder, tmp_path / "store", settings).embed(
        write_bucket(tmp_path, sequences), tmp_path / "0000.json"
    )
    assert record.computed == 3
    expected = states(engine_of_folder(folder), sequences, [3])
    for sequence, exact in zip(sequences, expected, strict=True):
        found = torch.from_numpy(vectors(tmp_path, record)[key(sequence)])
        assert torch.cosine_similarity(found, mean_of(exact[3]), dim=0) > 0.999


FAILING = """
import os
import sys
from pathlib import Path
import torch
from plm_embed.models.engine import Engine
from plm_embed.errors import DeviceError
from plm_embed.inference.settings import Settings

folder, weights = Path(sys.argv[1]), Path(sys.argv[2])
sys.path.insert(0, sys.argv[3])
from support.embedded import Embedder

settings = Settings(device="cuda", toks_per_batch=16384, scratch="")
embedder = Embedder(weights, folder / "store", settings)
embedder.worker.load()
forward, calls = Engine.forward, []

def failing(self, batch, layers, exact=False):
    calls.append(1)
    if len(calls) == 4:
        torch.zeros(4, device="cuda")[torch.full((1,), 99, device="cuda")]  # a device-side assert
    return forward(self, batch, layers, exact)

Engine.forward = failing
try:
    embedder.embed(folder / "0000.parquet", folder / "0000.json")
except DeviceError as error:
    # as a worker ends: in a context that is lost, to give back pinned memory aborts the process
    print(error, flush=True)
    os._exit(1)
"""


def test_a_poisoned_context_ends_the_job_and_keeps_what_was_finished(
    tmp_path: Path, prepared: Path
) -> None:
    sequences = [random_sequence(900, i) for i in range(150)]  # more than 8 batches
    write_bucket(tmp_path, sequences)
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", FAILING, str(tmp_path), str(prepared), tests]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, env=ENVIRONMENT
    )
    assert ended.returncode == 1, ended.stderr
    assert "CUDA error: the GPU" in ended.stdout
    assert not (tmp_path / "0000.json").exists()
    parts = list((tmp_path / "store").glob("*/parts/*.h5"))
    assert len(parts) == 1
    record = Embedder(prepared, tmp_path / "store", Settings(device="cuda", scratch="")).embed(
        tmp_path / "0000.parquet", tmp_path / "0000.json"
    )
    assert record.found > 0
    assert record.found + record.computed == 150
