"""Costs of sequences, and speeds of devices for them."""

from dataclasses import replace
from pathlib import Path

import pytest

from plm_embed.errors import ConfigError
from plm_embed.fingerprint import LongPolicy, LongSequences
from plm_embed.inference.settings import Settings
from plm_embed.io.json_files import write_sealed
from plm_embed.models.registry import MODELS
from plm_embed.planning import costs
from support.campaigns import completion

M650, M3B = MODELS["esm2_t33_650M_UR50D"], MODELS["esm2_t36_3B_UR50D"]
TODO = costs.work(M650, {350: 10}, Settings())


def speed(device: str) -> float:
    return costs.estimated(device, M650, TODO, "auto").tokens_per_second


def policy(policy: LongPolicy, max_residues: int, overlap: int = 0) -> Settings:
    return Settings(long_sequences=LongSequences(policy, max_residues, overlap))


def test_the_cost_of_a_token_is_the_formulas() -> None:
    # 1.467 GFLOP per token of ESM-2 650M among 1,000, 1.357 among 350
    assert costs.flops_per_token(M650, 1000) == pytest.approx(1.467e9, rel=1e-3)
    assert costs.flops_per_token(M650, 350) == pytest.approx(1.357e9, rel=1e-3)
    done = costs.work(M650, {998: 2, 348: 1}, Settings())
    assert (done.sequences, done.tokens) == (3, 2350)
    assert done.flops == pytest.approx(2000 * 1.4665e9 + 350 * 1.3568e9, rel=1e-3)


def test_long_sequences_cost_what_their_policy_makes_of_them() -> None:
    lengths = {50: 1, 250: 1}
    assert costs.work(M650, lengths, policy("window", 100, 10)).tokens == 52 + 3 * 102
    assert costs.work(M650, lengths, policy("crop", 100)).tokens == 52 + 102
    skipped = costs.work(M650, lengths, policy("skip", 100))
    assert (skipped.sequences, skipped.tokens) == (1, 52)


def test_an_estimate_is_a_share_of_the_peak_of_the_dtype() -> None:
    exact = costs.estimated("A100", M650, TODO, "float32")
    assert exact.tokens_per_second == pytest.approx(0.45 * 19.5e12 / 1.357e9, rel=0.01)
    assert exact.basis == "estimated: 45% of 19.5 TFLOP/s in float32"
    assert speed("H200") > speed("H100 PCIe") > speed("A100") > speed("V100") > speed("T4")
    # as measured on an H200: sequences of 500 residues on average
    todo = costs.work(M650, {500: 10}, Settings())
    measured = costs.estimated("H200", M650, todo, "auto").tokens_per_second / 341_237
    assert 0.8 < measured < 1.1
    small = MODELS["esm2_t6_8M_UR50D"]
    todo = costs.work(small, {350: 10}, Settings())
    assert costs.estimated("H100", small, todo, "auto").tokens_per_second < 352 / 1e-4
    cores = costs.estimated("AMD EPYC, 8 threads", M650, TODO, "int8")
    assert cores.tokens_per_second == pytest.approx(8 * 80e9 / 1.357e9, rel=0.01)
    assert cores.basis == "estimated: 80 GFLOP/s per core; no job with 8 threads was measured"


@pytest.mark.parametrize(
    ("device", "model", "dtype", "message"),
    [
        ("V100", M650, "bfloat16", "V100: it is not made for bfloat16; name another one"),
        ("AMD EPYC, 8 threads", M650, "tfloat32", "it is not made for tfloat32; name another one"),
        ("a CPU, 0 threads", M650, "auto", "not known; known are V100, A100"),
        ("L4", MODELS["esm2_t48_15B_UR50D"], "auto", "24 GB do not hold the weights, 30.2 GB in"),
        ("NVIDIA A100 MIG 1g.5gb", M3B, "auto", "not known; known are V100, A100"),
        ("T4", MODELS["esmc_6b"], "auto", "its 16 GB do not hold the weights, 25.4 GB in float32"),
    ],
)
def test_a_device_that_cannot_serve_is_refused(
    device: str, model: costs.Model, dtype: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        costs.estimated(device, model, TODO, dtype)


def test_speeds_are_those_of_the_records_in_this_dtype(tmp_path: Path) -> None:
    write_sealed(tmp_path / "0000.json", completion(tokens=1000, tokens_per_second=10.0))
    write_sealed(tmp_path / "0001.json", completion(tokens=3000, tokens_per_second=50.0))
    (speed,) = costs.measured(tmp_path, "auto").values()
    assert speed.tokens_per_second == pytest.approx(4000 / 160)
    assert speed.basis == f"measured: the jobs in {tmp_path}"
    assert not costs.measured(tmp_path, "tfloat32")
    assert not costs.measured(tmp_path / "absent", "auto")


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("H100 PCIE", "H100 PCIe"),  # a type in SLURM, h100_pcie
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA GH200 480GB", "NVIDIA GH200 480GB"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA RTX A1000", "NVIDIA RTX A1000"),  # no A10
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 Laptop GPU"),
        ("NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 3090 Ti"),
    ],
)
def test_devices_go_by_their_short_names(name: str, label: str) -> None:
    assert costs.device_label(name) == label


def test_a_pseudo_perplexity_takes_a_pass_for_each_residue() -> None:
    """Each residue is masked in one of its windows."""
    masked = Settings(scores=("pseudo_perplexity",))
    assert costs.work(M650, {48: 2}, masked).tokens == 2 * 50 * 49
    windows = replace(policy("window", 100, 50), scores=masked.scores)
    assert costs.work(M650, {150: 1}, windows).tokens == 102 * (2 + 150)
    skipped = costs.work(M650, {150: 1}, replace(policy("skip", 100), scores=masked.scores))
    assert (skipped.sequences, skipped.tokens) == (0, 0)
    plain = costs.work(M650, {48: 2}, Settings())
    assert costs.work(M650, {48: 2}, masked).flops == pytest.approx(49 * plain.flops)
