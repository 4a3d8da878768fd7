"""Deduplicate against a bare pass: pyfastx, SHA-256 and a set of digests, in turns in one run.

    python benchmarks/deduplicate.py            # 200,000 records
    python benchmarks/deduplicate.py --full     # 2,000,000 records, 1 GB of FASTA
    python benchmarks/deduplicate.py --records 20000000 --rounds 1 --formats fasta

The bare pass only counts distinct sequences. Deduplicate also accounts for every record, sorts,
writes records.parquet and two files for each of 64 buckets. The records look like influenza's: its
proteins' lengths, 40 % exact repeats. Tables hold the same records, with two columns to keep in
place of the header; `quoted` is CSV with each cell in quotes, as R writes it. All formats must give
the same buckets, to the byte. Needs pyfastx (pip install pyfastx==2.3.1).
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

# PB2 PB1 PA HA NP NA M1 NS1 NEP M2 PB1-F2
LENGTHS = (759, 757, 716, 566, 498, 470, 252, 230, 121, 97, 90)
WIDTH = 80
FORMATS = ["fasta", "csv", "quoted", "parquet"]
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
from plm_embed.cli.main import main
path, output, memory = sys.argv[1:]
table = "{}" if path.endswith(".fasta") else '{"keep": ["strain", "segment"]}'
sys.argv[1:] = ["deduplicate", path, "--output", output, "--buckets", "64",
                "--memory-mb", memory, "--tables", f"[{table}]"]
main()
from plm_embed.sequences.summary import read_summary  # loads what the step sets up first
summary = read_summary(Path(output))
print(summary.records, summary.unique)
"""


def records(count: int) -> Iterator[pa.Table]:
    """`count` records, 60 % of them distinct, in random order: id, strain, segment, sequence."""
    random = np.random.default_rng(5)
    pool = LETTERS[random.integers(0, 20, 50_000_000)].tobytes().decode()
    distinct = count * 6 // 10
    starts = random.integers(0, len(pool) - 1000, distinct)
    lengths = random.choice(LENGTHS, distinct)
    chosen = np.concatenate([np.arange(distinct), random.integers(0, distinct, count - distinct)])
    random.shuffle(chosen)
    for first in range(0, count, 1 << 16):
        part = chosen[first : first + (1 << 16)]
        texts = [
            pool[start : start + length]
            for start, length in zip(starts[part].tolist(), lengths[part].tolist(), strict=True)
        ]
        columns = {
            "id": [f"gb|ABC{number:08d}" for number in range(first, first + len(part))],
            "strain": [f"A/mallard/{each % 9973}/2015(H1N1)" for each in part.tolist()],
            "segment": [f"segment {1 + each % 8}" for each in part.tolist()],
            "sequence": texts,
        }
        yield pa.table(columns)


def write_inputs(folder: Path, formats: list[str], count: int) -> dict[str, Path]:
    """The same records in each of the formats; FASTA has 80 residues a line."""
    paths = {name: folder / f"records.{name}" for name in formats}
    schema = pa.schema([(name, pa.string()) for name in ("id", "strain", "segment", "sequence")])
    plain, quoted = (pa.csv.WriteOptions(quoting_style=style) for style in ("none", "all_valid"))
    writers: dict[str, Any] = {
        "fasta": lambda path: path.open("w"),
        "csv": lambda path: pa.csv.CSVWriter(path, schema, write_options=plain),
        "quoted": lambda path: pa.csv.CSVWriter(path, schema, write_options=quoted),
        "parquet": lambda path: pq.ParquetWriter(path, schema),
    }
    files = {name: writers[name](path) for name, path in paths.items()}
    for part in records(count):
        for name, file in files.items():
            if name == "fasta":
                file.writelines(
                    map(_fasta, *(part[column].to_pylist() for column in part.schema.names))
                )
            else:
                file.write_table(part)
    for file in files.values():
        file.close()
    return paths


def _fasta(id: str, strain: str, segment: str, sequence: str) -> str:
    lines = "\n".join(sequence[at : at + WIDTH] for at in range(0, len(sequence), WIDTH))
    return f">{id}|Influenza A virus ({strain}) {segment}\n{lines}\n"


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


def buckets(output: Path) -> str:
    """Digest that tells one set of buckets from another."""
    files = json.loads((output / "summary.json").read_text())["files"]
    return str(sorted(item for item in files.items() if item[0].startswith("buckets/")))


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--records", type=int, default=200_000)
    options.add_argument("--full", action="store_true", help="2,000,000 records")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--memory-mb", type=int, default=1000)
    options.add_argument("--folder", type=Path, help="for the temporary files")
    options.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS)
    given = options.parse_args()
    count = 2_000_000 if given.full else given.records
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ("bare pass", *given.formats)}
    made = set()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        paths = write_inputs(Path(folder), list(dict.fromkeys(["fasta", *given.formats])), count)
        sizes = {name: path.stat().st_size for name, path in paths.items()}
        for _ in range(given.rounds):
            runs["bare pass"].append(measure(BARE, paths["fasta"]))
            for name in given.formats:
                output = Path(folder, "sequences")
                shutil.rmtree(output, ignore_errors=True)  # to replace files takes time, too
                runs[name].append(measure(OURS, paths[name], output, given.memory_mb))
                made.add(buckets(output))
    if len({tuple(run.pop("found")) for each in runs.values() for run in each}) > 1:
        raise SystemExit("the runs disagree about the number of records or of distinct sequences")
    if len(made) > 1:
        raise SystemExit("the formats give different buckets")
    medians = {
        name: {measure: statistics.median(run[measure] for run in each) for measure in each[0]}
        for name, each in runs.items()
    }
    ratios = {
        f"{name} to {base}": {
            measure: medians[name][measure] / medians[base][measure]
            for measure in ("seconds", "cpu_seconds")
        }
        for name in given.formats
        for base in ("bare pass", "fasta")
        if base in medians and name != base
    }
    print(f"{count:,} records, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, each in medians.items():
        size = sizes["fasta" if name == "bare pass" else name] / 1e6
        print(
            f"{name:10} {size:6,.0f} MB  {each['seconds']:7.2f} s  {each['cpu_seconds']:7.2f} s CPU"
            f"  {each['peak_mb']:6.0f} MB peak  {size / each['seconds']:6.0f} MB/s"
        )
    for name, ratio in ratios.items():
        print(f"{name:21} {ratio['seconds']:6.2f}  {ratio['cpu_seconds']:6.2f} of CPU")
    result = {
        "records": count, "bytes": sizes, "medians": medians, "ratios": ratios, "runs": runs,
        "load": os.getloadavg()[0], "cores": os.cpu_count(), "machine": platform.platform(),
        "memory_mb": given.memory_mb, "date": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip
    (FOLDER / "results").mkdir(exist_ok=True)
    out = FOLDER / "results" / f"deduplicate_{count}.json"
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
