"""Campaigns under random kills: `python tests/pbs/kills.py FIRST LAST [RESULTS.json]` runs the
seeds FIRST..LAST.

Each deduplicates some proteins and embeds them by jobs of two nodes with two workers, one for a
bucket, while workers and nodes are killed and whole jobs end as at the walltime (SIGTERM, then
SIGKILL) or as Polaris preempts (SIGKILL at once). A job that failed is submitted again until one
succeeds; then gather and validate have their say. All of that is the real code. Only how processes
start is not: they are forked from one that has torch loaded.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
from forked_jobs import NODES, Job, prepare_process, run_to_end

from plm_embed.io.json_files import write_sealed
from plm_embed.master.validation_record import read_validation
from plm_embed.models.weights import read_manifest

ROOT = Path(__file__).parents[2]
MODEL = "esm2_t3_untrained"
KINDS = ("worker", "node", "walltime", "preempted")
CALM_AFTER = 5  # attempts, so that every campaign ends
LONGEST = 900.0


def campaign(seed: int, weights: Path) -> dict[str, Any]:
    """Run one; what happened."""
    dice = random.Random(seed)
    begun = time.monotonic()
    kills: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="kills") as name:
        folder = Path(name)
        os.chdir(folder)
        proteins = [
            "".join(dice.choices("ACDEFGHIKLMNPQRSTVWY", k=dice.randint(20, 300)))
            for _ in range(600)
        ]
        text = "".join(f">p{i}\n{protein}\n" for i, protein in enumerate(proteins + proteins[:30]))
        (folder / "in.fasta").write_text(text)
        (folder / "nodes").write_text("\n".join(NODES))
        sequences, model = folder / "sequences", folder / "model"
        records, store = model / "embedded", model / "store"
        run_to_end(
            ["deduplicate", folder / "in.fasta", "--output", sequences, "--buckets", "2"], folder
        )
        buckets = sorted((sequences / "buckets").glob("*.parquet"))
        attempts = 0
        for bucket in buckets:
            record = records / f"{bucket.stem}.json"
            words: list[str | Path] = ["embed", bucket, "--weights", weights, "--store", store]
            words += ["--record", record, "--device", "cpu", "--scratch", ""]
            words += ["--toks-per-batch", "256", "--flush-minutes", "0.002"]
            words += ["--nodes", "2", "--workers", "2", "--minutes", "60"]
            mine = 0
            while not record.exists() and time.monotonic() - begun < LONGEST:
                attempts, mine = attempts + 1, mine + 1
                job = Job(folder, 1000 * seed + attempts, words)
                instants = sorted(
                    dice.uniform(0, 1.5)
                    for _ in range(dice.randint(0, 3) if mine <= CALM_AFTER else 0)
                )
                started = time.monotonic()
                while job.running() and time.monotonic() - begun < LONGEST:
                    if instants and time.monotonic() - started > instants[0]:
                        instants.pop(0)
                        kind = dice.choice(KINDS)
                        kills[kind] += job.kill(kind, dice)
                    time.sleep(0.02)
                if job.code is None:
                    job.signal(signal.SIGKILL)
                    raise RuntimeError(
                        f"seed {seed}: not complete\n{(folder / 'log').read_text()[-3000:]}"
                    )
        final: list[str | Path] = ["--sequences", sequences, "--embedded", records]
        master = model / "master_esm2_embeddings.h5"
        final += ["--store", store, "--master", master, "--index", master.with_suffix(".parquet")]
        run_to_end(["gather", *final, "--records", model / "records.parquet"], folder)
        manifest = read_manifest(weights)
        write_sealed(model / "weights.json", manifest)
        run_to_end(["validate", model], folder)
        with h5py.File(master, locking=False) as file:
            rows = len(file["emb"])
        if (
            rows != len(set(proteins))
            or (found := read_validation(model / "validation.json")) is None
            or found.status != "passed"
        ):
            raise RuntimeError(f"seed {seed}: {rows} rows of {len(set(proteins))}")
        computed = sum(int(path.stem.split("-")[2]) for path in store.glob("*/parts/[0-9a-f]*.h5"))
        os.chdir("/")
    seconds = round(time.monotonic() - begun, 1)
    return {
        "seed": seed,
        "attempts": attempts,
        "kills": dict(kills),
        "twice": computed - rows,
        "seconds": seconds,
    }


def main(first: int, last: int, results: Path | None) -> None:
    prepare_process()
    with tempfile.TemporaryDirectory(prefix="kills") as name:
        folder = Path(name)
        weights, tools = folder / "weights", folder / "tools"
        tools.mkdir()
        (tools / "pbs_tmrsh").write_text("#!/bin/sh\n")  # found, never run: Node takes its place
        (tools / "pbs_tmrsh").chmod(0o755)
        os.environ |= {"PATH": f"{tools}:{os.environ['PATH']}", "PBS_NODEFILE": "nodes"}
        source = ROOT / "config" / "demo" / f"{MODEL}.pt"
        run_to_end(["weights", "--model", MODEL, "--source", source, "--output", weights], folder)
        done = json.loads(results.read_text())["campaigns"] if results and results.exists() else []
        for seed in range(first, last + 1):
            found = campaign(seed, weights)
            print(json.dumps(found), flush=True)
            done = [*(one for one in done if one["seed"] != seed), found]
            if results:
                total = sum((Counter(one["kills"]) for one in done), Counter())
                summary = {"complete_and_valid": len(done), "kills": dict(total)}
                summary |= {
                    key: sum(one[key] for one in done) for key in ("attempts", "twice", "seconds")
                }
                results.write_text(json.dumps(summary | {"campaigns": done}) + "\n")


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        int(sys.argv[2]),
        Path(sys.argv[3]).absolute() if len(sys.argv) > 3 else None,
    )
