"""plm-embed plan against what really happens: time and bytes of ESM-2 8M and 35M on this machine's
CPU.

PYTHONPATH=workflow/src python benchmarks/plan.py --output benchmarks/results/plan.json

For each shape: a checkpoint with random weights, random sequences of natural lengths, and three
rounds of a forecast with --measure and the embed jobs that follow, as `snakemake --cores` runs
them: each bucket a process, one per core at a time. They take turns, so that a load that comes and
goes shows in both. Then gather, and all bytes.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from random_weights import write_checkpoint

from plm_embed.inference.weights import prepare
from plm_embed.io.files import write_json
from plm_embed.master.gather import gather
from plm_embed.models.registry import find_model
from plm_embed.planning import costs
from plm_embed.planning import plan as planning
from plm_embed.planning.model_settings import by_model
from plm_embed.planning.speeds import workers_here
from plm_embed.sequences.deduplicate import deduplicate
from plm_embed.sequences.settings import ResiduePolicy
from plm_embed.sequences.tables import Table
from plm_embed.workflow.config import read_config

TOKENS = {"esm2_8M": 240_000, "esm2_35M": 80_000}
BUCKETS = 4
ROUNDS = 3


def write_input(path: Path, tokens: int) -> None:
    """Random sequences with the lengths of a proteome: log-normal, median 280 residues."""
    random = np.random.default_rng(2)
    letters = np.array(list("LAGVSERTIDPKQNFYMHWC"))
    with path.open("w", encoding="ascii") as handle:
        number = written = 0
        while written < tokens:
            length = int(np.clip(random.lognormal(np.log(280), 0.6), 30, 2000))
            handle.write(
                f">sp|P{number:05d}|SEQ{number}_TEST protein "
                f"{number}\n{''.join(random.choice(letters, length))}\n"
            )
            number, written = number + 1, written + length


def campaign(folder: Path, name: str) -> planning.Question:
    """Weights, input and configuration in `folder`; the question that plan is asked."""
    model = find_model(name)
    write_input(folder / "input.fasta", TOKENS[name])
    checkpoint = write_checkpoint(folder / f"{model.name}.pt", model)
    prepare(model, checkpoint, folder / "weights" / model.name)
    config = {
        "results": str(folder / "results"),
        "inputs": [{"path": str(folder / "input.fasta"), "keep": []}],
        "model": model.name,
        "weights": str(checkpoint),
        "weights_folder": str(folder / "weights"),
        "buckets": BUCKETS,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return planning.Question(folder / "config.yaml", measure=True)


def fact(folder: Path, config: dict[str, Any], name: str) -> float:
    """Seconds until the embed jobs of all buckets have ended."""
    weights, vectors = folder / "weights" / config["model"], folder / name
    places = [
        "--store",
        vectors / "store",
        "--weights",
        weights,
    ]

    def embed(bucket: Path) -> None:
        words = [
            bucket,
            *places,
            "--record",
            vectors / "embedded" / f"{bucket.stem}.json",
            "--device",
            "cpu",
            "--scratch",
            "",
        ]
        subprocess.run(
            [sys.executable, "-m", "plm_embed", "embed", *map(str, words)],
            check=True,
            capture_output=True,
        )

    buckets = sorted((folder / "results" / "sequences" / "buckets").glob("*.parquet"))
    began = time.monotonic()
    with ThreadPoolExecutor(workers_here(config)) as pool:
        list(pool.map(embed, buckets))
    return time.monotonic() - began


def size(path: Path) -> int:
    return (
        sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        if path.is_dir()
        else path.stat().st_size
    )


def compare(shape: str) -> dict[str, Any]:
    """Forecasts and facts of one model's shape."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        question = campaign(folder, shape)
        (config,) = by_model(read_config(question.configfile)).values()
        sequences = folder / "results" / "sequences"
        policy = ResiduePolicy(unknown="skip", gaps="remove")
        inputs, table = [folder / "input.fasta"], Table("id", "sequence", ())
        deduplicate(inputs, sequences, buckets=BUCKETS, table=table, policy=policy, memory_mb=1000)
        facts, plans, loads, rates = [], [], [], []
        for turn in range(ROUNDS):
            loads.append(os.getloadavg()[0])
            plans += planning.plan(question)
            facts.append(fact(folder, config, str(turn)))
            (speed,) = costs.measured(
                config["model"], "auto", folder / str(turn) / "embedded", "measured here"
            )
            rates.append(speed.tokens_per_second)
        vectors = folder / "0"
        outputs = folder / "master.h5", folder / "index.parquet", folder / "records.parquet"
        gather(
            sequences, vectors / "embedded", vectors / "store", *outputs, {"workflow_commit": ""}
        )
        written = map(size, (sequences, vectors / "store", *outputs))
        found = dict(
            zip(("sequences", "store", "master", "index", "records"), written, strict=True)
        )
    first = plans[0]
    forecasts = [3600 * (plan.local_hours or 0) for plan in plans]
    return {
        "model": config["model"],
        "sequences": first.unique,
        "tokens": first.todo.tokens,
        "workers": first.forecasts[0].speed.workers,
        "load_before_each_round": loads,
        "startup_seconds": [plan.forecasts[0].speed.startup for plan in plans],
        "forecast_tokens_per_second": [plan.forecasts[0].speed.tokens_per_second for plan in plans],
        "fact_tokens_per_second": rates,
        "forecast_seconds": forecasts,
        "fact_seconds": facts,
        "time_ratios": [forecast / fact for forecast, fact in zip(forecasts, facts, strict=True)],
        "time_ratio": statistics.median(forecasts) / statistics.median(facts),
        "forecast_bytes": first.bytes,
        "fact_bytes": found,
        "bytes_ratio": sum(first.bytes.values()) / sum(found.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    load = os.getloadavg()
    result = {
        "machine": platform.processor() or platform.machine(),
        "load": load,
        "models": [compare(shape) for shape in TOKENS],
    }
    for one in result["models"]:
        rounds = ", ".join(f"{ratio:.2f}" for ratio in one["time_ratios"])
        print(
            f"{one['model']}: time {one['time_ratio']:.2f} of the fact ({rounds}), bytes "
            f"{one['bytes_ratio']:.4f}"
        )
    print(json.dumps(result, indent=2))
    if options.output:
        write_json(options.output, result)


if __name__ == "__main__":
    main()
