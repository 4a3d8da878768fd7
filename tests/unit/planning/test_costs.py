"""What sequences cost, and how fast devices are for them."""

from dataclasses import replace
from pathlib import Path

import pytest

from plm_embed.errors import ConfigError
from plm_embed.fingerprint import LongSequences
from plm_embed.io.json_files import write_sealed
from plm_embed.kernels.hardware import cpu_name
from plm_embed.models.registry import MODELS
from plm_embed.planning import costs
from support.campaigns import completion

M650, M3B = MODELS["esm2_t33_650M_UR50D"], MODELS["esm2_t36_3B_UR50D"]
TODO = costs.work(M650, {350: 10}, LongSequences())


def speed(device: str, dtype: str = "auto") -> float:
    return costs.estimated(device, M650, TODO, dtype).tokens_per_second


def test_the_cost_of_a_token_is_the_formulas() -> None:
    # 1.467 GFLOP per token of ESM-2 650M among 1,000, 1.357 among 350
    assert costs.flops_per_token(M650, 1000) == pytest.approx(1.467e9, rel=1e-3)
    assert costs.flops_per_token(M650, 350) == pytest.approx(1.357e9, rel=1e-3)
    done = costs.work(M650, {998: 2, 348: 1}, LongSequences())
    assert (done.sequences, done.tokens) == (3, 2350)
    assert done.flops == pytest.approx(2000 * 1.4665e9 + 350 * 1.3568e9, rel=1e-3)


def test_long_sequences_cost_what_their_policy_makes_of_them() -> None:
    lengths = {50: 1, 250: 1}
    assert costs.work(M650, lengths, LongSequences("window", 100, 10)).tokens == 52 + 3 * 102
    assert costs.work(M650, lengths, LongSequences("crop", 100)).tokens == 52 + 102
    skipped = costs.work(M650, lengths, LongSequences("skip", 100))
    assert (skipped.sequences, skipped.tokens) == (1, 52)


def test_an_estimate_is_a_share_of_the_peak_of_the_dtype() -> None:
    exact = costs.estimated("A100", M650, TODO, "float32")
    assert exact.tokens_per_second == pytest.approx(0.45 * 19.5e12 / 1.357e9, rel=0.01)
    assert exact.basis == "estimated: 45% of 19.5 TFLOP/s in float32"
    assert speed("H200") > speed("H100 PCIe") > speed("A100") > speed("V100") > speed("T4")
    # as measured on an H200: sequences of 500 residues on average
    todo = costs.work(M650, {500: 10}, LongSequences())
    measured = costs.estimated("H200", M650, todo, "auto").tokens_per_second / 341_237
    assert 0.8 < measured < 1.1
    small = MODELS["esm2_t6_8M_UR50D"]
    todo = costs.work(small, {350: 10}, LongSequences())
    assert costs.estimated("H100", small, todo, "auto").tokens_per_second < 352 / 1e-4


@pytest.mark.parametrize(
    ("device", "model", "dtype", "message"),
    [
        ("V100", M650, "bfloat16", "V100: it is not made for bfloat16; name another one"),
        ("L4", MODELS["esm2_t48_15B_UR50D"], "auto", "24 GB do not hold the weights, 30.2 GB in"),
        ("NVIDIA A100 MIG 1g.5gb", M3B, "auto", "not known; known are V100, A100"),
        ("T4", MODELS["esmc_6b"], "auto", "its 16 GB do not hold the weights, 25.4 GB in float32"),
        (costs.device_label(cpu_name(), 1), M650, "bfloat16", "its speed in bfloat16 is not known"),
    ],
)
def test_a_device_that_cannot_serve_is_refused(
    device: str, model: costs.Model, dtype: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        costs.estimated(device, model, TODO, dtype)


def test_speeds_are_those_of_the_records_of_this_model_and_dtype(tmp_path: Path) -> None:
    first = completion(tokens=1000, tokens_per_second=10.0)
    write_sealed(tmp_path / "0000.json", first)
    write_sealed(tmp_path / "0001.json", completion(tokens=3000, tokens_per_second=50.0))
    later = tmp_path / "later"
    write_sealed(later / "0000.json", replace(first, tokens_per_second=1.0))
    model = first.fingerprint.model
    (speed,) = costs.measured(model, "auto", [tmp_path, later]).values()
    assert speed.tokens_per_second == pytest.approx(4000 / 160)
    assert speed.basis == f"measured: the jobs in {tmp_path}"
    assert not costs.measured(model, "tfloat32", [tmp_path])
    assert not costs.measured("another", "auto", [tmp_path])


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("H100 PCIE", "H100 PCIe"),  # a type in SLURM, h100_pcie
        ("NVIDIA H100 NVL", "H100 NVL"),
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


def test_a_pseudo_perplexity_takes_a_pass_for_each_residue() -> None:
    """Each residue is masked in one of its windows."""
    assert costs.work(M650, {48: 2}, LongSequences(), masked=True).tokens == 2 * 50 * 49
    windows = LongSequences("window", 100, 50)
    assert costs.work(M650, {150: 1}, windows, masked=True).tokens == 102 * (2 + 150)
    skipped = costs.work(M650, {150: 1}, LongSequences("skip", 100), masked=True)
    assert (skipped.sequences, skipped.tokens) == (0, 0)
    plain = costs.work(M650, {48: 2}, LongSequences())
    masked = costs.work(M650, {48: 2}, LongSequences(), masked=True)
    assert masked.flops == pytest.approx(49 * plain.flops)
