"""A campaign through `snakemake --profile slurm` against the same commands as plain sbatch jobs, on
a real SLURM.

    .venv/bin/python tests/slurm/overhead.py --sequences 10

As root, after `make slurm-packages`: the test cluster with 8 virtual GPUs. The commands are taken
from the campaign's own logs and submitted with the same resources, chained by --dependency. Both
take turns, each in a fresh folder.
"""

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cluster import Cluster
from slurm_campaign import Campaign
from snakemake_run import MODEL, ROOT

from plm_embed.io.json_files import write_json

BUCKETS = 32
FLAGS = {"embed": ("--partition=gpu", "--gpus=1", "--mem=6000", "--time=10")}
OTHERS = ("--partition=cpu", "--mem=6000", "--time=120")


def campaign(folder: Path, cluster: Cluster, sequences: int) -> Campaign:
    return Campaign(
        folder, cluster, buckets=BUCKETS, sequences=BUCKETS * sequences, flush_minutes=5
    )


def through_snakemake(run: Campaign) -> float:
    """Seconds of the whole campaign."""
    began = time.monotonic()
    with run.running():
        pass
    return time.monotonic() - began


def as_plain_jobs(folder: Path, cluster: Cluster, commands: dict[str, list[list[str]]]) -> float:
    """Seconds of the same steps, submitted at once where nothing else decides the order."""
    environment = {
        **cluster.env,
        "PATH": f"{Path(sys.executable).parent}:{cluster.env['PATH']}",
        "PYTHONPATH": str(ROOT / "workflow" / "src"),
    }
    submitted = 0

    def submit(rule: str, command: list[str], after: list[str], *options: str) -> str:
        nonlocal submitted
        submitted += 1
        depend = [f"--dependency=afterok:{':'.join(after)}"] if after else []
        flags = [
            *FLAGS.get(rule, OTHERS),
            "--nodes=1",
            "--cpus-per-task=1",
            f"--output=plain-{submitted}.log",
        ]
        words = ["sbatch", "--parsable", *flags, *depend, *options, "--wrap", shlex.join(command)]
        done = subprocess.run(
            words, cwd=folder, env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout.strip().split(";")[0]

    (folder / "results").mkdir()
    began = time.monotonic()
    jobs = [submit("deduplicate", *commands["deduplicate"], [])]
    for command in commands["weights"]:
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    jobs = [submit("embed", command, jobs) for command in commands["embed"]]
    jobs = [submit("gather", *commands["gather"], jobs)]
    jobs = [submit("validate", *commands["validate"], jobs)]
    submit("report", *commands["report"], jobs, "--wait")
    return time.monotonic() - began


def commands_of(run: Campaign) -> dict[str, list[list[str]]]:
    """The commands of each rule: the first line of each log."""
    logs = run.folder / "results" / "logs"
    found: dict[str, list[list[str]]] = {}
    for rule in ("weights", "deduplicate", "embed", "gather", "validate", "report"):
        paths = [
            *logs.glob(f"{rule}.log"),
            *logs.glob(f"{MODEL}/{rule}.log"),
            *logs.glob(f"{MODEL}/{rule}/*.log"),
        ]
        lines = [
            path.read_text().splitlines()[0].split("plm-embed ", 1)[1] for path in sorted(paths)
        ]
        found[rule] = [["python", "-m", "plm_embed", *shlex.split(line)] for line in lines]
    return found


def measure(cluster: Cluster, folder: Path, sequences: int, rounds: int) -> dict[str, Any]:
    """Both, in turns, with so many sequences per bucket."""
    times: dict[str, list[float]] = {"snakemake": [], "plain": []}
    for at in range(rounds):
        ours = campaign(folder / f"{sequences}-{at}-snakemake", cluster, sequences)
        times["snakemake"].append(through_snakemake(ours))
        plain = campaign(folder / f"{sequences}-{at}-plain", cluster, sequences)
        times["plain"].append(as_plain_jobs(plain.folder, cluster, commands_of(ours)))
        assert plain.master() == ours.master(), "the masters differ"
        print(
            f"{sequences} sequences per bucket: {times['snakemake'][-1]:.0f} s, plain "
            f"{times['plain'][-1]:.0f} s"
        )
    ours_, plain_ = (statistics.median(times[name]) for name in ("snakemake", "plain"))
    return {"sequences_per_bucket": sequences, "seconds": times, "ratio": ours_ / plain_}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, nargs="*", default=[10, 100], help="per bucket")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="plm-overhead-") as temporary, Cluster() as cluster:
        found = [
            measure(cluster, Path(temporary), count, asked.rounds) for count in asked.sequences
        ]
    result = {
        "buckets": BUCKETS,
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "campaigns": found,
    }
    for one in found:
        print(f"{one['sequences_per_bucket']:>5} sequences per bucket: ratio {one['ratio']:.2f}")
    if asked.output:
        write_json(asked.output, result)


if __name__ == "__main__":
    main()
