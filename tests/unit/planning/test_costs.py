"""What sequences cost, and how fast devices are for them."""

import re
from dataclasses import replace

import pytest

from plm_embed.fingerprint import LongSequences
from plm_embed.models.registry import MODELS
from plm_embed.planning import costs, gpu_time, speeds
from plm_embed.planning.forecast import Forecast

M650 = MODELS["esm2_t33_650M_UR50D"]
WHOLE = LongSequences()


def test_the_cost_of_a_token_is_the_formulas() -> None:
    # 1.467 GFLOP per token of ESM-2 650M among 1,000, 1.357 among 350
    assert costs.flops_per_token(M650, 1000) == pytest.approx(1.467e9, rel=1e-3)
    assert costs.flops_per_token(M650, 350) == pytest.approx(1.357e9, rel=1e-3)
    done = costs.work(M650, {998: 2, 348: 1}, WHOLE)
    assert (done.sequences, done.tokens) == (3, 2350)
    assert done.flops == pytest.approx(2000 * 1.4665e9 + 350 * 1.3568e9, rel=1e-3)


def test_long_sequences_cost_what_their_policy_makes_of_them() -> None:
    lengths = {50: 1, 250: 1}
    assert costs.work(M650, lengths, LongSequences("window", 100, 10)).tokens == 52 + 3 * 102
    assert costs.work(M650, lengths, LongSequences("crop", 100)).tokens == 52 + 102
    skipped = costs.work(M650, lengths, LongSequences("skip", 100))
    assert (skipped.sequences, skipped.tokens) == (1, 52)


def test_estimates_say_that_they_are_estimates() -> None:
    found = {
        speed.device: speed
        for speed in costs.estimates(M650, costs.work(M650, {350: 10}, WHOLE), "auto")
    }
    assert {"V100", "A100", "H100", "H200", "L40S", "B200", "RTX 4090", "T4"} <= set(found)
    common = costs.gpu_table()["kernels"]
    at = gpu_time.rates(costs.gpu_table(), "A100", "bfloat16")
    kernels = gpu_time.seconds_per_token(M650, 352, 2, at) / common["reserve"]
    assert found["A100"].tokens_per_second == pytest.approx(1 / (kernels + common["host"] / 352))
    assert re.match(r"1\d\d of 312 TFLOP/s \(bfloat16\), kernel by kernel", found["A100"].how)
    assert {speed.basis for speed in found.values()} == {"estimated"}


def test_an_estimate_goes_by_the_peak_of_the_dtype() -> None:
    todo = costs.work(M650, {350: 10}, WHOLE)
    exact, half = (
        {speed.device: speed for speed in costs.estimates(M650, todo, dtype)}
        for dtype in ("float32", "bfloat16")
    )
    for name, peak in (("A100", 19.5e12), ("V100", 15.7e12)):
        assert 0.4 < (exact[name].tokens_per_second or 0) * 1.357e9 / peak < 0.8
    assert (half["V100"].basis, half["V100"].tokens_per_second) == ("not known", None)


def test_a_gpu_that_cannot_hold_the_weights_is_no_choice() -> None:
    large = MODELS["esm2_t48_15B_UR50D"]
    found = {
        speed.device: speed
        for speed in costs.estimates(large, costs.work(large, {350: 10}, WHOLE), "auto")
    }
    assert found["L4"].tokens_per_second is None and "24 GB do not hold" in found["L4"].why
    assert found["A100"].tokens_per_second and found["T4"].basis == "not known"


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "A100 MIG 1g.5gb"),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "A100 80GB MIG 3g.40gb"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("H100 PCIE", "H100 PCIe"),  # a type in SLURM, h100_pcie
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H100 80GB HBM3 MIG 1c.2g.20gb", "H100 MIG 2g.20gb"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GH200 480GB", "NVIDIA GH200 480GB"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 Laptop GPU"),
        ("NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 3090 Ti"),
    ],
)
def test_devices_go_by_their_short_names(name: str, label: str) -> None:
    assert costs.device_label(name) == label


def test_a_slice_has_its_share_of_arithmetic_and_memory() -> None:
    todo = costs.work(M650, {350: 10}, WHOLE)
    whole, half, small, none = (
        costs.estimate(name, M650, todo, "auto")
        for name in ("A100", "A100 MIG 3g.20gb", "A100 MIG 1g.5gb", "A99")
    )
    assert whole.tokens_per_second and half.tokens_per_second and small.tokens_per_second
    assert 0.9 * 3 / 7 <= half.tokens_per_second / whole.tokens_per_second < 0.45
    assert 0.1 < small.tokens_per_second / whole.tokens_per_second < 0.14
    assert "of 40.11 TFLOP/s (bfloat16)" in small.how
    assert none.tokens_per_second is None
    large = MODELS["esm2_t36_3B_UR50D"]
    assert "its 5 GB do not hold" in costs.estimate("A100 MIG 1g.5gb", large, todo, "auto").why


def test_every_job_starts_anew_and_the_last_round_is_as_long_as_the_first() -> None:
    speed = costs.Speed("CPU", 10.0, "measured here", "", startup=5.0, workers=2)
    todo = costs.Work(sequences=30, tokens=1000, flops=1.0)
    assert speeds.device_hours(todo, speed, 3) == pytest.approx((3 * 5 + 100) / 3600)
    # three jobs, two at a time
    assert speeds.local_hours(Forecast(speed, 3.0), 3) == pytest.approx(2.0)
    assert speeds.device_hours(replace(todo, sequences=1), speed, 3) == pytest.approx(
        (5 + 100) / 3600
    )
    assert speeds.device_hours(replace(todo, tokens=0), speed, 3) == 0
