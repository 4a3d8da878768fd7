"""Throughput and accuracy of whole models, beside peers where they are installed."""

import json
import statistics
import time
from collections import ChainMap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import peers
import torch
from bench import LENGTHS, ROUNDS, Bench, draw, flops_share

from plm_embed.kernels import attention
from plm_embed.kernels.devices import set_up
from plm_embed.models.registry import find_model
from plm_embed.models.tokenizer_file import TENSOR
from plm_embed.planning.costs import flops_per_token

ROOT = Path(__file__).parents[2]
SMALL = 4096
"""Tokens at a time that are tried beside the default: what one kernel leaves for the next may then
stay in the cache, which has 50 MB on an H100 and 96 MB on an L40S; a product is less full.
"""
TOKENIZERS = {
    "dnabert": "dnabert2/tokenizer.json",
    "nt_v1": "nucleotide_transformer_v1/vocab.txt",
    "nt_v2": "nucleotide_transformer_v2/vocab.txt",
}
"""Of families whose tokens a file decides: those of the tests, whose tokens of DNABERT are
shorter.
"""


def model(bench: Bench, name: str, end: float, report: dict[str, Any]) -> None:
    """Throughput and accuracy of one model go into `report`; stops adding rounds at `end`."""
    model = find_model(name)
    tensors = peers.RandomTensors(model, bench.device)
    report["accuracy"] = {}
    accuracy(bench, model, tensors, report["accuracy"])
    report["throughput"] = {}
    made = peers.engine(model, tensors, bench.device, bench.half)  # type: ignore[arg-type]
    report["kernels"] = {"attention": made.attention.name, "elementwise": made.elementwise.name}
    report["launching"] = launching(bench, made)
    makers: dict[str, Callable[[], Any]] = {
        f"plm-embed {bench.half}": lambda: peers.ours(made),
        f"plm-embed {bench.half}, {SMALL:,} tokens at a time": lambda: peers.ours(made, SMALL),
        f"transformers SDPA {bench.half}": lambda: peers.hugging_face(
            model, tensors, bench.device, bench.half, 16384
        ),
        "fair-esm as shipped, float32": lambda: peers.fair_esm(
            model, tensors, bench.device, "float32", 4096
        ),
    }
    runners: dict[str, Any] = {}
    for variant, make in makers.items():
        try:
            runners[variant] = make()
        except (
            Exception
        ) as error:  # a peer that is not there, or does not work here, is told and left out
            report.setdefault("left_out", {})[variant] = (
                f"{type(error).__name__}: {error}".splitlines()[0]
            )
    budgets = max(1, round(bench.tokens * flops_share(model) / bench.budget))
    for label, (mean, spread) in LENGTHS.items():
        # as in a bucket of thousands: all batches but the last one of many are full
        ours = draw(mean, spread, 0.98 * budgets * bench.budget)
        # what is slower gets fewer of the same sequences; the rate is per token
        samples = {
            variant: ours[:: 1 if "plm" in variant else 8 if "fair" in variant else 2]
            for variant in runners
        }
        report["throughput"][label] = interleaved(bench, model, runners, samples, end)
        print(name, label, json.dumps(report["throughput"][label]["variants"]), flush=True)


def interleaved(
    bench: Bench, model: Any, runners: dict[str, Any], samples: dict[str, list[str]], end: float
) -> dict[str, Any]:
    rates: dict[str, list[float]] = {variant: [] for variant in runners}
    matrix, problems = [], {}
    for variant, run in list(runners.items()):
        try:
            run(samples[variant])  # kernels are chosen and compiled
        except Exception as error:
            problems[variant] = f"{type(error).__name__}: {error}".splitlines()[0]
    for number in range(ROUNDS):
        if number and time.monotonic() > end:
            break
        matrix.append(bench.matrix_rate(8192 if bench.cuda else 256))
        for variant, run in runners.items():
            if variant not in problems:
                tokens = sum(len(text) + 2 for text in samples[variant])
                rates[variant].append(
                    tokens / bench.timed(lambda run=run, variant=variant: run(samples[variant]))
                )
    per_token = {
        variant: peers.flops(model, [len(t) for t in texts]) / sum(len(t) + 2 for t in texts)
        for variant, texts in samples.items()
    }
    rate = statistics.median(matrix)
    median = {variant: statistics.median(found) for variant, found in rates.items() if found}
    first = next(iter(median), None)
    return {
        "rounds": len(matrix),
        "mean_tokens": sum(len(t) + 2 for t in samples[first]) / len(samples[first])
        if first
        else None,
        "matrix_tflops": rate / 1e12,
        "problems": problems,
        "variants": {
            variant: {
                "tokens_per_second": round(found),
                "share_of_matrix_rate": round(found * per_token[variant] / rate, 4),
                "ours_is_faster_by": round(median[first] / found, 2) if first else None,
            }
            for variant, found in median.items()
        },
    }


