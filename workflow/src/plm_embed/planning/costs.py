"""The cost of embedding: tokens and operations, and the speeds of devices to divide them by."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from plm_embed.errors import ConfigError
from plm_embed.inference.settings import Settings
from plm_embed.io.files import read_shipped
from plm_embed.jobs.completion_record import completion_records
from plm_embed.models.registry import Model
from plm_embed.wording import count as plural


@dataclass(frozen=True)
class Work:
    """The work of a model: sequences that get a vector, tokens (special ones included),
    floating-point operations.
    """

    sequences: int
    tokens: int
    flops: float


@dataclass(frozen=True)
class Speed:
    """Tokens per second of one device, and where the number is from, in words."""

    device: str
    tokens_per_second: float
    basis: str

    def seconds(self, todo: Work) -> int:
        """Return the time of some work."""
        return math.ceil(todo.tokens / self.tokens_per_second)


def work(model: Model, lengths: Mapping[int, int], settings: Settings) -> Work:
    """Return the work of sequences, which are given by their number by length."""
    sequences, tokens, flops = 0, 0, 0.0
    masked = "pseudo_perplexity" in settings.scores
    for length, count in lengths.items():
        windows = model.family.passes(length, settings.long_sequences, settings.linker, masked)
        sequences += count if windows else 0
        for window, times in windows:
            passed = count * window * times
            tokens += passed
            flops += passed * flops_per_token(model, window)
    return Work(sequences, tokens, flops)


def flops_per_token(model: Model, tokens: float) -> float:
    """Return the floating-point operations of one token among `tokens`: 2 per weight of a layer's
    matrices, and for its attention 4 L times the width of all heads.
    """
    return float(2 * model.parameters + model.layers * 4 * tokens * model.inner)


def measured(folder: Path, dtype: str) -> dict[str, Speed]:
    """Return the speed of each device from a model's completion records in one dtype, or in any if
    that is auto. The time until a job's first batch is not in it.
    """
    tokens, seconds = defaultdict[str, int](int), defaultdict[str, float](float)
    for record in completion_records(folder):
        fits = dtype in ("auto", record.fingerprint.compute_dtype)
        if fits and record.tokens and record.tokens_per_second:
            device = device_label(record.worker.device, record.worker.threads)
            tokens[device] += record.tokens
            seconds[device] += record.tokens / record.tokens_per_second
    basis = f"measured: the jobs in {folder}"
    return {device: Speed(device, tokens[device] / seconds[device], basis) for device in tokens}


def estimated(device: str, model: Model, todo: Work, dtype: str) -> Speed:
    """Return the speed of a GPU of gpus.yaml, or of so many threads of a CPU, by `device_label`.

    Raises ConfigError for a device that is not known, or cannot hold or compute the model.
    """
    table, flops = gpu_table(), todo.flops / todo.tokens

    def unfit(problem: str) -> ConfigError:
        remedy = "name another one, such as --device A100"
        return ConfigError(f"--device: {device}: {problem}", key="--device", remedy=remedy)

    if threads := re.search(r", (\d+) threads?$", device):
        if dtype == "tfloat32":
            raise unfit(f"it is not made for {dtype}")
        rate = table["cpu_core_gflops"]
        basis = f"estimated: {rate} GFLOP/s per core; no job with {threads[0][2:]} was measured"
        return Speed(device, int(threads[1]) * rate * 1e9 / flops, basis)
    gpu = table["gpus"].get(device)
    if gpu is None:
        raise unfit(f"not known; known are {', '.join(table['gpus'])}")
    used, memory = gpu["auto"] if dtype == "auto" else dtype, gpu["memory_gb"]
    if used not in gpu["peaks"]:
        raise unfit(f"it is not made for {used}")
    weights = model.parameters * (2 if used in ("bfloat16", "float16") else 4) / 1e9
    if weights > memory:
        raise unfit(f"its {memory} GB do not hold the weights, {weights:,.1f} GB in {used}")
    peak, share = gpu["peaks"][used] * 1e12, gpu.get("efficiency", table["efficiency"])
    seconds = todo.flops / (share * peak) + table["sequence_seconds"] * todo.sequences
    basis = f"estimated: {share:.0%} of {peak / 1e12:.4g} TFLOP/s in {used}"
    return Speed(device, todo.tokens / seconds, basis)


def device_label(device: str, threads: int | None = None) -> str:
    """Return a short name: 'A100' for 'NVIDIA A100-SXM4-40GB'; a CPU's name with the number of its
    threads; any other name as it is, also that of a slice of a GPU (MIG), which is slower.
    """
    for name, gpu in gpu_table()["gpus"].items():
        if re.search(rf"\b{gpu['match']}\b", device) and " MIG " not in device:
            return str(name)
    return f"{device}, {plural(threads, 'thread')}" if threads else device


@cache
def gpu_table() -> dict[str, Any]:
    """Return the content of gpus.yaml."""
    table: dict[str, Any] = read_shipped(Path(__file__).with_name("gpus.yaml"))
    return table
