"""The whole workflow on one machine: sequence file to validated master with random weights in a
published shape.

    PYTHONPATH=workflow/src python benchmarks/end_to_end.py proteins.fasta.gz --output
    FILE.json

Runs `snakemake` in a folder of its own and sums up what its benchmark files say of each step:
seconds, processor seconds, and the largest memory of a job with its child processes (RSS).
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from random_weights import write_checkpoint

from plm_embed.io.json_files import write_json
from plm_embed.models.registry import find_model
from plm_embed.sequences.summary import read_summary

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("input", type=Path)
    parser.add_argument("--model", default="esm2_8M")
    parser.add_argument("--buckets", type=int, default=4)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    model = find_model(arguments.model)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights = write_checkpoint(folder / f"{model.name}.pt", model)
        config = {
            "inputs": [str(arguments.input.absolute())],
            "model": model.name,
            "weights": str(weights),
            "buckets": arguments.buckets,
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        began = time.monotonic()
        subprocess.run(
            [
                *(
                    sys.executable,
                    "-m",
                    "snakemake",
                    "--snakefile",
                    ROOT / "workflow" / "Snakefile",
                    "--directory",
                    folder,
                ),
                *("--configfile", folder / "config.yaml", "--cores", str(arguments.cores)),
            ],
            check=True,
        )
        seconds = time.monotonic() - began
        counts = read_summary(folder / "results" / "sequences")
        steps: dict[str, dict[str, float]] = {}
        for path in sorted((folder / "results" / "benchmarks").rglob("*.jsonl")):
            step = path.parent.name if path.parent.name == "embed" else path.stem
            sums = steps.setdefault(
                step, {"jobs": 0, "seconds": 0.0, "processor_seconds": 0.0, "peak_mb": 0.0}
            )
            for line in path.read_text().splitlines():
                job = json.loads(line)
                sums["jobs"] += 1
                sums["seconds"] += job["s"]
                sums["processor_seconds"] += job["cpu_time"] or 0
                sums["peak_mb"] = max(sums["peak_mb"], job["max_rss"] or 0)
        result = {
            "machine": platform.processor() or platform.machine(),
            "cores": arguments.cores,
            "load": os.getloadavg(),
            "model": model.name,
            "input": arguments.input.name,
            "records": counts.records,
            "unique": counts.unique,
            "residues": counts.residues,
            "seconds": seconds,
            "steps": steps,
        }
    print(json.dumps(result, indent=2))
    if arguments.output:
        write_json(arguments.output, result)


if __name__ == "__main__":
    main()