def accuracy(bench: Bench, model: Any, tensors: Any, found: dict[str, Any]) -> None:
    """Mean vectors of every dtype and attention kernel against fp32."""
    texts = [draw(mean, 0.2, 1)[0] for mean in (5, 20, 60, 150, 300, 500, 800, 1020, 2100)]
    exact = None
    for dtype in ("float32", "tfloat32", "bfloat16", "float16"):
        if (dtype == "bfloat16" and bench.half != "bfloat16") or (
            dtype == "tfloat32" and not bench.modern
        ):
            continue
        set_up(bench.device, torch.get_num_threads(), dtype)
        made = peers.engine(model, tensors, bench.device, dtype)
        for kernel in [made.attention, *other_kernels(bench, made)]:
            made.attention = kernel
            vectors = peers.ours(made)(texts)[0]
            exact = vectors if exact is None else exact
            found[f"{dtype}, {kernel.name}"] = peers.agreement(vectors, exact)
        del made
    set_up(bench.device, torch.get_num_threads(), "auto")


def other_kernels(bench: Bench, made: Any) -> list[Any]:
    """The attention kernels that work here for a model besides the one that it uses."""
    heads, dtype = made.manifest.heads, made.dtype
    offered = [
        each
        for each in attention._candidates(bench.device, dtype)
        if each.name != made.attention.name
    ]
    problem = partial(attention._problem, device=bench.device, dtype=dtype, heads=heads)
    return [each for each in offered if not problem(each, width=made.manifest.dim // heads)]


def family(bench: Bench, name: str, end: float, report: dict[str, Any]) -> None:
    """Throughput of a model of another family, and its accuracy in half precision; stops adding
    rounds at `end`. They go into `report`.
    """
    model = find_model(name)
    tensors: Any = peers.RandomTensors(model, bench.device)
    if model.tokenizer_file:
        file = ROOT / "tests" / "data" / "golden_families" / TOKENIZERS[model.family.name]
        content = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8)
        tensors = ChainMap({TENSOR: content}, tensors)
    letters = "ACGT" if model.tokenizer_file else "LAGVSERTIDPKQNFYMHWC"
    wanted = 0.98 * bench.budget * max(1, round(bench.tokens * flops_share(model) / bench.budget))
    per_token = model.family.letters_per_token
    texts = draw(500 * per_token, 0.3, wanted * per_token, letters)
    few = sorted(texts, key=len)[:: max(1, len(texts) // 8)]
    exact = peers.ours(peers.engine(model, tensors, bench.device, "float32"))(few)[0]
    made = peers.engine(model, tensors, bench.device, bench.half)  # type: ignore[arg-type]
    run = peers.ours(made)
    report |= {
        "kernels": {"attention": made.attention.name, "elementwise": made.elementwise.name},
        "accuracy": peers.agreement(run(few)[0], exact),
    }
    run(texts)  # kernels are compiled
    lengths = [len(made.tokenize(text)) for text in texts]
    tokens = sum(lengths)
    flops = sum(length * flops_per_token(model, length) for length in lengths)
    rates, matrix = [], []
    for number in range(ROUNDS):
        if number and time.monotonic() > end:
            break
        matrix.append(bench.matrix_rate(8192 if bench.cuda else 256))
        rates.append(tokens / bench.timed(lambda: run(texts)))
    rate = statistics.median(rates)
    report |= {
        "rounds": len(rates),
        "mean_tokens": tokens / len(texts),
        "tokens_per_second": round(rate),
        "letters_per_second": round(rate * sum(map(len, texts)) / tokens),
        "share_of_matrix_rate": round(rate * flops / tokens / statistics.median(matrix), 4),
    }
    print(name, json.dumps(report), flush=True)


def launching(bench: Bench, made: Any) -> dict[str, float]:
    """How long the host takes to queue a batch, and the device to compute it: what a CUDA graph
    could save.
    """
    batch = made.prepare(draw(500, 0.3, 0.85 * made.rows))
    layers = [made.manifest.layers]
    bench.timed(lambda: made.forward(batch, layers))
    began = time.perf_counter()
    made.forward(batch, layers)
    queued = time.perf_counter() - began
    return {
        "host_seconds": queued,
        "device_seconds": bench.timed(lambda: made.forward(batch, layers)),
    }
