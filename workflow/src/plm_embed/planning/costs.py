"""The cost of a campaign: the sequences that its store lacks, their tokens and operations, and the
speeds of devices to divide them by.
"""

import math
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plm_embed.errors import ConfigError, PlmEmbedError
from plm_embed.inference.settings import Settings
from plm_embed.io.files import read_shipped
from plm_embed.io.parquet import read_table
from plm_embed.jobs.completion_record import FOLDER, completion_records, is_done
from plm_embed.keys import bucket_names, key_array
from plm_embed.models.registry import Model
from plm_embed.sequences.deduplicate import deduplicate
from plm_embed.sequences.settings import MEMORY_MB, Table
from plm_embed.sequences.summary import known_summary, read_summary
from plm_embed.store.parts import Part, parts_folder
from plm_embed.store.store import PartList, fingerprint_folders, read_fingerprint
from plm_embed.wording import count
from plm_embed.workflow.checks import known_settings
from plm_embed.workflow.config import Config, input_paths, input_tables, residues_of

TABLE: dict[str, Any] = read_shipped(Path(__file__).with_name("gpus.yaml"))


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


@contextmanager
def deduplicated(config: Config) -> Iterator[Path]:
    """Yield the folder of the campaign's sequences: that in its results, or a temporary one where
    that is missing or of other inputs.
    """
    folder, policy = Path(config["results"], "sequences"), residues_of(config)
    paths = [Path(path) for path in input_paths(config)]
    if (summary := known_summary(folder)) and summary.policy in (None, policy):
        before = sorted((entry.path, entry.bytes) for entry in summary.inputs)
        if before == sorted((str(path), path.stat().st_size) for path in paths):
            yield folder
            return
    with tempfile.TemporaryDirectory(prefix="plm-embed-plan-") as temporary:
        folder = Path(temporary)
        options: dict[str, Any] = {"table": Table(), "tables": input_tables(config)}
        options |= {"policy": policy, "memory_mb": MEMORY_MB}
        deduplicate(paths, folder, buckets=64, **options)  # of any number: soon deleted
        yield folder


def lengths_left(config: Config, model: Model, sequences: Path) -> Mapping[int, int]:
    """Count by length the sequences in a folder that the store lacks.

    The device that will compute decides the rest of the fingerprint (compute_dtype auto, the
    engine): of several fingerprints that fit the settings, the one that spares most counts.
    """
    results, settings = Path(config["results"], model.name), known_settings(config, model)
    store, summary = Path(config["store"] or results / "store"), read_summary(sequences)
    left: Mapping[int, int] = summary.lengths
    for folder in fingerprint_folders(store):
        fingerprint, lacking = read_fingerprint(folder), Counter[int]()
        if not settings.items() <= fingerprint.stated.items():
            continue
        parts = PartList(parts_folder(store, fingerprint))
        for name in bucket_names(summary.buckets):
            bucket = sequences / "buckets" / f"{name}.parquet"
            if is_done(bucket, results / FOLDER / f"{name}.json", store, fingerprint):
                continue
            table = read_table(bucket, ["key", "length"])
            keys, absent = key_array(table["key"]), np.ones(len(table), dtype=np.bool_)
            for path in parts.between(keys[0].decode(), keys[-1].decode()) if len(keys) else ():
                # a damaged one counts for nothing: its sequences will be computed again
                with suppress(PlmEmbedError), Part(path) as part:
                    absent &= part.locate(keys) < 0
            lacking.update(table["length"].to_numpy()[absent].tolist())
        left = min(left, lacking, key=lambda lengths: sum(lengths.values()))
    return left


def work(model: Model, lengths: Mapping[int, int], settings: Settings) -> Work:
    """Return the work of sequences, which are given by their number by length."""
    sequences, tokens, flops = 0, 0, 0.0
    masked = "pseudo_perplexity" in settings.scores
    for length, number in lengths.items():
        windows = model.family.passes(length, settings.long_sequences, settings.linker, masked)
        sequences += number if windows else 0
        for window, times in windows:
            passed = number * window * times
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
    gpu: dict[str, Any] = TABLE["gpus"].get(device, {"peaks": {}})
    threads = re.search(r", ([1-9]\d*) threads?$", device)
    used = gpu.get("auto", dtype) if dtype == "auto" else dtype
    weights = model.parameters * (2 if used in ("bfloat16", "float16") else 4) / 1e9
    if threads and used != "tfloat32":
        rate = TABLE["cpu_core_gflops"]
        basis = f"estimated: {rate} GFLOP/s per core; no job with {threads[0][2:]} was measured"
        return Speed(device, int(threads[1]) * rate * 1e9 * todo.tokens / todo.flops, basis)
    if not threads and not gpu["peaks"]:
        problem = f"not known; known are {', '.join(TABLE['gpus'])}"
    elif used not in gpu["peaks"]:
        problem = f"it is not made for {used}"
    elif weights > gpu["memory_gb"]:
        memory = gpu["memory_gb"]
        problem = f"its {memory} GB do not hold the weights, {weights:,.1f} GB in {used}"
    else:
        peak, share = gpu["peaks"][used] * 1e12, gpu.get("efficiency", TABLE["efficiency"])
        seconds = todo.flops / (share * peak) + TABLE["sequence_seconds"] * todo.sequences
        basis = f"estimated: {share:.0%} of {peak / 1e12:.4g} TFLOP/s in {used}"
        return Speed(device, todo.tokens / seconds, basis)
    remedy = "name another one, such as --device A100"
    raise ConfigError(f"--device: {device}: {problem}", key="--device", remedy=remedy)


def device_label(device: str, threads: int | None = None) -> str:
    """Return a short name: 'A100' for 'NVIDIA A100-SXM4-40GB'; a CPU's name with the number of its
    threads; any other name as it is, also that of a slice of a GPU (MIG), which is slower.
    """
    for name, gpu in TABLE["gpus"].items():
        if re.search(rf"\b{gpu['match']}\b", device) and " MIG " not in device:
            return str(name)
    return f"{device}, {count(threads, 'thread')}" if threads else device
