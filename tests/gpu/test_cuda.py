"""The engine on a CUDA device: against the CPU, in any company, short of memory, and when the device fails."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import checkpoints
from plm_embed import attention, weights
from plm_embed.buckets import key
from plm_embed.devices import set_up
from plm_embed.embed import Embedder
from plm_embed.engine import DTYPES, ROWS, TOKENS, Engine
from plm_embed.inference import token_budget
from plm_embed.models import MODELS, Model
from plm_embed.parts import read_part
from plm_embed.pooling import pool, pool_packed
from plm_embed.self_test import write_golden
from plm_embed.settings import Settings
from plm_embed.tokens import RESIDUES

pytestmark = pytest.mark.gpu

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
"""Of processes that tests start: they find what this one finds."""

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
WIDE = Model("esm2_t3_wide", "esm2", layers=3, dim=640, heads=10)  # heads of 64, as in 650M and 3B
SHAPES = {
    "heads of 16": Model("esm2_t3_untrained", "esm2", layers=3, dim=32, heads=2),
    "heads of 24": Model("esm2_t3_24", "esm2", layers=3, dim=96, heads=4),
    "heads of 64": WIDE,
    "heads of 128": Model("esm2_t2_128", "esm2", layers=2, dim=512, heads=4),
    "esm1b": Model("esm1b_t3", "esm1b", layers=3, dim=128, heads=2, max_residues=1022),
}
LENGTHS = (1, 2, 30, 64, 65, 350, 350, 1022)
LONG = (1023, 2134)


def random_sequence(length: int, seed: int) -> str:
    return "".join(np.random.default_rng(seed).choice(list(RESIDUES), length))


def sequences_for(model: Model) -> list[str]:
    lengths = LENGTHS + (LONG if model.max_residues is None else ())
    return [random_sequence(length, seed) for seed, length in enumerate(lengths)]


def engine_of(model: Model, device: torch.device, dtype: str) -> Engine:
    source = weights.Source("fair-esm", "")
    shape = model.layers, model.dim, model.heads, model.max_residues
    manifest = weights.Manifest(model.name, model.architecture, *shape, True, "MIT", "", 0, source)
    return Engine(manifest, checkpoints.random_state(model, 4), device, dtype)  # type: ignore[arg-type]


def states(engine: Engine, sequences: list[str], layers: list[int]) -> list[dict[int, torch.Tensor]]:
    batch = engine.prepare(sequences)
    hidden = engine.forward(batch, layers)
    cut = {layer: engine.split(batch, found) for layer, found in hidden.items()}
    return [{layer: cut[layer][i] for layer in layers} for i in range(len(sequences))]


def half_types() -> Iterator[str]:
    yield "float16"
    if torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False):
        yield "bfloat16"


@pytest.fixture(autouse=True)
def no_tf32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("dtype", ["float32", *half_types()])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_layer_and_residue_agrees_with_the_cpu(shape: str, dtype: str) -> None:
    model = SHAPES[shape]
    sequences, layers = sequences_for(model), list(range(model.layers + 1))
    expected = states(engine_of(model, CPU, "float32"), sequences, layers)
    found = states(engine_of(model, CUDA, dtype), sequences, layers)
    for sequence, ours, theirs in zip(sequences, found, expected, strict=True):
        for layer in layers:
            assert ours[layer].shape == (len(sequence) + 2, model.dim)
            a, b = ours[layer].cpu(), theirs[layer]
            for part in (slice(None), slice(1, 2), slice(-2, -1)):  # all, the first and the last residue
                if dtype == "float32":
                    assert torch.allclose(a[part], b[part], atol=5e-5, rtol=1e-5), (len(sequence), layer)
                else:
                    assert torch.cosine_similarity(a[part], b[part], dim=1).min() > 0.999, (len(sequence), layer)
            if dtype != "float32":
                means = pool("mean", a), pool("mean", b)
                assert torch.cosine_similarity(*means, dim=0) > 0.9999 - 4e-4 * (len(sequence) < 3)


def test_tf32_is_used_where_it_is_chosen_and_nowhere_else() -> None:
    if torch.cuda.get_device_capability(CUDA) < (8, 0):
        pytest.skip("this GPU has no TF32")
    sequences = sequences_for(WIDE)
    found = {}
    for dtype in ("float32", "tfloat32"):
        set_up(CUDA, torch.get_num_threads(), dtype)  # type: ignore[arg-type]
        engine = engine_of(WIDE, CUDA, dtype)
        found[dtype] = [pool("mean", one[WIDE.layers]) for one in states(engine, sequences, [WIDE.layers])]
    apart = [float((a - b).norm() / b.norm()) for a, b in zip(found["tfloat32"], found["float32"], strict=True)]
    assert 1e-5 < max(apart) < 0.03


@pytest.mark.parametrize("dtype", ["float32", *half_types()])
def test_a_vector_has_the_same_bits_in_any_company_and_order(dtype: str) -> None:
    engine = engine_of(WIDE, CUDA, dtype)
    if engine.attention.label == "math":
        pytest.skip("torch's plain attention promises nothing")
    random = np.random.default_rng(1)
    ours = [
        random_sequence(length, seed) for seed, length in enumerate((1, 2, 40, 300, 300, 511, 600, 600, 1022, 2134))
    ]
    layers = [1, WIDE.layers]
    alone = [states(engine, [sequence], layers)[0] for sequence in ours]
    for trial in range(6):
        company = [random_sequence(int(length), 100 + trial) for length in random.integers(1, 1500, 2 * trial)]
        company += [random_sequence(600, 200 + trial)] * (trial % 3)
        everyone = ours + company
        order = random.permutation(len(everyone)) if trial else np.arange(len(everyone))
        found = states(engine, [everyone[i] for i in order], layers)
        for at, i in enumerate(order):
            if i < len(ours):
                for layer in layers:
                    assert torch.equal(found[at][layer], alone[i][layer]), (trial, len(everyone[i]), layer)


@pytest.mark.parametrize("dtype", ["float32", *half_types()])
def test_every_kernel_that_is_here_agrees_and_is_blind_to_company(dtype: str) -> None:
    lengths = (700, 700, 3, 129, 64, 700, 1)
    random = torch.Generator().manual_seed(2)
    qkv = torch.randn((sum(lengths) + 50, 3, 4, 64), generator=random).to(CUDA, DTYPES[dtype])
    expected = attention.sdpa(qkv.float().cpu(), attention.pack(lengths, CPU))
    tried = []
    for kernel in attention._candidates(CUDA, DTYPES[dtype]):
        if attention._problem(kernel, CUDA, DTYPES[dtype], 4, 64):
            continue
        tried.append(kernel.name)
        with torch.inference_mode():
            found = kernel(qkv, attention.pack(lengths, CUDA))
        assert (found.float().cpu() - expected).abs().max() < (1e-4 if dtype == "float32" else 0.02), kernel.name
        assert not found[sum(lengths) :].any()
        if kernel.label == "math":
            continue
        start = 0
        for length in lengths:
            with torch.inference_mode():
                alone = kernel(qkv[start : start + length].clone(), attention.pack((length,), CUDA))
            assert torch.equal(alone, found[start : start + length]), (kernel.name, length)
            start += length
    print("attention kernels:", dtype, tried)
    assert tried
    capable = torch.cuda.get_device_capability(CUDA) >= (8, 0)
    if dtype != "float32" and capable and hasattr(torch.nn.attention, "varlen"):
        assert tried[0].startswith("torch varlen_attn")


def test_fused_kernels_are_in_use_where_triton_is() -> None:
    pytest.importorskip("triton")
    assert engine_of(WIDE, CUDA, "float32").elementwise.name == "Triton"


def test_pooling_on_the_device_is_that_of_the_cpu() -> None:
    engine = engine_of(WIDE, CUDA, "float32")
    sequences = sequences_for(WIDE)
    batch = engine.prepare(sequences).to(CUDA)
    hidden = engine.forward(batch, [WIDE.layers])[WIDE.layers]
    for pooling in ("mean", "max", "bos", "per_residue"):
        found = pool_packed(pooling, hidden, batch.lengths, batch.segments).cpu()  # type: ignore[arg-type]
        each = [pool(pooling, one.cpu()) for one in engine.split(batch, hidden)]  # type: ignore[arg-type]
        expected = torch.cat([one.view(-1, WIDE.dim) for one in each])
        assert torch.allclose(found, expected, atol=2e-6), pooling


def test_a_sequence_of_36000_residues() -> None:
    model = MODELS["esm2_t6_8M_UR50D"]
    sequence = random_sequence(36_000, 1)
    exact = pool("mean", states(engine_of(model, CUDA, "float32"), [sequence], [6])[0][6])
    for dtype in half_types():
        half = pool("mean", states(engine_of(model, CUDA, dtype), [sequence], [6])[0][6])
        assert torch.cosine_similarity(exact, half, dim=0) > 0.9999, dtype


def test_the_budget_comes_from_the_free_memory() -> None:
    engine = engine_of(WIDE, CUDA, "float32")
    budget = token_budget(engine, [WIDE.layers])
    assert budget % ROWS["cuda"] == 0
    assert ROWS["cuda"] <= budget <= TOKENS["cuda"]


def prepare(folder: Path, model: Model, factor: float = 1.0) -> Path:
    state = checkpoints.random_state(model, 6)
    state["layers.0.fc1.weight"] *= factor
    source = checkpoints.write_fair_esm(folder / f"{model.name}.pt", model, state)
    weights.prepare(model, source, folder / "weights")
    write_golden(folder / "weights")
    return folder / "weights"


def write_bucket(folder: Path, sequences: list[str]) -> Path:
    rows = sorted((key(sequence), sequence) for sequence in set(sequences))
    columns = {"key": [row[0] for row in rows], "sequence": [row[1] for row in rows]}
    table = pa.table(columns | {"length": pa.array([len(row[1]) for row in rows], pa.int32())})
    pq.write_table(table, folder / "0000.parquet")
    return folder / "0000.parquet"


def vectors(folder: Path, record: dict[str, Any]) -> dict[str, np.ndarray]:
    found = {}
    for info in record["parts"]:
        with read_part(folder / "store" / record["fingerprint_id"] / "parts" / info["name"]) as part:
            name = part.names[0]
            rows = part.rows(name, np.arange(part.count))
            found |= {held.decode(): vector for held, vector in zip(part.keys, rows, strict=True)}
    return found


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("model"), WIDE)


@pytest.mark.parametrize("dtype", ["auto", "float32", "float16"])
def test_the_embed_job(tmp_path: Path, prepared: Path, dtype: Any) -> None:
    sequences = [random_sequence(int(length), i) for i, length in enumerate(np.linspace(1, 1200, 300))]
    settings = Settings(device="cuda", compute_dtype=dtype, storage_dtype="float32", scratch="")
    record = Embedder(prepared, tmp_path / "store", settings).embed(
        write_bucket(tmp_path, sequences), tmp_path / "0000.json"
    )
    print(json.dumps({name: record[name] for name in ("self_test", "busy", "tokens_per_second", "toks_per_batch")}))
    assert record["computed"] == 300
    assert record["self_test"]["batch_invariant"]
    assert record["fingerprint"]["engine"].startswith("packed-1-")
    assert 0 < record["busy"] <= 1
    found = vectors(tmp_path, record)
    expected = states(engine_of_folder(prepared), sequences[::20], [WIDE.layers])
    for sequence, exact in zip(sequences[::20], expected, strict=True):
        mean = pool("mean", exact[WIDE.layers])
        assert torch.cosine_similarity(torch.from_numpy(found[key(sequence)]), mean, dim=0) > 0.9995


def engine_of_folder(folder: Path) -> Engine:
    manifest, tensors = weights.load(folder)
    return Engine(manifest, tensors, CPU, "float32")


def test_out_of_memory_loses_no_sequence(tmp_path: Path, prepared: Path) -> None:
    settings = Settings(device="cuda", compute_dtype="float32", toks_per_batch=16 * ROWS["cuda"], scratch="")
    embedder = Embedder(prepared, tmp_path / "store", settings)
    sequences = [random_sequence(900, i) for i in range(300)]
    model = embedder._loaded()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    # room for what is there and for two of the smallest batches: one row takes about 15 times its fp32 residual
    room = torch.cuda.memory_reserved() + 2 * ROWS["cuda"] * WIDE.dim * 4 * 15
    torch.cuda.set_per_process_memory_fraction(room / torch.cuda.get_device_properties(CUDA).total_memory)
    try:
        record = embedder.embed(write_bucket(tmp_path, sequences), tmp_path / "0000.json")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert model.rows <= record["toks_per_batch"] < 16 * ROWS["cuda"]
    assert (record["computed"], record["skipped"]) == (300, [])


def test_float16_falls_back_to_fp32_for_what_it_cannot_hold(tmp_path: Path) -> None:
    folder = prepare(tmp_path, MODELS["esm2_t3_untrained"], factor=1e5)  # products beyond 65,504
    sequences = [random_sequence(length, length) for length in (5, 50, 200)]
    settings = Settings(device="cuda", compute_dtype="float16", storage_dtype="float32", scratch="")
    embedder = Embedder(folder, tmp_path / "store", settings)
    embedder._model = Engine(*weights.load(folder), CUDA, "float16")  # its self-test would refuse such weights
    embedder._budget = ROWS["cuda"]
    record = embedder.embed(write_bucket(tmp_path, sequences), tmp_path / "0000.json")
    assert record["exact"] == 3
    expected = states(engine_of_folder(folder), sequences, [3])
    for sequence, exact in zip(sequences, expected, strict=True):
        found = torch.from_numpy(vectors(tmp_path, record)[key(sequence)])
        assert torch.cosine_similarity(found, pool("mean", exact[3]), dim=0) > 0.999


FAILING = """
import sys
from pathlib import Path
import torch
from plm_embed.embed import Embedder
from plm_embed.engine import Engine
from plm_embed.errors import DeviceError
from plm_embed.settings import Settings

