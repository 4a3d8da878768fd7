"""The GPU on paper: what the engine launches on CUDA, kernel by kernel, and how long that should
take.

The real forward pass runs over tensors without numbers (torch's FakeTensorMode, which needs no
GPU); matrix products, attention and the package's Triton kernels are written down with their
floating-point operations and bytes. Each takes the longer of both, at rates with their sources in
planning/gpus.yaml. Checked against published runs of others, whose passes over memory are written
down by hand, and with --cpu by the same reckoning on this machine against a measured run.

    PYTHONPATH=workflow/src python benchmarks/roofline.py [--cpu]
"""

import json
import os
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import reckoned
from reckoned import Spent

from plm_embed.models.registry import Model, find_model
from plm_embed.planning import gpu_time
from plm_embed.planning.costs import flops_per_token, gpu_table

RESULT = Path(__file__).parent / "results" / "roofline.json"
GPUS = (
    *("V100", "A100", "H100", "H200", "B200"),
    *("A10", "RTX 3090", "L40S", "L4", "RTX 4090"),
)
CASES = (
    *(("650M", 350), ("650M", 1000), ("3B", 350), ("3B", 1000)),
    *(("esmc_600m", 350), ("prott5", 350), ("ankh-large", 350)),
)
TOKENS = 32768


@dataclass(frozen=True)
class Published:
    """A run that others published: the share of a rate that the arithmetic of the model took.

    of: that rate in TFLOP/s. passes: bytes per token, layer and width outside of products and
    attention, from their source. gpu: one of gpus.yaml, with what differs from it.
    """

    name: str
    model: str
    length: int
    gpu: str
    differs: dict[str, Any]
    of: float
    share: float
    passes: int


FUSED, EAGER = 44, 160
"""Bytes per token, layer and width in half precision. Fused: norms 8, rotary 8, GELU 16, residual
sums 12. Eager, as in transformers' ESM: norms 8, rotary of six operations 40, q, k and v made one
12, GELU of five operations 88, residual sums 12.
"""
A100_80 = {"bandwidth": 2039}
A6000 = {
    "peaks": {"float32": 38.7, "bfloat16": 154.8},
    "bandwidth": 768,
    "matrix": 0.80,
    "depth": 60,
}
PUBLISHED = (
    Published("BioNeMo, training", "650M", 1024, "A100", A100_80, 312, 0.592, FUSED),
    Published("BioNeMo, training", "3B", 1024, "A100", A100_80, 312, 0.606, FUSED),
    Published("BioNeMo, training", "650M", 1024, "H100", {}, 989, 0.43, FUSED),
    Published("BioNeMo, training", "3B", 1024, "H100", {}, 989, 0.49, FUSED),
    Published("BioNeMo, training, packed", "15B", 1024, "H200", {}, 790, 0.68, FUSED),
    Published("ESME, embedding, A6000", "650M", 700, "A100", A6000, 154.8, 0.52, FUSED),
    Published("FAESM, embedding", "650M", 525, "A100", A100_80, 312, 0.46, EAGER),
)


def times(spent: list[Spent], at: gpu_time.Rates) -> dict[str, float]:
    """Seconds by the kind of kernel."""
    found: dict[str, float] = defaultdict(float)
    for each in spent:
        found[each.name] += at.seconds(each.kernel)
    return dict(found)


