"""`plm-embed embed` as a process: its buckets, its start, and what it has published so far."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from plm_embed.jobs.completion_record import Completion, read_completion
from plm_embed.jobs.dispatch import Plan
from plm_embed.keys import key

ALPHABET = "LAGVSERTIDPKQNFYMHWCX" * 40


def write_buckets(folder: Path, *sizes: int) -> list[Path]:
    paths = []
    for number, size in enumerate(sizes):
        sequences = {ALPHABET[i % 21 :][: 200 + i % 400] + "M" * number for i in range(size)}
        rows = sorted((key(sequence), sequence) for sequence in sequences)
        columns = {"key": [row[0] for row in rows], "sequence": [row[1] for row in rows]}
        table = pa.table(columns | {"length": pa.array([len(row[1]) for row in rows], pa.int32())})
        paths.append(folder / f"{number:04d}.parquet")
        pq.write_table(table, paths[-1])
    return paths


def plan_of(folder: Path, prepared: Path, buckets: list[Path], workers: int) -> Plan:
    """A submission of these buckets, its store and records in the folder, without a time limit."""
    return Plan(tuple(buckets), prepared, folder / "store", folder, workers=workers, minutes=0)


def start(
    folder: Path, prepared: Path, buckets: list[Path], *options: str, **environment: str
) -> subprocess.Popen[str]:
    command = [
        *(
            sys.executable,
            "-m",
            "plm_embed",
            "embed",
            *map(str, buckets),
            "--weights",
            str(prepared),
        ),
        *(
            "--store",
            str(folder / "store"),
            "--embedded",
            str(folder),
            "--output",
            str(folder / "done.json"),
        ),
        *("--device", "cpu", "--scratch", "", "--toks-per-batch", "512", *options),
    ]
    return subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
        start_new_session=True,
    )


def published(folder: Path) -> int:
    return sum(int(path.stem.split("-")[2]) for path in folder.glob("store/*/parts/[0-9a-f]*.h5"))


def wait_for_parts(folder: Path, number: int = 1) -> None:
    for _ in range(12_000):
        if published(folder) >= number:
            return
        time.sleep(0.025)
    raise AssertionError("no part within 300 s")


def records(folder: Path) -> dict[str, Completion]:
    return {path.stem: read_completion(path) for path in folder.glob("0*.json")}
