"""The engine on a CUDA device: against the CPU, in any company, and in another process."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from cuda_models import CPU, CUDA, ENVIRONMENT, WIDE, engine_of, half_types, random_sequence, states

from plm_embed.fingerprint import Fingerprint, LongSequences, StorageDtype
from plm_embed.inference.loading import Room, largest_budget
from plm_embed.inference.pooling import pool, pool_batch
from plm_embed.inference.vector_stream import LARGEST, VectorStream
from plm_embed.kernels import attention
from plm_embed.kernels.linear import Linear
from plm_embed.models.engine import ROWS, TOKENS
from plm_embed.models.families.esm import ESM1B, ESM2
from plm_embed.models.layers import DTYPES
from plm_embed.models.registry import MODELS, Model
from plm_embed.store.hdf5 import encode
from support.checkpoints import mean_of
from support.packed import pack, packed_batch

pytestmark = pytest.mark.gpu

SHAPES = {
    "heads of 16": Model("esm2_t3_untrained", ESM2, layers=3, dim=32, heads=2),
    "heads of 24": Model("esm2_t3_24", ESM2, layers=3, dim=96, heads=4),
    "heads of 64": WIDE,
    "heads of 128": Model("esm2_t2_128", ESM2, layers=2, dim=512, heads=4),
    "esm1b": Model("esm1b_t3", ESM1B, layers=3, dim=128, heads=2),
}
LENGTHS = (1, 2, 30, 64, 65, 350, 350, 1022)
LONG = (1023, 2134)


def sequences_for(model: Model) -> list[str]:
    lengths = LENGTHS + (LONG if model.family.max_residues is None else ())
    return [random_sequence(length, seed) for seed, length in enumerate(lengths)]


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
            for part in (slice(None), slice(1, 2), slice(-2, -1)):
                # all, the first and the last residue
                if dtype == "float32":
                    assert torch.allclose(a[part], b[part], atol=5e-5, rtol=1e-5), (
                        len(sequence),
                        layer,
                    )
                else:
                    assert torch.cosine_similarity(a[part], b[part], dim=1).min() > 0.999, (
                        len(sequence),
                        layer,
                    )
            if dtype != "float32":
                means = mean_of(a), mean_of(b)
                assert torch.cosine_similarity(*means, dim=0) > 0.9999 - 4e-4 * (len(sequence) < 3)


def test_tf32_is_used_where_it_is_chosen_and_nowhere_else() -> None:
    if torch.cuda.get_device_capability(CUDA) < (8, 0):
        pytest.skip("this GPU has no TF32")
    sequences = sequences_for(WIDE)
    found = {}
    for dtype in ("float32", "tfloat32"):
        engine = engine_of(WIDE, CUDA, dtype)
        found[dtype] = [
            mean_of(one[WIDE.layers]) for one in states(engine, sequences, [WIDE.layers])
        ]
    apart = [
        float((a - b).norm() / b.norm())
        for a, b in zip(found["tfloat32"], found["float32"], strict=True)
    ]
    assert 1e-5 < max(apart) < 0.03


@pytest.mark.parametrize("dtype", ["float32", *half_types()])
def test_a_vector_has_the_same_bits_in_any_company_and_order(dtype: str) -> None:
    engine = engine_of(WIDE, CUDA, dtype)
    if engine.attention.label == "math":
        pytest.skip("torch's plain attention promises nothing")
    random = np.random.default_rng(1)
    ours = [
        random_sequence(length, seed)
        for seed, length in enumerate((1, 2, 40, 300, 300, 511, 600, 600, 1022, 2134))
    ]
    layers = [1, WIDE.layers]
    alone = [states(engine, [sequence], layers)[0] for sequence in ours]
    for trial in range(6):
        company = [
            random_sequence(int(length), 100 + trial)
            for length in random.integers(1, 1500, 2 * trial)
        ]
        company += [random_sequence(600, 200 + trial)] * (trial % 3)
        everyone = ours + company
        order = random.permutation(len(everyone)) if trial else np.arange(len(everyone))
        found = states(engine, [everyone[i] for i in order], layers)
        for at, i in enumerate(order):
            if i < len(ours):
                for layer in layers:
                    assert torch.equal(found[at][layer], alone[i][layer]), (
                        trial,
                        len(everyone[i]),
                        layer,
                    )


@pytest.mark.parametrize("dtype", ["float32", *half_types()])
def test_every_kernel_that_is_here_agrees_and_is_blind_to_company(dtype: str) -> None:
    lengths = (700, 700, 3, 129, 64, 700, 1)
    random = torch.Generator().manual_seed(2)
    qkv = torch.randn((sum(lengths) + 50, 3, 4, 64), generator=random).to(CUDA, DTYPES[dtype])
    expected = attention.sdpa(qkv.float().cpu(), pack(lengths, CPU))
    tried = []
    for kernel in attention.candidates(CUDA, DTYPES[dtype]):
        if attention.problem(kernel, CUDA, DTYPES[dtype], 4, 64):
            continue
        tried.append(kernel.name)
        with torch.inference_mode():
            found = kernel.attend(qkv, pack(lengths, CUDA))
        assert (found.float().cpu() - expected).abs().max() < (
            1e-4 if dtype == "float32" else 0.02
        ), kernel.name
        assert not found[sum(lengths) :].any()
        if kernel.label == "math":
            continue
        start = 0
        for length in lengths:
            with torch.inference_mode():
                alone = kernel.attend(qkv[start : start + length].clone(), pack((length,), CUDA))
            assert torch.equal(alone, found[start : start + length]), (kernel.name, length)
            start += length
    print("attention kernels:", dtype, tried)
    assert tried
    capable = torch.cuda.get_device_capability(CUDA) >= (8, 0)
    if dtype != "float32" and capable:
        assert tried[0] == "torch FlashAttention"


@pytest.mark.parametrize("dtype", ["float32", "tfloat32", *half_types()])
def test_fused_kernels_are_in_use_where_triton_is(dtype: str) -> None:
    pytest.importorskip("triton")
    name = engine_of(WIDE, CUDA, dtype).elementwise.name
    assert name.startswith("Triton")
    assert "TRITON_INTERPRET" not in os.environ


@pytest.mark.parametrize("dtype", ["float32", *half_types()])
@pytest.mark.parametrize(("columns", "rows"), [(1280, 1280), (5120, 1280), (3072, 1152)])
def test_a_sum_within_a_product_is_exact_and_blind_to_other_rows(
    dtype: str, columns: int, rows: int
) -> None:
    """650M and ESM C 600M: fp32 is added to what is not rounded before."""
    random = torch.Generator(CUDA).manual_seed(3)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random, device=CUDA)

    count = ROWS["cuda"]
    x, y = 100 * draw(count, rows), draw(count, columns).to(DTYPES[dtype])
    weight = (draw(rows, columns) / columns**0.5).to(DTYPES[dtype])
    linear, found, alone = Linear(weight, None), x.clone(), torch.zeros_like(x)
    linear.add_to(found, y)
    some = slice(100, 300)
    exact = x[some].double() + y[some].double() @ weight.double().t()
    assert (found[some] - exact).abs().max() < 1e-4  # of a hundred
    alone[:200] = x[some]
    linear.add_to(alone, torch.cat((y[some], torch.zeros_like(y[200:]))))
    assert torch.equal(alone[:200], found[some])


def test_pooling_on_the_device_is_that_of_the_cpu() -> None:
    engine = engine_of(WIDE, CUDA, "float32")
    sequences = sequences_for(WIDE)
    batch = packed_batch(engine, sequences).to(CUDA)
    hidden = engine.forward(batch, [WIDE.layers])[WIDE.layers]
    for pooling in ("mean", "max", "bos", "per_residue"):
        found = pool_batch(pooling, hidden, batch).cpu()  # type: ignore[arg-type]
        each = [
            pool(pooling, one.cpu(), rows)
            for one, rows in zip(batch.split(hidden), batch.residues, strict=True)
        ]  # type: ignore[arg-type]
        expected = torch.cat([one.view(-1, WIDE.dim) for one in each])
        assert torch.allclose(found, expected, atol=2e-6), pooling


def test_a_sequence_of_36000_residues() -> None:
    model = MODELS["esm2_t6_8M_UR50D"]
    sequence = random_sequence(36_000, 1)
    exact = mean_of(states(engine_of(model, CUDA, "float32"), [sequence], [6])[0][6])
    for dtype in half_types():
        half = mean_of(states(engine_of(model, CUDA, dtype), [sequence], [6])[0][6])
        assert torch.cosine_similarity(exact, half, dim=0) > 0.9999, dtype


def test_the_budget_comes_from_the_free_memory() -> None:
    engine = engine_of(WIDE, CUDA, "float32")
    budget = largest_budget(engine, [WIDE.layers])
    assert budget % ROWS["cuda"] == 0
    assert ROWS["cuda"] <= budget <= TOKENS["cuda"]


@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
def test_rows_that_are_rounded_on_the_device_arrive_whole(storage: StorageDtype) -> None:
    engine = engine_of(WIDE, CUDA, "float32")
    fingerprint = Fingerprint(
        "m", "0", (WIDE.layers,), ("per_residue",), LongSequences(), "float32", "float32", "e"
    )
    room = Room(engine, ROWS["cuda"])
    plain = VectorStream(room, fingerprint, [])
    ours = VectorStream(room, replace(fingerprint, storage_dtype=storage), [])
    texts = [[random_sequence(700, 9 * n + i) for i in range(9)] for n in range(4)]
    launched = [ours.launch(packed_batch(engine, each)) for each in texts]  # all are under way
    for each, waited_for in zip(texts, launched, strict=True):
        expected = plain.collect(plain.launch(packed_batch(engine, each)))
        for found, exact in zip(ours.collect(waited_for), expected, strict=True):
            (name,) = fingerprint.representations
            assert np.array_equal(found[name], encode(exact[name], storage))
            assert found[name + LARGEST] == np.abs(exact[name]).max()


DIGEST = """
import hashlib, sys
import cuda_models as t
engine = t.engine_of(t.WIDE, t.CUDA, sys.argv[1])
found = t.states(engine, [t.random_sequence(n, n) for n in (30, 600, 600, 1022)], [t.WIDE.layers])
print(hashlib.sha256(b"".join(f[t.WIDE.layers].cpu().numpy().tobytes() for f in found)).hexdigest())
"""


@pytest.mark.parametrize("dtype", ["float32", *half_types()])
def test_another_process_gets_the_same_bits(dtype: str) -> None:
    found = states(
        engine_of(WIDE, CUDA, dtype),
        [random_sequence(n, n) for n in (1022, 600, 600, 30)],
        [WIDE.layers],
    )
    # the other way round, so that order and process differ
    arrays = [found[at][WIDE.layers].cpu().numpy() for at in (3, 1, 2, 0)]
    digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
    command = [sys.executable, "-c", DIGEST, dtype]
    other = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert other.stdout.strip() == digest
