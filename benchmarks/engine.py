"""The forward pass against fair-esm's extraction loop, transformers, FAESM and esm-cpp where
installed, on this machine's CPU.

Interleaved runs of the same sequences with random weights; prints tokens/s, the ratio to fair-esm
as shipped, and the share of the best matrix rate measured in the same run. Differences to fair-esm
in fp32 stand beside the speeds. One thread is timed by the processor time that it takes, which
other programs spoil less.

    PYTHONPATH=workflow/src python benchmarks/engine.py --model 35M --sequences 24
    --runs 5
"""

import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import click
import numpy as np
import peers
import torch
from Bio.SeqIO.FastaIO import SimpleFastaParser

from plm_embed.fingerprint import ComputeDtype
from plm_embed.kernels import attention
from plm_embed.kernels.devices import device_name
from plm_embed.kernels.linear import Linear
from plm_embed.models.engine import Engine
from plm_embed.models.layers import DTYPES
from plm_embed.models.registry import Model, find_model

ROOT = Path(__file__).parents[1]
REAL = ROOT.parent / "shared" / "data" / "proteins_20k.fasta.gz"
SAMPLE = ROOT / "config" / "demo" / "proteins.fasta"
CPU = torch.device("cpu")
SHIPPED = "fair-esm as shipped (4096)"


def variants(model: Model) -> dict[str, Callable[[], peers.Run]]:
    """Programs to compare, by name; each makes its model."""
    tensors = peers.RandomTensors(model, CPU)
    found: dict[str, Callable[[], peers.Run]] = {
        SHIPPED: lambda: peers.fair_esm(model, tensors, CPU, "float32", 4096),
        "fair-esm, 1024 tokens": lambda: peers.fair_esm(model, tensors, CPU, "float32", 1024),
        "plm-embed float32": lambda: peers.ours(peers.engine(model, tensors, CPU, "float32")),
        "plm-embed bfloat16": lambda: peers.ours(peers.engine(model, tensors, CPU, "bfloat16")),
        "plm-embed int8": lambda: peers.ours(peers.engine(model, tensors, CPU, "int8")),
    }
    for dtype in ("float32", "bfloat16"):
        found[f"plm-embed {dtype}, without C"] = lambda dtype=dtype: peers.ours(
            with_torchs_attention(model, tensors, dtype)
        )
    found["transformers SDPA float32, 8 at a time"] = lambda: peers.hugging_face(
        model, tensors, CPU, "float32", None
    )
    for dtype in ("float32", "bfloat16"):
        for package in ("transformers", "faesm"):
            found[f"{package} SDPA {dtype}, 1024 tokens"] = lambda dtype=dtype, package=package: (
                peers.hugging_face(model, tensors, CPU, dtype, 1024, package)
            )
    for dtype in ("float32", "int8"):
        found[f"esm-cpp {dtype}"] = lambda dtype=dtype: peers.esm_cpp(
            model, tensors, dtype, chosen("real", 4)
        )
    return found


def with_torchs_attention(
    model: Model, tensors: peers.RandomTensors, dtype: ComputeDtype
) -> Engine:
    """The engine as it is without a C compiler."""
    made = peers.engine(model, tensors, CPU, dtype)
    kernels = attention.candidates(CPU, DTYPES[dtype])
    made.attention = next(kernel for kernel in kernels if not kernel.rotates)
    return made


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def chosen(lengths: str, count: int) -> list[str]:
    """A fixed sample: real proteins of up to 1,022 residues, or influenza-like lengths (mean about
    450).
    """
    random = np.random.default_rng(7)
    if lengths == "influenza":
        # the proteins of influenza A, PB2 to NS, in equal shares
        drawn = random.choice([759, 757, 716, 566, 498, 469, 252, 97, 230, 121], count)
        return ["".join(random.choice(list(peers.RESIDUES), int(length))) for length in drawn]
    path = REAL if REAL.exists() else SAMPLE
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        texts = dict.fromkeys(
            text for _, text in SimpleFastaParser(lines) if set(text) <= set(peers.RESIDUES)
        )
    whole = [text for text in texts if len(text) <= 1022]
    return [whole[i] for i in random.choice(len(whole), count, replace=False)]


def matrix_rate(model: Model, dtype: torch.dtype) -> float:
    """Best matrix rate of this machine at the model's shapes, FLOP/s."""
    best = 0.0
    for inner, outer in ((model.dim, 4 * model.dim), (4 * model.dim, model.dim)):
        x, weight = torch.randn(1024, inner).to(dtype), torch.randn(outer, inner).to(dtype)
        layer, plain = Linear(weight, torch.zeros(outer, dtype=dtype)), weight.t().contiguous()
        for run in (lambda x=x, layer=layer: layer(x), lambda x=x, plain=plain: x @ plain):
            for _ in range(4):
                began = time.perf_counter()
                run()
                best = max(best, 2 * 1024 * inner * outer / (time.perf_counter() - began))
    return best


