"""The forward pass against fair-esm's extraction loop, and transformers where installed, on this machine's CPU.

Interleaved runs of the same sequences with random weights; prints tokens/s, the ratio to fair-esm as shipped, and the
share of the best matrix rate measured in the same run. Worst differences to fair-esm stand beside the speeds.

    PYTHONPATH=workflow/src:tests python benchmarks/engine.py --model 35M --sequences 24 --runs 5
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import click
import esm
import numpy as np
import torch
from Bio.SeqIO.FastaIO import SimpleFastaParser

import checkpoints
from plm_embed import weights
from plm_embed.batches import Packer
from plm_embed.devices import device_name
from plm_embed.engine import TOKENS, Engine
from plm_embed.models import Model, find_model
from plm_embed.pooling import pool

ROOT = Path(__file__).parents[1]
Run = Callable[[list[str]], np.ndarray]
CPU = torch.device("cpu")


def ours(model: Model, dtype: str) -> Run:
    """Packed, longest first, as the embed job does it."""
    manifest = weights.Manifest(
        model.name, "esm2", model.layers, model.dim, model.heads, None, True, "", "", 0, weights.Source("fair-esm", "")
    )
    engine = Engine(manifest, checkpoints.random_state(model, 1), CPU, dtype)  # type: ignore[arg-type]

    def run(sequences: list[str]) -> np.ndarray:
        found = np.empty((len(sequences), model.dim), dtype=np.float32)
        for at in Packer([len(sequence) + 2 for sequence in sequences], TOKENS["cpu"]):
            batch = engine.prepare([sequences[i] for i in at])
            hidden = engine.forward(batch, [model.layers])[model.layers]
            for i, states in zip(at, engine.split(batch, hidden), strict=True):
                found[i] = pool("mean", states).numpy()
        return found

    return run


def fair_esm(model: Model, budget: int) -> Run:
    """The loop of fair-esm's scripts/extract.py: length-sorted token budget, padded, language-model head included."""
    whole = esm.ESM2(model.layers, model.dim, model.heads)
    whole.load_state_dict(checkpoints.random_state(model, 1), strict=False)
    whole.eval()

    def run(sequences: list[str]) -> np.ndarray:
        data = esm.FastaBatchedDataset([str(i) for i in range(len(sequences))], sequences)
        found = np.empty((len(sequences), model.dim), dtype=np.float32)
        convert = whole.alphabet.get_batch_converter()
        with torch.no_grad():
            for at in data.get_batch_indices(budget, extra_toks_per_seq=1):
                labels, strings, tokens = convert([data[i] for i in at])
                hidden = whole(tokens, repr_layers=[model.layers])["representations"][model.layers]
                for label, string, states in zip(labels, strings, hidden, strict=True):
                    found[int(label)] = states[1 : len(string) + 1].mean(0).numpy()
        return found

    return run


def matrix_rate(model: Model) -> float:
    """Best fp32 matrix rate of this machine at the model's shapes, FLOP/s."""
    from plm_embed.linear import Linear

    best = 0.0
    for inner, outer in ((model.dim, 4 * model.dim), (4 * model.dim, model.dim)):
        x, layer = torch.randn(1024, inner), Linear(torch.randn(outer, inner), torch.randn(outer))
        plain = torch.randn(inner, outer)
        for run in (lambda x=x, layer=layer: layer(x), lambda x=x, plain=plain: x @ plain):
            for _ in range(5):
                began = time.perf_counter()
                run()
                best = max(best, 2 * 1024 * inner * outer / (time.perf_counter() - began))
    return best


@click.command()
@click.option("--fasta", type=click.Path(path_type=Path), default=ROOT / "config" / "demo" / "proteins.fasta")
@click.option("--model", "name", default="8M")
@click.option("--sequences", "count", default=24)
@click.option("--runs", default=5)
@click.option("--threads", default=1)
@click.option("--output", type=click.Path(path_type=Path))
def main(*, fasta: Path, name: str, count: int, runs: int, threads: int, output: Path | None) -> None:
    torch.set_num_threads(threads)
    model = find_model(name)
    with fasta.open() as lines:
        allowed = set("LAGVSERTIDPKQNFYMHWCXBUZO")
        unique = dict.fromkeys(sequence for _, sequence in SimpleFastaParser(lines) if set(sequence) <= allowed)
    sequences = list(unique)[:count]
    tokens = sum(len(sequence) + 2 for sequence in sequences)
    flops = sum(n * model.layers * (24 * model.dim**2 + 4 * n * model.dim) for n in (len(s) + 2 for s in sequences))
    variants: dict[str, Run] = {
        "fair-esm as shipped (4096)": fair_esm(model, 4096),
        "fair-esm, 1024 tokens": fair_esm(model, 1024),
        "plm-embed float32": ours(model, "float32"),
        "plm-embed bfloat16": ours(model, "bfloat16"),
    }
    seconds: dict[str, list[float]] = {variant: [] for variant in variants}
    vectors: dict[str, np.ndarray] = {variant: run(sequences) for variant, run in variants.items()}  # warm
    rate = 0.0
    for _ in range(runs):
        rate = max(rate, matrix_rate(model))
        for variant, run in variants.items():
            began = time.perf_counter()
            run(sequences)
            seconds[variant].append(time.perf_counter() - began)
    reference = vectors["fair-esm, 1024 tokens"]
    median = {variant: statistics.median(times) for variant, times in seconds.items()}
    table = {}
    for variant, found in vectors.items():
        cosine = (found * reference).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(reference, axis=1)
        table[variant] = {
            "tokens_per_second": round(tokens / median[variant]),
            "ratio": round(median["fair-esm as shipped (4096)"] / median[variant], 2),
            "share_of_matrix_rate": round(flops / median[variant] / rate, 3),
            "worst_difference": float(np.abs(found - reference).max()),
            "worst_cosine": float(cosine.min()),
        }
        print(f"{variant:28}", *(f"{key} {value:<9.6g}" for key, value in table[variant].items()))
    report = {
        "model": model.name,
        "sequences": len(sequences),
        "tokens": tokens,
        "threads": threads,
        "runs": runs,
        "device": device_name(CPU),
        "fp32_matrix_gflops": round(rate / 1e9),
        "variants": table,
    }
    if output:
        output.write_text(json.dumps(report, indent=2) + "\n")


main()