def reckon(name: str, length: int) -> list[dict[str, Any]]:
    """One model at one length on every GPU."""
    model = find_model(name)
    spent = reckoned.forward(model, length, TOKENS)
    flops, table = flops_per_token(model, length), gpu_table()
    passes: dict[str, float] = defaultdict(float)
    for each in spent:
        if each.kernel.kind == "pass":
            passes[each.name] += each.kernel.bytes / TOKENS / model.layers / model.dim
    print(
        f"\n{name}, {length} tokens: {sum(passes.values()):.1f} D bytes per token and layer "
        "outside products:",
        ", ".join(f"{kind} {each:.1f}" for kind, each in passes.items()),
    )
    rows = []
    for gpu in GPUS:
        dtype = "float16" if gpu == "V100" else "bfloat16"
        at = gpu_time.rates(table, gpu, dtype)
        parts = times(spent, at)
        seconds = sum(parts.values()) / TOKENS
        products = sum(part for kind, part in parts.items() if "product" in kind)
        least = sum(part for kind, part in parts.items() if kind not in passes) / TOKENS
        planned = gpu_time.seconds_per_token(model, length, 2, at)
        rows.append(
            {
                "model": name,
                "length": length,
                "passes": {kind: round(each, 2) for kind, each in passes.items()},
                "gpu": gpu,
                "dtype": dtype,
                "tokens_per_second": round(1 / seconds),
                "plan_differs_by": round(planned / seconds - 1, 4),
                "share_of_matrix_rate": round(flops / seconds / at.matrix_rate(), 3),
                "without_passes": round(flops / least / at.matrix_rate(), 3),
                "outside_products": round(1 - products / sum(parts.values()), 3),
                "shares_of_time": {
                    kind: round(part / sum(parts.values()), 3)
                    for kind, part in sorted(parts.items(), key=lambda item: -item[1])
                },
            }
        )
        row = rows[-1]
        parts_shown = ", ".join(
            f"{kind} {part:.0%}" for kind, part in row["shares_of_time"].items()
        )
        print(
            f"  {gpu:9} {row['tokens_per_second'] / 1e3:6,.0f} k tokens/s, "
            f"{row['share_of_matrix_rate']:.0%} of the matrix rate, without passes "
            f"{row['without_passes']:.0%}; {parts_shown}"
        )
    return rows


def with_passes(model: Model, length: int, width: int, at: gpu_time.Rates) -> float:
    """Seconds per token of another program, with `width` bytes outside products."""
    ours = [each for each in gpu_time.of_a_layer(model, length, 2) if each.kind != "pass"]
    passes = gpu_time.Kernel("passes", "pass", 0, width * model.dim)
    return model.layers * sum(at.seconds(each) for each in (*ours, passes))


def published() -> list[dict[str, Any]]:
    """What the reckoning gives of others' runs, beside what they say."""
    rows, table = [], gpu_table()
    print("\npublished runs: share of the rate that they are told of, reckoned and published")
    for run in PUBLISHED:
        known = {**table, "gpus": {run.gpu: table["gpus"][run.gpu] | run.differs}}
        model = find_model(run.model)
        seconds = with_passes(
            model, run.length, run.passes, gpu_time.rates(known, run.gpu, "bfloat16")
        )
        share = flops_per_token(model, run.length) / seconds / (run.of * 1e12)
        rows.append(
            asdict(run) | {"reckoned": round(share, 3), "ratio": round(share / run.share, 2)}
        )
        print(
            f"  {run.name}, {run.model} on {run.gpu}: {share:.0%}, {run.share:.0%}"
            f" ({share / run.share:.2f} x)"
        )
    return rows


@click.command(help=__doc__)
@click.option("--cpu", is_flag=True, help="The same reckoning on this machine, against a run.")
@click.option("--model", default="650M", help="For --cpu.", show_default=True)
@click.option("--layers", default=6, help="Of that model, for --cpu.", show_default=True)
@click.option("--runs", default=5, help="For --cpu.", show_default=True)
def main(cpu: bool, model: str, layers: int, runs: int) -> None:
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.is_file() else {}
    found["rows"] = [row for name, length in CASES for row in reckon(name, length)]
    found["published"] = published()
    if cpu:
        few = replace(find_model(model), layers=layers)
        found["cpu"] = {"load": os.getloadavg()} | reckoned.on_this_cpu(few, runs)
        print("\nthis CPU:", json.dumps(found["cpu"], indent=2))
    RESULT.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
