"""The reckoned times of GPUs, against what the engine launches over tensors without numbers."""

import platform
import sys
from pathlib import Path

import pytest

from plm_embed.models.packed_batch import ROWS
from plm_embed.models.registry import find_model
from plm_embed.planning import gpu_time
from plm_embed.planning.costs import flops_per_token, gpu_table

TOKENS = 32768


@pytest.mark.parametrize("name", ["650M", "8M", "esmc_600m", "prott5", "ankh-large", "protbert"])
@pytest.mark.parametrize("gpu", ["H100", "L40S"])
def test_the_kernels_are_those_that_the_engine_launches(
    gpu: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("requirements/test.txt has Triton for Linux on x86-64 only")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import reckoned

    assert ROWS["cuda"] == gpu_time.ROWS
    model, length = find_model(name), 256
    at = gpu_time.rates(gpu_table(), gpu, "bfloat16")
    launched = reckoned.forward(model, length, TOKENS)
    seconds = sum(at.seconds(each.kernel) for each in launched) / TOKENS
    assert gpu_time.seconds_per_token(model, length, 2, at) == pytest.approx(seconds, rel=0.02)
    flops = sum(each.kernel.flops for each in launched) / TOKENS
    assert flops == pytest.approx(flops_per_token(model, length), rel=1e-6)
    layer = [each.bytes for each in gpu_time.of_a_layer(model, length, 2)]
    planned = model.layers * sum(layer) + sum(each.bytes for each in gpu_time.around(model, 2))
    moved = sum(each.kernel.bytes for each in launched) / TOKENS
    assert planned == pytest.approx(moved, rel=0.02)


def test_the_longer_of_arithmetic_and_memory_counts() -> None:
    at = gpu_time.Rates(
        product=100.0, attention=50.0, biased=25.0, memory=10.0, depth=64.0, keys=75.0
    )  # fmt: skip
    product = gpu_time.Kernel("", "product", 1000.0, 10.0, depth=64)
    assert at.seconds(product) == 1000 / 100 * 2  # sums as short as half of the rate
    assert at.seconds(gpu_time.Kernel("", "product", 1000.0, 300.0, depth=64)) == 30
    assert at.seconds(gpu_time.Kernel("", "attention", 50.0, 0.0, length=25)) == 4
    assert at.seconds(gpu_time.Kernel("", "biased attention", 50.0, 0.0, length=25)) == 8
    assert at.seconds(gpu_time.Kernel("", "pass", 0.0, 20.0)) == 2


def test_every_gpu_has_what_the_reckoning_needs() -> None:
    table, model = gpu_table(), find_model("650M")
    for name, gpu in table["gpus"].items():
        assert 0 < gpu["matrix"] <= 1 and 0 < gpu["attention"] < 1
        for dtype in gpu["peaks"]:
            at = gpu_time.rates(table, name, dtype)
            size = 2 if dtype.endswith("16") else 4
            short, long = (gpu_time.seconds_per_token(model, n, size, at) for n in (100, 2000))
            assert 0 < short < long
            share = flops_per_token(model, 350) / gpu_time.seconds_per_token(model, 350, size, at)
            assert 0.4 < share / at.matrix_rate() < 1, (name, dtype)
