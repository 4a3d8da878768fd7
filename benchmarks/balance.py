"""How evenly workers end that pull buckets of real, unequal cost: a simulation with the real claims
and the real order.

    python benchmarks/balance.py                 # 4 and 40 workers, 1.2 M sequences
    python benchmarks/balance.py --full          # 400 workers too; writes results/balance.json

1.2 M sequences of influenza's proteins' lengths, a third of them fragments, are cut into buckets by
their keys. The nodes of 4 workers each are `Dispatch`es of their own, which share nothing but the
folder with claims and records; only their workers are not real: they wait as long as the bucket
would take, by the linear and quadratic operations of ESM-2 650M, and write the record. The ideal is
all work divided by all workers. Model loading is left out."""

import argparse
import heapq
import json
import os
import platform
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from plm_embed import keys as buckets
from plm_embed.inference.settings import Settings
from plm_embed.jobs import dispatch
from plm_embed.models.registry import MODELS
from plm_embed.planning import costs

# PB2 PB1 PA HA NP NA M1 NS1 NEP M2 PB1-F2
LENGTHS = (759, 757, 716, 566, 498, 470, 252, 230, 121, 97, 90)
LETTERS = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", np.uint8)
MODEL = MODELS["esm2_t33_650M_UR50D"]
GPUS_PER_NODE = 4
FOLDER = Path(__file__).parent


def sequences(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths in residues and first 64 bits of the keys of `count` random sequences, each
    (count,).
    """
    random = np.random.default_rng(11)
    whole = random.choice(LENGTHS, count)
    fragment = random.random(count) < 1 / 3
    lengths = np.where(
        fragment, np.maximum(20, (whole * random.uniform(0.2, 1, count)).astype(np.int64)), whole
    )
    prefixes = []
    for some in np.array_split(lengths, 40):
        residues = LETTERS[random.integers(0, 20, int(some.sum()))].tobytes()
        digests = buckets.digests(residues, np.cumsum(some))
        found = np.frombuffer(digests, ">u8").reshape(len(some), 4)
        prefixes.append(found[:, 0].astype(np.uint64))
    return lengths, np.concatenate(prefixes)


def bucket_costs(
    lengths: np.ndarray, prefixes: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Residues and operations of each of `count` buckets, by the project's bounds of key space,
    each (count,).
    """
    bounds = np.array(buckets.bucket_bounds(count)[1:-1], np.uint64)
    places = np.searchsorted(bounds, prefixes, side="right")
    tokens = lengths + 2
    work = (
        tokens * np.array([costs.flops_per_token(MODEL, length) for length in range(800)])[tokens]
    )
    return np.bincount(places, lengths, count), np.bincount(places, work, count)


class Waiting:
    """A worker that takes as long as the bucket's cost says."""

    seconds: dict[str, float]
    speeds: list[float]
    ends: list[float]

    def __init__(self, *_: object) -> None:
        self.speed = Waiting.speeds.pop()

    def wait_until_ready(self) -> None: ...

    def embed(self, bucket: Path, output: Path) -> bool:
        if output.exists():
            # another node was done just before the claim: the real worker looks, too
            return False
        time.sleep(Waiting.seconds[bucket.stem] / self.speed)
        temporary = output.with_suffix(".new")
        temporary.write_text("{}")
        temporary.replace(output)
        Waiting.ends.append(time.monotonic())
        return True

    def terminate(self) -> None: ...

    def close(self) -> None: ...


def greedy(operations: np.ndarray, residues: np.ndarray, speeds: np.ndarray) -> float:
    """The end of the last worker when claims take no time, over the ideal."""
    free = [(0.0, number) for number in range(len(speeds))]
    for bucket in np.argsort(-residues, kind="stable"):
        at, number = heapq.heappop(free)
        heapq.heappush(free, (at + operations[bucket] / speeds[number], number))
    return float(max(free)[0] / (operations.sum() / speeds.sum()))


def simulate(
    operations: np.ndarray, residues: np.ndarray, workers: int, ideal: float, spread: float
) -> dict[str, Any]:
    """One run, scaled so that `ideal` seconds are the least; `spread`: standard deviation of the
    GPUs' speeds.
    """
    random = np.random.default_rng(workers)
    speeds = np.clip(random.normal(1, spread, workers), 0.5, 1.5)
    scale = ideal * speeds.sum() / operations.sum()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        records = folder / "records"
        records.mkdir()
        paths = []
        for number, size in enumerate(residues):
            paths.append(folder / f"{number:04d}.parquet")
            paths[-1].touch()
            os.truncate(paths[-1], int(size))  # what the order goes by
        Waiting.seconds = {
            path.stem: scale * cost for path, cost in zip(paths, operations, strict=True)
        }
        Waiting.speeds, Waiting.ends = speeds.tolist(), []
        dispatch.Worker = Waiting  # type: ignore[misc,assignment]
        plan = dispatch.Plan(tuple(paths), folder, folder, records, min(workers, GPUS_PER_NODE), 0)
        nodes = [
            dispatch.Dispatch(plan, Settings(device="cpu"))
            for _ in range(max(1, workers // GPUS_PER_NODE))
        ]
        threads = [threading.Thread(target=node.run) for node in nodes]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        problems = [problem for node in nodes for problem in node.problems]
    assert not problems, problems
    return {
        "workers": workers,
        "buckets": len(paths),
        "speeds_vary_by": spread,
        "largest_bucket_over_mean": round(float(operations.max() / operations.mean()), 4),
        "ideal_seconds": ideal,
        "by_arithmetic": round(greedy(operations, residues, speeds), 4),
        "last_worker_over_ideal": round((max(Waiting.ends) - began) / ideal, 4),
        "done_twice": len(Waiting.ends) - len(paths),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=1_200_000)
    parser.add_argument("--full", action="store_true")
    arguments = parser.parse_args()
    lengths, prefixes = sequences(arguments.sequences)
    runs = []
    for workers, ideal in ((4, 20.0), (40, 20.0), *([(400, 180.0)] if arguments.full else [])):
        for each, spread in ((4, 0.0), (16, 0.0), (4, 0.02), (16, 0.02)):
            if workers * each > 2000:
                continue  # all nodes share one interpreter here, which then is the bottleneck
            residues, operations = bucket_costs(lengths, prefixes, each * workers)
            runs.append(simulate(operations, residues, workers, ideal, spread))
            print(json.dumps(runs[-1]), flush=True)
    if arguments.full:
        about = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": platform.machine(),
        }
        about |= {"load": os.getloadavg()[0], "sequences": arguments.sequences}
        (FOLDER / "results" / "balance.json").write_text(
            json.dumps(about | {"runs": runs}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
