"""A campaign of 10,240 buckets and a store of 102,400 parts: processor time and peak memory of each
step that looks at all of them.

    PYTHONPATH=workflow/src python benchmarks/scale.py --output benchmarks/results/scale.json

The sequences are deduplicated, and parts, completion records, heartbeats of jobs
are written, by the package itself; the vectors are made up, two to a part. Every step is a process
of its own. Where the folder lies (--folder) decides what waiting for a disk costs; processor time
and memory hardly depend on it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np

from plm_embed.fingerprint import Fingerprint, LongSequences
from plm_embed.io.files import write_json
from plm_embed.io.parquet import read_table
from plm_embed.jobs.completion_record import Completion, WorkerInfo, write_completion
from plm_embed.jobs.heartbeat import FOLDER, WorkerBeat, new_heartbeat, write_heartbeat
from plm_embed.keys import bucket_names, key_array, keys_sha256
from plm_embed.store.parts import PartRows, write_part
from plm_embed.store.store import Store

ROOT = Path(__file__).parents[1]
DIM, ROWS = 320, 2
FINGERPRINT = Fingerprint(
    "esm2_t6_8M_UR50D", "0" * 64, (6,), ("mean",), LongSequences(), "float32", "float16", "x"
)
STARTED = datetime(2026, 1, 1, tzinfo=UTC)
OPEN = """
import sys, plm_embed
with plm_embed.open(sys.argv[1]) as store:
    print(len(store), "keys")
