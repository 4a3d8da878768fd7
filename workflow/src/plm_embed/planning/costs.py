"""What embedding costs: tokens and floating-point operations of a set of lengths, and the speeds to
divide them by.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Literal

from plm_embed.fingerprint import ComputeDtype, LongSequences
from plm_embed.io.files import read_shipped
from plm_embed.jobs.completion_record import Completion, completion_records
from plm_embed.models.registry import Model
from plm_embed.planning import gpu_time
from plm_embed.sequence_windows import spans

_SLICE = re.compile(r"\s(?:\d+c\.)?(?P<sevenths>\d)g\.(?P<memory>\d+)gb", re.IGNORECASE)
Basis = Literal["measured here", "measured elsewhere", "estimated", "not known"]


@dataclass(frozen=True)
class Work:
    """What the model has to do: sequences, tokens (special ones included) and floating-point
    operations.
    """

    sequences: int
    tokens: int
    flops: float


@dataclass(frozen=True)
class Speed:
    """How fast one device is. tokens_per_second is None when nothing is known; `why` says where the
    number is from.

    startup: seconds until the first batch (libraries, weights, self-test), where they were
    measured. workers: how many work beside each other on this machine, each this fast. how: in few
    words, what an estimate multiplies. here: whether this machine has the device.
    """

    device: str
    tokens_per_second: float | None
    basis: Basis
    why: str
    startup: float = 0.0
    workers: int = 1
    how: str = ""
    here: bool = False


def work(model: Model, lengths: Mapping[int, int], policy: LongSequences) -> Work:
    """Of sequences given by their number by length, under the policy for long ones."""
    sequences = tokens = 0
    flops = 0.0
    for length, count in lengths.items():
        pieces = [model.family.tokens(stop - start) for start, stop in spans(length, policy)]
        sequences += count if pieces else 0
        tokens += count * sum(pieces)
        flops += count * sum(piece * flops_per_token(model, piece) for piece in pieces)
    return Work(sequences, tokens, flops)


def flops_per_token(model: Model, tokens: int) -> float:
    """Of one token among `tokens`: 2 per weight of a layer's matrices, and for its attention 4 L
    times the width of all heads.
    """
    return float(2 * model.parameters + model.layers * 4 * tokens * model.inner)


def estimates(model: Model, todo: Work, dtype: ComputeDtype | Literal["auto"]) -> list[Speed]:
    """Speeds of the GPUs in gpus.yaml, from the reckoned times of their kernels."""
    return [estimate(name, model, todo, dtype) for name in gpu_table()["gpus"]]


def estimate(name: str, model: Model, todo: Work, dtype: ComputeDtype | Literal["auto"]) -> Speed:
    """The speed of one GPU of gpus.yaml, or of a slice of it, by its short name."""
    gpu = known_gpu(name)
    if gpu is None:
        return Speed(name, None, "not known", "nothing is known of this GPU: try --measure")
    table = {**gpu_table(), "gpus": {name: gpu}}
    used: ComputeDtype = gpu["auto"] if dtype == "auto" else dtype
    peak = gpu["peaks"].get(used)
    if peak is None:
        return Speed(name, None, "not known", f"it is not made for {used}")
    size = 2 if used in ("bfloat16", "float16") else 4
    needed = model.parameters * size / 1e9
    if needed > gpu["memory_gb"]:
        return Speed(
            name,
            None,
            "not known",
            f"its {gpu['memory_gb']} GB do not hold the weights, {needed:,.1f} GB in {used}",
        )
    if not todo.tokens:
        return Speed(name, None, "not known", "there is nothing to compute")
    rates, common = gpu_time.rates(table, name, used), table["kernels"]
    seconds = gpu_time.seconds_per_token(model, _mean_keys(model, todo), size, rates)
    seconds = seconds / common["reserve"] + common["host"] * todo.sequences / todo.tokens
    flops = todo.flops / todo.tokens
    return Speed(
        name,
        1 / seconds,
        "estimated",
        f"{gpu['peak_source']}; {gpu['kernels_source']}",
        how=f"{flops / seconds / 1e12:.3g} of {peak:.4g} TFLOP/s ({used}), kernel by kernel",
    )


def _mean_keys(model: Model, todo: Work) -> float:
    """Keys of a token's attention: what `flops_per_token` counts, the other way round."""
    attention = todo.flops / todo.tokens - 2 * model.parameters
    return attention / (model.layers * 4 * model.inner)


def measured(
    model: str, dtype: ComputeDtype | Literal["auto"], folder: Path, basis: Basis
) -> list[Speed]:
    """Speeds by device from a folder's completion records of `model`, and of `dtype` unless that is
    auto.

    Devices go by their short names. startup: the median over the jobs of what was not spent on
    tokens.
    """
    tokens: dict[str, int] = {}
    seconds: dict[str, float] = {}
    records: dict[str, list[Completion]] = {}
    for record in completion_records(folder):
        computed = record.fingerprint
        fits = computed.model == model and dtype in ("auto", computed.compute_dtype)
        if fits and record.tokens and record.tokens_per_second:
            device = device_label(record.worker.device, record.worker.threads)
            tokens[device] = tokens.get(device, 0) + record.tokens
            seconds[device] = seconds.get(device, 0.0) + record.tokens / record.tokens_per_second
            records.setdefault(device, []).append(record)
    return [
        Speed(
            device=device,
            tokens_per_second=tokens[device] / seconds[device],
            basis=basis,
            why=f"{len(found):,} completion records in {folder}",
            startup=_startup(found),
        )
        for device, found in records.items()
    ]


def _startup(records: Iterable[Completion]) -> float:
    """Return the seconds that a job with one worker took besides its tokens; 0 if none is known."""
    spared = [
        record.seconds - record.tokens / record.tokens_per_second
        for record in records
        if record.tokens_per_second and len(record.workers) == 1
    ]
    return max(0.0, median(spared)) if spared else 0.0


def device_label(device: str, threads: int | None = None) -> str:
    """A short name: 'A100' for 'NVIDIA A100-SXM4-40GB', 'A100 MIG 1g.5gb' for a slice of it; a
    CPU's name with the number of its threads.
    """
    for name, gpu in gpu_table()["gpus"].items():
        if re.search(rf"\b{gpu['match']}\b", device):
            piece = _SLICE.search(device)
            return f"{name} MIG {piece['sevenths']}g.{piece['memory']}gb" if piece else str(name)
    return f"{device}, {threads} {'thread' if threads == 1 else 'threads'}" if threads else device


def known_gpu(label: str) -> dict[str, Any] | None:
    """What gpus.yaml says of a GPU, or what follows from it for a slice of one (MIG)."""
    table = gpu_table()
    name, _, profile = label.partition(" MIG ")
    gpu: dict[str, Any] | None = table["gpus"].get(name)
    piece = _SLICE.search(label)
    if gpu is None or not profile or not piece:
        return gpu
    share = table["kernels"]["slice"] * int(piece["sevenths"]) / 7
    memory = int(piece["memory"])
    return {
        **gpu,
        "memory_gb": memory,
        "peaks": {dtype: share * peak for dtype, peak in gpu["peaks"].items()},
        "bandwidth": gpu["bandwidth"] * min(1, memory / gpu["memory_gb"]),
    }


@cache
def gpu_table() -> dict[str, Any]:
    """The content of gpus.yaml."""
    table: dict[str, Any] = read_shipped(Path(__file__).with_name("gpus.yaml"))
    return table
