"""Deduplicate against a bare pass: pyfastx, SHA-256 and a set of digests, in turns in one run.

    python benchmarks/deduplicate.py            # 200,000 records
    python benchmarks/deduplicate.py --full     # 2,000,000 records, 1 GB of FASTA
    python benchmarks/deduplicate.py --records 20000000 --rounds 1

The bare pass only counts distinct sequences. Deduplicate also accounts for every record, sorts,
writes records.parquet and two files for each of 64 buckets. The records look like influenza's: its
proteins' lengths, 40 % exact repeats. Needs pyfastx (pip install pyfastx==2.3.1).
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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

LENGTHS = (
    759,
    757,
    716,
    566,
    498,
    470,
    252,
    230,
    121,
    97,
    90,
)  # PB2 PB1 PA HA NP NA M1 NS1 NEP M2 PB1-F2
WIDTH = 80
LETTERS = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", np.uint8)
FOLDER = Path(__file__).parent

PEAK = """
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""
BARE = """
import hashlib, sys, pyfastx
seen, records = set(), 0
for _, sequence in pyfastx.Fastx(sys.argv[1]):
    seen.add(hashlib.sha256(sequence.encode()).digest())
    records += 1
print(records, len(seen))
"""
OURS = """
import sys
from pathlib import Path
from plm_embed.cli.main import group
from plm_embed.sequences.summary import read_summary
group.main(["deduplicate", sys.argv[1], "--output", sys.argv[2], "--buckets", "64",
            "--memory-mb", sys.argv[3]],
           standalone_mode=False)
summary = read_summary(Path(sys.argv[2]))
print(summary.records, summary.unique)
"""


def write_records(path: Path, count: int) -> None:
    """FASTA of `count` records, 60 % of them distinct, in random order, 80 residues a line."""
    random = np.random.default_rng(5)
    pool = LETTERS[random.integers(0, 20, 50_000_000)].tobytes()
    distinct = count * 6 // 10
    starts, lengths = (
        random.integers(0, len(pool) - 1000, distinct),
        random.choice(LENGTHS, distinct),
    )
    chosen = np.concatenate([np.arange(distinct), random.integers(0, distinct, count - distinct)])
    random.shuffle(chosen)
    with path.open("wb") as file:
        for number, which in enumerate(chosen.tolist()):
            sequence = pool[starts[which] : starts[which] + lengths[which]]
            lines = b"\n".join(sequence[at : at + WIDTH] for at in range(0, len(sequence), WIDTH))
            file.write(
                b">gb|ABC%08d|Influenza A virus (A/mallard/%d/2015(H1N1)) segment\n"
                % (number, which % 9973)
            )
            file.write(lines + b"\n")


def measure(program: str, *arguments: object) -> dict[str, Any]:
    """Run a program: seconds by the clock and of CPU, peak memory in MB, and what it prints."""
    source = FOLDER.parent / "workflow" / "src"
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", program + PEAK, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(source)},
    ) as process:
        assert process.stdout
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"failed with {process.returncode}")
    *found, peak = printed.split()
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_mb": int(peak) * 1024 / 1e6,
        "found": found,
    }


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--records", type=int, default=200_000)
    options.add_argument("--full", action="store_true", help="2,000,000 records")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--memory-mb", type=int, default=1000)
    options.add_argument("--folder", type=Path, help="for the temporary files")
    given = options.parse_args()
    count = 2_000_000 if given.full else given.records
    runs: dict[str, list[dict[str, Any]]] = {"bare pass": [], "deduplicate": []}
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        fasta = Path(folder, "records.fasta")
        write_records(fasta, count)
        size = fasta.stat().st_size
        for _ in range(given.rounds):
            runs["bare pass"].append(measure(BARE, fasta))
            runs["deduplicate"].append(
                measure(OURS, fasta, Path(folder, "sequences"), given.memory_mb)
            )
    if len({tuple(run.pop("found")) for each in runs.values() for run in each}) > 1:
        raise SystemExit("the two disagree about the number of records or of distinct sequences")
    medians = {
        name: {measure: statistics.median(run[measure] for run in each) for measure in each[0]}
        for name, each in runs.items()
    }
    ratios = {
        measure: medians["deduplicate"][measure] / medians["bare pass"][measure]
        for measure in ("seconds", "cpu_seconds")
    }
    print(
        f"{count:,} records, {size / 1e6:,.0f} MB, load {os.getloadavg()[0]:.1f} on "
        f"{os.cpu_count()} cores"
    )
    for name, each in medians.items():
        print(
            f"{name:12} {each['seconds']:7.2f} s  {each['cpu_seconds']:7.2f} s CPU  "
            f"{each['peak_mb']:6.0f} MB peak"
            f"  {size / 1e6 / each['seconds']:6.0f} MB/s"
        )
    print(f"ratio        {ratios['seconds']:7.2f}    {ratios['cpu_seconds']:7.2f}")
    result = {
        "records": count, "bytes": size, "medians": medians, "ratios": ratios, "runs": runs,
        "load": os.getloadavg()[0], "cores": os.cpu_count(), "machine": platform.platform(),
        "memory_mb": given.memory_mb, "date": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip
    (FOLDER / "results").mkdir(exist_ok=True)
    out = FOLDER / "results" / f"deduplicate_{count}.json"
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