folder, weights = Path(sys.argv[1]), Path(sys.argv[2])
embedder = Embedder(weights, folder / "store", Settings(device="cuda", toks_per_batch=16384, scratch=""))
embedder._loaded()
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
    print(error)
    sys.exit(1)
"""


def test_a_poisoned_context_ends_the_job_and_keeps_what_was_finished(tmp_path: Path, prepared: Path) -> None:
    sequences = [random_sequence(900, i) for i in range(150)]  # more than 8 batches
    write_bucket(tmp_path, sequences)
    command = [sys.executable, "-c", FAILING, str(tmp_path), str(prepared)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=ENVIRONMENT)
    assert ended.returncode == 1, ended.stderr
    assert "CUDA error: the GPU" in ended.stdout
    assert not (tmp_path / "0000.json").exists()
    parts = list((tmp_path / "store").glob("*/parts/*.h5"))
    assert len(parts) == 1
    record = Embedder(prepared, tmp_path / "store", Settings(device="cuda", scratch="")).embed(
        tmp_path / "0000.parquet", tmp_path / "0000.json"
    )
    assert record["found"] > 0
    assert record["found"] + record["computed"] == 150


DIGEST = """
import hashlib, sys
import test_cuda as t
engine = t.engine_of(t.WIDE, t.CUDA, sys.argv[1])
found = t.states(engine, [t.random_sequence(n, n) for n in (30, 600, 600, 1022)], [t.WIDE.layers])
print(hashlib.sha256(b"".join(f[t.WIDE.layers].cpu().numpy().tobytes() for f in found)).hexdigest())
"""


@pytest.mark.parametrize("dtype", ["float32", *half_types()])
def test_another_process_gets_the_same_bits(dtype: str) -> None:
    found = states(engine_of(WIDE, CUDA, dtype), [random_sequence(n, n) for n in (1022, 600, 600, 30)], [WIDE.layers])
    # the other way round, so that order and process differ
    arrays = [found[at][WIDE.layers].cpu().numpy() for at in (3, 1, 2, 0)]
    digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
    command = [sys.executable, "-c", DIGEST, dtype]
    other = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert other.stdout.strip() == digest
