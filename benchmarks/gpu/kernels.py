"""What the reckoning of benchmarks/roofline.py rests on, measured: the kernels of one forward pass,
products by their number of rows, sums within them, copies.
"""

import statistics
from collections.abc import Callable
from typing import Any

import peers
import torch
from bench import Bench, draw
from torch.profiler import ProfilerActivity, profile

from plm_embed.kernels.elementwise import Elementwise, _fused
from plm_embed.kernels.linear import Linear
from plm_embed.models.packed_batch import DTYPES
from plm_embed.models.packed_batch import ROWS as ROWS_OF
from plm_embed.models.registry import find_model

SHOWN = 20
ROWS = (4096, 8192, 16384, 32768)
"""Of one product; the engine's are fixed, and this tells whether they are the right ones."""
ACTIVATED = ("35M", "650M", "3B", "esmc_600m")
"""Models whose way into the feed-forward is timed."""
COPIED = 1 << 30
"""Bytes: more than any cache holds."""


def kernels(bench: Bench, name: str, found: dict[str, Any]) -> None:
    """All of it for one model with random weights, in half precision; it goes into `found`."""
    model = find_model(name)
    made = peers.engine(model, peers.RandomTensors(model, bench.device), bench.device, bench.half)
    layers = [model.layers]
    found["copy_bytes_per_second"] = _copies(bench)
    found["sums"] = {
        name: _sums(bench, columns, model.dim, made.rows)
        for name, columns in (("attention", model.inner), ("feed-forward", model.hidden))
    }
    batch = made.prepare(draw(350, 0.3, 0.98 * made.rows))
    found["profile"] = _profile(bench, lambda: made.forward(batch, layers))
    print("kernels", found, flush=True)
    found["rows"] = {}
    rows = ROWS if bench.cuda else tuple(each // 64 for each in ROWS)
    usual = made.rows
    for made.rows in rows:  # other rows are other bits: here they are only timed
        batch = made.prepare(draw(350, 0.3, 0.98 * max(rows)))
        tokens = sum(batch.lengths)
        made.forward(batch, layers)
        times = [bench.timed(lambda batch=batch: made.forward(batch, layers)) for _ in range(3)]
        found["rows"][made.rows] = {
            "tokens_per_second": round(tokens / statistics.median(times)),
            "usual": made.rows == usual,
        }
    print("rows of a product", found["rows"], flush=True)


def _copies(bench: Bench) -> float:
    """Bytes read and written per second: the median of 5 times 10."""
    size = COPIED if bench.cuda else COPIED >> 6
    source = torch.zeros(size, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)

    def ten() -> None:
        for _ in range(10):
            target.copy_(source)

    ten()
    return 20 * size / statistics.median(bench.timed(ten) for _ in range(5))


def _sums(bench: Bench, columns: int, width: int, rows: int) -> dict[str, float]:
    """Seconds of a product whose result is added to the residual stream: alone, with the sum
    within, and with the sum after it. The reckoning says that within it costs nothing.
    """

    linear, y, out = (
        Linear(_random(bench, width, columns), None),
        _random(bench, rows, columns),
        _random(bench, rows, width),
    )
    x = out.float()
    ways: dict[str, Callable[[], Any]] = {
        "alone": lambda: linear(y, out=out),
        "within": lambda: linear.add_to(x, y),
        "after": lambda: x.add_(linear(y, out=out)),
    }
    return _in_turns(bench, ways)


def activations(bench: Bench, found: dict[str, dict[str, float]]) -> None:
    """Seconds of the way into the feed-forward by model: products alone, with a pass for the
    activation, and with the activation within Triton's product. The last pays where it is shorter.
    """
    for name in ACTIVATED:
        found[name] = _activations(bench, name)
    print("activations", found, flush=True)


def _activations(bench: Bench, name: str) -> dict[str, float]:
    model = find_model(name)
    encoder = model.family.encoder

    def linear() -> Linear:
        weight = _random(bench, model.hidden, model.dim) / model.dim**0.5
        return Linear(weight, _random(bench, model.hidden) if encoder.up_bias else None)

    def by(way: Elementwise) -> Callable[[], Any]:
        return lambda: way.up(x, up, gate, encoder.activation)

    x, up = _random(bench, ROWS_OF[bench.device.type], model.dim), linear()
    gate = linear() if encoder.gated else None
    products = [each for each in (up, gate) if each is not None]
    ways: dict[str, Callable[[], Any]] = {"products": lambda: [each(x) for each in products]}
    if bench.cuda:
        ways["and a pass"] = by(_fused(within=False))
    if bench.modern:
        ways["within"] = by(_fused(within=True))
    return _in_turns(bench, ways)


def _random(bench: Bench, *shape: int) -> torch.Tensor:
    return torch.randn(shape, device=bench.device).to(DTYPES[bench.half])


def _in_turns(bench: Bench, ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median seconds of nine calls of each way, after one that compiles."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(10):
        for name, call in ways.items():
            seconds = bench.timed(call)
            if turn:
                times[name].append(seconds)
    return {name: statistics.median(each) for name, each in times.items()}


def _profile(bench: Bench, call: Any) -> list[dict[str, Any]]:
    """The largest kernels of a call, with their share of the device's time."""
    call()
    activities = [ProfilerActivity.CUDA if bench.cuda else ProfilerActivity.CPU]
    with profile(activities=activities) as watched:
        bench.timed(call)

    def spent(event: Any) -> float:
        return float(event.self_device_time_total if bench.cuda else event.self_cpu_time_total)

    events = sorted(watched.key_averages(), key=spent, reverse=True)
    whole = sum(map(spent, events))
    return [
        {
            "name": event.key,
            "times": event.count,
            "milliseconds": round(spent(event) / 1e3, 3),
            "share": round(spent(event) / whole, 4),
        }
        for event in events[:SHOWN]
    ]