"""
MISSING = """
import sys
from pathlib import Path
from plm_embed.io.parquet import read_table
from plm_embed.keys import key_array
from plm_embed.store.store import Store, read_fingerprint
folder, buckets = Path(sys.argv[1]), sorted(Path(sys.argv[2]).iterdir())
store = Store(folder.parent, read_fingerprint(folder))
for bucket in buckets[:: -(-len(buckets) // 100)]:
    assert not store.missing(key_array(read_table(bucket, ["key"])["key"])).any()
"""


def measured(name: str, *command: str | Path, cwd: Path) -> dict[str, Any]:
    """Run a command; what it took, its peak memory as the kernel says it."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, cwd=cwd, stdout=said, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        said.seek(0)
        if os.waitstatus_to_exitcode(status) not in (0, 3):  # 3: watch, of an unfinished campaign
            raise SystemExit(f"{name}: {said.read().decode()[-3000:]}")
    found = {
        "seconds": round(time.monotonic() - began, 1),
        "processor_seconds": round(used.ru_utime + used.ru_stime, 2),
        "peak_mb": round(used.ru_maxrss * 1.024e-3),
    }
    print(f"{name}: {found}", flush=True)
    return found


def write_input(path: Path, count: int) -> None:
    """Random proteins of 20 to 60 residues, all different."""
    random = np.random.default_rng(5)
    letters = np.frombuffer(b"LAGVSERTIDPKQNFYMHWC", np.uint8)
    with path.open("wb") as handle:
        for number, length in enumerate(random.integers(20, 60, count)):
            residues = letters[random.integers(0, 20, length)].tobytes()
            handle.write(b">p%d\n%s\n" % (number, residues))


def finish(bucket: str, results: Path, parts: int) -> None:
    """What an embed job leaves of a bucket: parts, record, and notes of submission and attempt."""
    model = results / FINGERPRINT.model
    table = read_table(results / "sequences" / "buckets" / f"{bucket}.parquet", ["key", "length"])
    keys, length = key_array(table["key"]), table["length"].to_numpy().astype(np.int32)
    store, number = Store(model / "store", FINGERPRINT), int(bucket)
    infos = []
    with tempfile.TemporaryDirectory() as scratch:
        # as they were computed: each part has keys from everywhere in the bucket
        for rows in (np.arange(first, len(keys), parts) for first in range(min(parts, len(keys)))):
            local = Path(scratch) / "part.h5"
            vectors = np.full((len(rows), DIM), number, dtype=np.float32)
            windows = np.ones(len(rows), dtype=np.int32)
            content = PartRows(keys[rows], length[rows], windows, {"mean_l6": vectors})
            write_part(local, content, FINGERPRINT, {"device": "NVIDIA A100"})
            infos.append(store.publish(local))
    began = STARTED + timedelta(minutes=number)
    at = {"started": began.isoformat(), "ended": (began + timedelta(minutes=40)).isoformat()}
    record = Completion(
        **at,
        bucket=bucket,
        unique=len(keys),
        keys_sha256=keys_sha256(keys),
        fingerprint=FINGERPRINT,
        fingerprint_id=FINGERPRINT.id,
        parts=tuple(sorted(infos, key=lambda info: info.name)),
        skipped=(),
        found=0,
        self_test=None,
        worker=WorkerInfo(host=f"n{number % 40}", pid=1, job=bucket, device="NVIDIA A100"),
        versions={"torch": "2"},
        loading_seconds=9.0,
        seconds=2400.0,
        computed=len(keys),
        tokens=int(length.sum()),
        tokens_per_second=20_000.0,
        busy=0.98,
    )
    write_completion(model / "embedded" / f"{bucket}.json", record)
    root = model / "store"
    beat = replace(
        new_heartbeat(bucket, model / "embedded", root, 0),
        **at,
        host=f"n{number % 40}",
        job=bucket,
        workers=(WorkerBeat(pid=1, state="ended"),),
        outcome="complete",
    )
    write_heartbeat(root / FOLDER / f"{bucket}.json", beat)


def steps(folder: Path, buckets: int, parts: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The steps by name, each with what it took."""
    results, model = folder / "results", folder / "results" / FINGERPRINT.model
    sequences, store = results / "sequences", model / "store"
    config = {"inputs": ["in.fasta"], "model": "esm2_8M", "buckets": buckets, "results": "results"}
    write_json(folder / "config.yaml", config)
    write_input(folder / "in.fasta", buckets * parts * ROWS)

    def step(name: str, *command: str | Path) -> tuple[str, dict[str, Any]]:
        return name, measured(name, sys.executable, *command, cwd=folder)

    def snakemake(name: str, *options: str) -> tuple[str, dict[str, Any]]:
        words = ["-m", "snakemake", "--snakefile", str(ROOT / "workflow" / "Snakefile")]
        words += ["--configfile", "config.yaml", "--cores", "2", "--quiet", "rules", *options]
        return step(name, *words)

    def plm_embed(name: str, *words: str | Path) -> tuple[str, dict[str, Any]]:
        return step(name, "-m", "plm_embed", *words)

    yield snakemake("dry run, nothing done", "--dry-run")
    reading = ["--output", sequences, "--buckets", str(buckets), "in.fasta"]
    yield plm_embed("deduplicate", "deduplicate", *reading)
    yield snakemake("dry run, sequences split", "--dry-run")
    yield plm_embed("plan, nothing embedded", "plan", "--configfile", "config.yaml")
    with Pool() as pool:
        names = [(name, results, parts) for name in bucket_names(buckets)]
        pool.starmap(finish, names, chunksize=64)
    yield snakemake("dry run, all embedded", "--dry-run")
    yield plm_embed("plan, all embedded", "plan", "--configfile", "config.yaml")
    yield plm_embed("watch --once", "watch", "--once", "results")
    held = store / FINGERPRINT.id
    yield step("store: open, all keys", "-c", OPEN, held)
    yield step("store: missing keys of 100 buckets", "-c", MISSING, held, sequences / "buckets")
    master = model / "master_esm2_embeddings.h5"
    outputs = ["--master", master, "--index", master.with_suffix(".parquet")]
    outputs += ["--records", model / "records.parquet", "--output", model / "gathered.json"]
    places = ["--sequences", sequences, "--embedded", model / "embedded", "--store", store]
    yield plm_embed("gather", "gather", *places, *outputs)
    yield plm_embed("report", "report", model, "--configfile", "config.yaml")
    for name in ("weights.json", "checksums.sha256", "skipped.tsv", "config.yaml"):
        (model / name).touch()
    yield snakemake("touch: Snakemake's own records of all jobs", "--touch")
    yield snakemake("dry run, all done", "--dry-run")
    for name in bucket_names(buckets)[::2]:
        (model / "submissions" / f"{name}.json").unlink()
    yield snakemake("dry run, half done", "--dry-run")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--folder", type=Path, help="where the campaign is made")
    parser.add_argument("--buckets", type=int, default=10_240)
    parser.add_argument("--parts", type=int, default=10, help="of each bucket")
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory(dir=asked.folder) as temporary:
        folder, load = Path(temporary), os.getloadavg()
        found = dict(steps(folder, asked.buckets, asked.parts))
        written = [path.stat() for path in folder.rglob("*") if path.is_file()]
        result = {
            "buckets": asked.buckets,
            "parts": asked.buckets * asked.parts,
            "cpus": os.cpu_count(),
            "load": load,
            "files": len(written),
            "bytes": sum(status.st_size for status in written),
            "steps": found,
        }
    print(json.dumps(result, indent=2))
    if asked.output:
        write_json(asked.output, result)


if __name__ == "__main__":
    main()
