"""The families on a CUDA device: against float64 values of their authors' formulas, and in any
company.
"""

from functools import cache

import numpy as np
import pytest
import torch
from cuda_models import CUDA, half_types

from plm_embed.inference.pooling import pool_packed
from plm_embed.kernels import attention
from plm_embed.kernels.devices import set_up
from plm_embed.models.engine import Engine, pack
from plm_embed.models.layers import DTYPES
from support.checkpoints import decided, read
from support.families import TINY, golden, relative, source
from support.packed import packed_batch

pytestmark = pytest.mark.gpu


@cache
def engine_of(name: str, dtype: str) -> Engine:
    model, path = TINY[name], source(name)
    if name == "dnabert":
        pytest.importorskip("tokenizers")
    set_up(CUDA, torch.get_num_threads(), dtype)  # type: ignore[arg-type]
    checkpoint = read(path, model)
    model = decided(model, token_dropout=checkpoint.token_dropout)
    return Engine(model, checkpoint.tensors, CUDA, dtype, checkpoint.head or None)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [*half_types()])
@pytest.mark.parametrize(("heads", "width"), [(12, 64), (32, 128), (16, 64)])
def test_the_kernel_with_biases_serves_at_real_widths(heads: int, width: int, dtype: str) -> None:
    """Models of DNABERT, ProtT5 and Ankh."""
    if torch.cuda.get_device_capability(CUDA) < (8, 0):
        pytest.skip("from compute capability 8.0 on")
    found = attention.choose(CUDA, DTYPES[dtype], heads, width, by_distance=True)  # type: ignore[index]
    assert found.label == "distances"


@pytest.mark.parametrize("dtype", ["float32", *half_types()])
@pytest.mark.parametrize("name", TINY)
def test_means_are_what_the_formulas_give(name: str, dtype: str) -> None:
    known, engine = golden(name), engine_of(name, dtype)
    batch = packed_batch(engine, known.sequences).to(CUDA)
    hidden = engine.forward(batch, [3])[3]
    for pooling, wanted in (("mean", known.means[:, 3]), ("mean_special", known.special)):
        if wanted is None:  # the sets of some families have none
            continue
        found = pool_packed(pooling, hidden, batch).double().cpu().numpy()  # type: ignore[arg-type]
        for mean, expected in zip(found, wanted, strict=True):
            if dtype == "float32":
                assert relative(mean, expected) < 1e-5
            else:
                cosine = mean @ expected / np.linalg.norm(mean) / np.linalg.norm(expected)
                assert cosine > 0.999


@pytest.mark.parametrize("dtype", ["float32", *half_types()])
@pytest.mark.parametrize("name", TINY)
def test_a_vector_has_the_same_bits_in_any_company(name: str, dtype: str) -> None:
    known, engine = golden(name), engine_of(name, dtype)
    if engine.attention.label == "math":
        pytest.skip("torch has no kernel here that promises it")
    together = packed_batch(engine, known.sequences)
    mixed = together.split(engine.forward(together, [3])[3])
    for sequence, expected in zip(known.sequences, mixed, strict=True):
        alone = packed_batch(engine, [sequence])
        assert torch.equal(alone.split(engine.forward(alone, [3])[3])[0], expected)


@pytest.mark.parametrize("dtype", ["float32", *half_types()])
@pytest.mark.parametrize("name", ["esmc", "protbert", "amplify"])
def test_scores_are_the_cpus_and_the_same_in_any_company(name: str, dtype: str) -> None:
    """Unmasked and masked; the CPU's are those of the authors' formulas."""
    checkpoint = read(source(name), TINY[name])
    sequences = sorted(golden(name).sequences, key=len)[:8]
    engine = engine_of(name, dtype)
    cpu = torch.device("cpu")
    on_cpu = Engine(engine.model, checkpoint.tensors, cpu, "float32", checkpoint.head)

    def scores(by: Engine, chosen: list[str]) -> list[torch.Tensor]:
        batch = packed_batch(by, chosen).to(by.device)
        states = by.forward(batch, [3])[3]
        found = batch.split(by.token_scores(states, batch.tokens))
        pieces, places = [by.tokenize(text) for text in chosen], [0] * len(chosen)
        masked = pack(pieces, by.model.family, by.rows, masked=places).to(by.device)
        logs = by.log_probabilities(by.forward(masked, [3])[3])[masked.masked]
        return [torch.cat([rows.ravel(), row]) for rows, row in zip(found, logs, strict=True)]

    together = scores(engine, [*sequences, "MKLW" * 200, *sequences[::-1]])
    for place, (sequence, exact) in enumerate(
        zip(sequences, scores(on_cpu, sequences), strict=True)
    ):
        (alone,) = scores(engine, [sequence])
        assert torch.equal(together[place], alone)
        assert torch.equal(together[-1 - place], alone)
        distance = float((alone.cpu() - exact).abs().max())
        assert distance < (1e-3 if dtype == "float32" else 2.0), (sequence, distance)
