"""A rerun after the input grew by 1 %: how many sequences it computes, and what it costs beside the
first run.

    python benchmarks/reuse.py --sequences 20000 --json benchmarks/results/reuse.json

Runs the whole workflow twice, as a user does, with the demo's tiny model; the second time with a
file of new sequences more. Wanted: at most 1 % of the work of embedding, and 60 s. The work is that
of the embed jobs by their records.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from plm_embed.jobs.completion_record import read_completion

ROOT = Path(__file__).parents[1]
LENGTHS = (759, 757, 716, 566, 498, 470, 252, 230, 121, 97, 90)  # of influenza's proteins
LETTERS = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", np.uint8)


def write_records(path: Path, count: int, seed: int) -> None:
    """FASTA of `count` distinct sequences."""
    random = np.random.default_rng(seed)
    with path.open("w", encoding="ascii") as file:
        for number, length in enumerate(random.choice(LENGTHS, count).tolist()):
            file.write(
                f">s{seed}_{number}\n{LETTERS[random.integers(0, 20, length)].tobytes().decode()}\n"
            )


def cpu_seconds() -> float:
    """Of all processes that were started here and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(folder: Path, inputs: list[str]) -> dict[str, Any]:
    """Run the workflow: seconds in all, and from the completion records what was computed and how
    long it took.
    """
    model = "esm2_t3_untrained"
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--snakefile",
        str(ROOT / "workflow" / "Snakefile"),
        "--directory",
        str(folder),
    ]
    settings = [f"inputs={json.dumps(inputs)}", "buckets=4"]
    began, started, spent = time.perf_counter(), time.time(), cpu_seconds()
    done = subprocess.run(
        [*command, "--cores", "2", "--set-threads", "embed=1", "--config", *settings],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - spent
    # a bucket without new sequences keeps its record
    paths = [
        path
        for path in folder.glob(f"results/{model}/embedded/*.json")
        if path.stat().st_mtime > started
    ]
    records = [read_completion(path) for path in paths]
    steps = {}
    for path in folder.glob("results/benchmarks/**/*.jsonl"):
        step = path.relative_to(folder / "results/benchmarks").as_posix().removeprefix(f"{model}/")
        steps[step.removesuffix(".jsonl")] = json.loads(path.read_text())["s"]
    computed = sum(record.computed for record in records)
    busy = [record.seconds for record in records if record.computed]
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "computed": computed,
        "embedding_seconds": sum(busy),
        "steps": steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=5_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "config", folder / "config")
        write_records(folder / "first.fasta", options.sequences, 1)
        write_records(folder / "more.fasta", options.sequences // 100, 2)
        first = run(folder, ["first.fasta"])
        again = run(folder, ["first.fasta", "more.fasta"])
    allowed = 0.01 * first["embedding_seconds"] + 60
    for label, each in (("first run", first), ("1 % more", again)):
        print(
            f"{label}: {each['computed']:,} sequences computed in {each['embedding_seconds']:.1f} "
            "s of embedding; "
            f"{each['seconds']:.1f} s in all, {each['cpu_seconds']:.1f} s of CPU"
        )
    print(f"the rerun took {again['seconds']:.1f} s, {allowed:.1f} s are allowed")
    result = {
        "sequences": options.sequences, "first": first, "again": again, "allowed_seconds": allowed,
        "machine": {"system": platform.platform(), "cpus": os.cpu_count(), "load": load},
    }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