def peak_memory(arguments: list[str], variant: str) -> int:
    """Bytes that a process takes at most which makes and runs this variant alone."""
    command = [sys.executable, __file__, *arguments, "--only", variant]
    return int(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]
    )


@click.command()
@click.option("--lengths", type=click.Choice(["real", "influenza"]), default="real")
@click.option("--model", "name", default="8M")
@click.option("--sequences", "count", default=24)
@click.option("--runs", default=5)
@click.option("--seconds", default=240.0, help="No further run is begun after so many seconds.")
@click.option("--threads", default=1)
@click.option("--float32-only", is_flag=True)
@click.option(
    "--without", multiple=True, help="Leave out what has this in its name, where memory lacks."
)
@click.option(
    "--memory",
    is_flag=True,
    help="Also measure each variant's peak memory, in processes of their own.",
)
@click.option("--only", hidden=True)
@click.option("--output", type=click.Path(path_type=Path))
def main(
    *,
    lengths: str,
    name: str,
    count: int,
    runs: int,
    seconds: float,
    threads: int,
    float32_only: bool,
    without: tuple[str, ...],
    memory: bool,
    only: str | None,
    output: Path | None,
) -> None:
    start = time.perf_counter()
    torch.set_num_threads(threads)
    model = find_model(name)
    sequences = chosen(lengths, count)
    tokens = sum(len(sequence) + 2 for sequence in sequences)
    useful = peers.flops(model, [len(sequence) for sequence in sequences])
    if only:
        variants(model)[only]()(sequences[:4])
        status = Path("/proc/self/status").read_text()
        print(1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1]))  # type: ignore[index]
        return
    asked = {
        variant: make
        for variant, make in variants(model).items()
        if not (float32_only and "bfloat" in variant)
        and not any(word in variant for word in without)
    }
    runners: dict[str, peers.Run] = {}
    for variant, make in asked.items():
        try:
            runners[variant] = make()
        except (
            ImportError,
            ValueError,
        ) as error:  # not installed, or its version has no such attention
            print("left out:", variant, str(error).partition("\n")[0])
    warm = {variant: run(sequences) for variant, run in runners.items()}
    times: dict[str, list[float]] = {variant: [] for variant in runners}
    rates = {"float32": 0.0, "bfloat16": 0.0}
    clock = time.process_time if threads == 1 else time.perf_counter
    for number in range(runs):
        if number and time.perf_counter() - start > seconds:
            break
        for dtype in ("float32", "bfloat16"):
            rates[dtype] = max(rates[dtype], matrix_rate(model, getattr(torch, dtype)))
        for variant, run in runners.items():
            began = clock()
            run(sequences)
            times[variant].append(clock() - began)
    base = SHIPPED if SHIPPED in runners else next(iter(runners))
    exact = warm.get("fair-esm, 1024 tokens", warm[base])[0]
    median = {variant: statistics.median(each) for variant, each in times.items()}
    arguments = [
        "--lengths",
        lengths,
        "--model",
        name,
        "--sequences",
        str(count),
        "--threads",
        str(threads),
    ]
    table = {}
    for variant, (found, computed) in warm.items():
        rate = next((rates[dtype] for dtype in rates if dtype in variant), rates["float32"])
        table[variant] = {
            "tokens_per_second": round(tokens / median[variant]),
            "ratio": round(median[base] / median[variant], 2),
            "padding_share": round(1 - tokens / computed, 3),
            "share_of_matrix_rate": round(useful / median[variant] / rate, 3)
            if "int8" not in variant
            else None,
            "peak_memory_mb": round(peak_memory(arguments, variant) / 1e6) if memory else None,
        } | peers.agreement(found, exact)
        print(
            f"{variant:48}",
            *(f"{key} {value}" for key, value in table[variant].items()),
            flush=True,
        )
    report = {
        "model": model.name,
        "lengths": lengths,
        "sequences": len(sequences),
        "tokens": tokens,
        "threads": threads,
        "runs": len(times[base]),
        "ratio_to": base,
        "device": device_name(CPU),
        "load": os.getloadavg(),
        "versions": {
            package: version(package)
            for package in ("torch", "fair-esm", "transformers", "faesm", "esm-cpp")
        },
        "matrix_gflops": {dtype: round(rate / 1e9) for dtype, rate in rates.items()},
        "variants": table,
    }
    print(json.dumps(report["matrix_gflops"]), "load", report["load"])
    if output:
        output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
