"""Share of their time that the workers of a submission are idle, apart from loading the model, by
its own record.

    python benchmarks/idle.py            # two workers on two cores, 12 buckets of some seconds
    python benchmarks/idle.py --device cuda --workers 4 --sequences 40000

The model has the shape of ESM-2 8M and random weights. The record counts everything between a
worker's first bucket and the last bucket on its node: reading, publishing and recording buckets,
claims, and waiting for the others at the end.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from plm_embed.jobs.submission import read_submission
from random_weights import write_checkpoint

from plm_embed.inference.prepare_weights import prepare
from plm_embed.models.registry import find_model
from plm_embed.typed_json import to_plain

MODEL = "esm2_t6_8M_UR50D"
LENGTHS = (759, 757, 716, 566, 498, 470, 252, 230, 121, 97, 90)
FOLDER = Path(__file__).parent
PROGRAM = [sys.executable, "-m", "plm_embed"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--buckets", type=int, default=12)
    parser.add_argument("--sequences", type=int, default=1500)
    arguments = parser.parse_args()
    random = np.random.default_rng(3)
    letters = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", np.uint8)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "in.fasta").open("wb") as fasta:
            for i, length in enumerate(random.choice(LENGTHS, arguments.sequences)):
                fasta.write(b">p%d\n%s\n" % (i, letters[random.integers(0, 20, length)].tobytes()))
        model = find_model(MODEL)
        checkpoint = write_checkpoint(folder / f"{MODEL}.pt", model)
        prepare(model, checkpoint, folder / "weights")
        deduplicate = [
            "deduplicate",
            folder / "in.fasta",
            "--output",
            folder / "s",
            "--buckets",
            arguments.buckets,
        ]
        subprocess.run([*PROGRAM, *map(str, deduplicate)], check=True, capture_output=True)
        words = [
            "embed",
            *sorted((folder / "s" / "buckets").glob("*.parquet")),
            "--weights",
            folder / "weights",
        ]
        words += [
            "--store",
            folder / "store",
            "--embedded",
            folder / "embedded",
            "--output",
            folder / "done.json",
        ]
        words += [
            "--device",
            arguments.device,
            "--workers",
            arguments.workers,
            "--threads",
            arguments.workers,
        ]
        subprocess.run([*PROGRAM, *map(str, words)], check=True, capture_output=True)
        workers = to_plain(read_submission(folder / "done.json").workers)
    for worker in workers:
        print(json.dumps(worker))
    about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": platform.machine()}
    about |= {
        "device": arguments.device,
        "load": round(os.getloadavg()[0], 1),
        "buckets": arguments.buckets,
    }
    for worker in workers:
        del worker["host"]
    result = about | {"idlest": max(worker["idle"] for worker in workers), "workers": workers}
    (FOLDER / "results" / f"idle_{arguments.device}.json").write_text(
        json.dumps(result, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
