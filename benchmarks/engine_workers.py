"""Two single-threaded workers against one with two threads, and token budgets, on this machine's
CPU.

PYTHONPATH=workflow/src python benchmarks/engine_workers.py --sequences 8 --runs 5
"""

import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import click
import engine as benchmark
import peers
import torch

from plm_embed.kernels.devices import device_name
from plm_embed.models.registry import find_model

SETTINGS = {
    "2 workers, 1 thread each": (2, 1, 2048),
    "1 worker, 2 threads": (1, 2, 2048),
    "2 workers, 1 thread each, 1024 tokens": (2, 1, 1024),
    "2 workers, 1 thread each, 4096 tokens": (2, 1, 4096),
}
"""Workers, threads of each, tokens per batch."""


def work(threads: int, budget: int, name: str, count: int) -> None:
    """A worker's process: says when it is ready, then embeds its sequences at each line on its
    standard input.
    """
    torch.set_num_threads(threads)
    model = find_model(name)
    run = peers.ours(
        peers.engine(model, peers.RandomTensors(model, benchmark.CPU), benchmark.CPU, "float32"),
        budget,
    )
    sequences = benchmark.chosen("real", count)
    run(sequences[:2])
    tokens = sum(len(sequence) + 2 for sequence in sequences)
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        run(sequences)
        print(tokens / (time.perf_counter() - began), flush=True)


def memory(process: int) -> float:
    """MB of a process, what it shares with others in equal shares."""
    rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
    return int(re.search(r"\nPss:\s+(\d+)", rollup)[1]) / 1e3  # type: ignore[index]


@click.command()
@click.option("--model", "name", default="35M")
@click.option("--sequences", "count", default=8)
@click.option("--runs", default=5)
@click.option("--output", type=click.Path(path_type=Path))
def main(*, name: str, count: int, runs: int, output: Path | None) -> None:
    groups = {}
    for label, (workers, threads, budget) in SETTINGS.items():
        command = [sys.executable, __file__, "work", *map(str, (threads, budget, name, count))]
        groups[label] = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(workers)
        ]
    for worker in (worker for group in groups.values() for worker in group):
        worker.stdout.readline()  # type: ignore[union-attr]
    rates: dict[str, list[float]] = {label: [] for label in groups}
    for _ in range(runs):
        for label, group in groups.items():
            for worker in group:
                worker.stdin.write("\n")  # type: ignore[union-attr]
                worker.stdin.flush()  # type: ignore[union-attr]
            rates[label].append(sum(float(worker.stdout.readline()) for worker in group))  # type: ignore[union-attr]
    held = {
        label: round(sum(memory(worker.pid) for worker in group)) for label, group in groups.items()
    }
    for worker in (worker for group in groups.values() for worker in group):
        worker.communicate()
    found = {label: round(statistics.median(each)) for label, each in rates.items()}
    report = {"model": name, "sequences": count, "runs": runs, "device": device_name(benchmark.CPU)}
    report |= {"load": os.getloadavg(), "tokens_per_second": found, "memory_mb": held}
    print(json.dumps(report, indent=2))
    if output:
        output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
    else:
        main()
