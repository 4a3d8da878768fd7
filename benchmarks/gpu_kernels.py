"""What benchmarks/roofline.py assumes of a GPU, measured on one: copies of memory, sums within
products, activations, the largest kernels of a forward pass, and its speed by the number of
rows of a product. Weights are random.

    PYTHONPATH=workflow/src python3 benchmarks/gpu_kernels.py --model 650M > kernels.json
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import peers
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from plm_embed.kernels import devices
from plm_embed.kernels.elementwise import _fused
from plm_embed.kernels.linear import Linear
from plm_embed.models.packed_batch import DTYPES
from plm_embed.models.packed_batch import ROWS as ROWS_OF
from plm_embed.models.registry import Model, find_model

CUDA = torch.device("cuda", 0)
SHOWN = 20
ROWS = (4096, 8192, 16384, 32768)
"""Of one product; the engine's are fixed, and this tells whether they are the right ones."""
ACTIVATED = ("35M", "650M", "3B", "esmc_600m")
"""Models whose way into the feed-forward is timed."""
COPIED = 1 << 30
"""Bytes: more than any cache holds."""


def timed(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def in_turns(ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median seconds of nine calls of each way, after one that compiles."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(10):
        for name, call in ways.items():
            seconds = timed(call)
            if turn:
                times[name].append(seconds)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def random(*shape: int) -> Tensor:
    return torch.randn(shape, device=CUDA).to(DTYPES[devices.choose_dtype("auto", CUDA)])


def copies() -> float:
    """Bytes read and written per second."""
    source = torch.zeros(COPIED, dtype=torch.uint8, device=CUDA)
    target = torch.empty_like(source)
    return 2 * COPIED / in_turns({"copy": lambda: target.copy_(source)})["copy"]


def sums(columns: int, width: int) -> dict[str, float]:
    """Seconds of a product whose result is added to the residual stream: alone, with the sum
    within, and with the sum after it. The roofline says that within it costs nothing.
    """
    rows = ROWS_OF["cuda"]
    linear, y, out = (
        Linear(random(width, columns), None),
        random(rows, columns),
        random(rows, width),
    )
    x = out.float()
    return in_turns(
        {
            "alone": lambda: linear(y, out=out),
            "within": lambda: linear.add_to(x, y),
            "after": lambda: x.add_(linear(y, out=out)),
        }
    )


def activations(model: Model) -> dict[str, float]:
    """Seconds of the way into the feed-forward: products alone, and with the activation behind."""
    encoder = model.family.encoder

    def linear() -> Linear:
        weight = random(model.hidden, model.dim) / model.dim**0.5
        return Linear(weight, random(model.hidden) if encoder.up_bias else None)

    x, up = random(ROWS_OF["cuda"], model.dim), linear()
    gate = linear() if encoder.gated else None
    products = [product for product in (up, gate) if product is not None]
    fused = _fused()
    return in_turns(
        {
            "products": lambda: [product(x) for product in products],
            "and a pass": lambda: fused.up(x, up, gate, encoder.activation),
        }
    )


def passes(model: Model) -> dict[str, Any]:
    """The largest kernels of a forward pass with their share of its time, and tokens per second by
    the number of rows of a product.
    """
    dtype = devices.choose_dtype("auto", CUDA)
    made = peers.engine(model, peers.RandomTensors(model, CUDA), CUDA, dtype)
    letters = np.random.default_rng(5).choice(list(peers.RESIDUES), 350)
    batch = made.prepare(["".join(letters)] * (max(ROWS) // 352))

    def forward() -> Any:
        return made.forward(batch, [model.layers])

    forward()
    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        timed(forward)
    events = sorted(watched.key_averages(), key=lambda event: -event.self_device_time_total)
    whole = sum(event.self_device_time_total for event in events)
    largest = {
        event.key: {"times": event.count, "share": event.self_device_time_total / whole}
        for event in events[:SHOWN]
    }
    rates = {}
    for made.rows in ROWS:  # other rows are other bits: here they are only timed
        batch = made.prepare(["".join(letters)] * (max(ROWS) // 352))
        rates[made.rows] = round(sum(batch.lengths) / in_turns({"pass": forward})["pass"])
    return {"kernels": largest, "tokens_per_second_by_rows": rates}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="650M")
    model = find_model(parser.parse_args().model)
    devices.set_up(CUDA, torch.get_num_threads(), "auto")
    measured = {
        "gpu": devices.device_name(CUDA),
        "torch": torch.__version__,
        "copy_bytes_per_second": copies(),
        "sums": {
            "attention": sums(model.inner, model.dim),
            "feed-forward": sums(model.hidden, model.dim),
        },
        "activations": {name: activations(find_model(name)) for name in ACTIVATED},
        "pass": passes(model),
    }
    print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
