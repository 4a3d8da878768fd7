"""1,024 buckets through `snakemake --profile slurm`: seconds of the plan, memory and threads of the
main process.

.venv/bin/python tests/slurm/thousand_buckets.py --output
benchmarks/results/slurm_thousand.json

As root, after `make slurm-packages`. The GPU partition is down meanwhile, so that all jobs come to
be in the queue at once. Wanted: a plan in 6 s, 300 MB and 8 threads.
"""

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

from cluster import Cluster
from slurm_campaign import MASTER, Campaign

from plm_embed.io.json_files import write_json

BUCKETS = 1024
SETTLED = 30.0
"""Seconds that the process is looked at after the last submission."""


def plan_seconds(campaign: Campaign) -> float:
    """Measure `snakemake --profile slurm -n`, once the sequences are split."""
    began = time.monotonic()
    subprocess.run(
        campaign.command(MASTER, "-n", "--quiet"),
        cwd=campaign.folder,
        env=campaign.cluster.env,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.monotonic() - began


def queued(cluster: Cluster) -> int:
    """Jobs in the queue."""
    return len(cluster.run("squeue", "--noheader", "--format=%i").split())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="plm-thousand-") as temporary, Cluster() as cluster:
        campaign = Campaign(
            Path(temporary) / "c", cluster, buckets=BUCKETS, sequences=2 * BUCKETS, lengths=(50, 60)
        )
        cluster.run("scontrol", "update", "PartitionName=gpu", "State=DOWN")
        process = campaign.start("--jobs", str(BUCKETS), MASTER)
        began = time.monotonic()
        try:
            waiting = lambda: process.poll() is None and queued(cluster) < BUCKETS  # noqa: E731
            cluster.wait_for("all jobs in the queue", lambda: not waiting(), timeout=1800)
            submitted = time.monotonic() - began
            time.sleep(SETTLED)
            status = Path(f"/proc/{process.pid}/status").read_text()
        finally:
            campaign.abandon(process)
        cluster.run("scancel", "--user=root")
        plans = [plan_seconds(campaign) for _ in range(5)]
    peak, threads = (
        int(re.search(rf"{name}:\s+(\d+)", status)[1]) for name in ("VmHWM", "Threads")
    )  # type: ignore[index]
    result = {
        "buckets": BUCKETS,
        "plan_seconds": sorted(plans),
        "submitted_after_seconds": submitted,
        "peak_mb": peak * 1.024e-3,
        "threads": threads,
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
    }
    print(json.dumps(result))
    if asked.output:
        write_json(asked.output, result)


if __name__ == "__main__":
    main()
