"""The report of a campaign of 2 million records: its size, and the time and memory it takes.

    PYTHONPATH=workflow/src python benchmarks/report.py --output benchmarks/results/report.json

Makes the files that the report reads: 2,000,000 records, 1,260,000 vectors of 320 numbers (0.8 GB),
an index with two kept columns, 2,000 skipped records, 400 completion records. The report runs in a
process of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plm_embed.fingerprint import Fingerprint, LongSequences
from plm_embed.io.json_files import write_json, write_sealed
from plm_embed.jobs.completion_record import Completion, WorkerInfo
from plm_embed.sequences.summary import SUMMARY, InputFile, Summary
from plm_embed.store.hdf5 import connect, create_dataset, write_bits

RECORDS, UNIQUE, DIM, BUCKETS = 2_000_000, 1_260_000, 320, 400
SKIPPED = 2_000
FINGERPRINT = Fingerprint(
    "esm2_t6_8M_UR50D", "0" * 64, (6,), ("mean",), LongSequences(), "float32", "float16", "x"
)
RUN = """
import resource, sys
from pathlib import Path
from plm_embed.reporting.facts import collect
from plm_embed.reporting.report import write_report
from plm_embed.reporting.outputs import write_skipped
facts = collect(Path(sys.argv[1]))
write_skipped(facts.folder / "records.parquet", facts.folder / "skipped.tsv")
write_report(facts, facts.results / "report.html")
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


def make(results: Path) -> None:
    """The results folder."""
    random = np.random.default_rng(3)
    model = results / FINGERPRINT.model
    (model / "embedded").mkdir(parents=True)
    keys = np.char.mod("%016x", np.sort(random.integers(0, 2**63, UNIQUE))).astype("S64")
    keys = np.char.add(keys, b"0" * 48).astype("S64")
    lengths = random.lognormal(5.8, 0.6, UNIQUE).astype(np.int32) + 1
    with connect(model / "master_esm2_embeddings.h5", "w") as file:
        create_dataset(file, "emb_keys", (UNIQUE,), "S64")[...] = keys
        create_dataset(file, "length", (UNIQUE,), "<i4")[...] = lengths
        vectors = create_dataset(
            file.create_group("representations"), "mean_l6", (UNIQUE, DIM), "float16"
        )
        for start in range(0, UNIQUE, 1 << 16):
            block = random.normal(size=(min(1 << 16, UNIQUE - start), DIM)).astype(np.float16)
            write_bits(vectors, start, block.view(np.uint16))
        file["emb"] = vectors
        file.attrs["fingerprint"] = FINGERPRINT.to_json()
        file.attrs["fingerprint_id"] = FINGERPRINT.id
        file.attrs["library_versions"] = json.dumps({"torch": "2"})
        file.attrs["devices"] = ["NVIDIA A100-SXM4-40GB"]
    repeats = random.integers(0, UNIQUE, RECORDS - UNIQUE)
    rows = np.sort(np.concatenate([np.arange(UNIQUE), repeats]))
    columns = {
        "id": [f"fig|11320.{number}.peg.1" for number in range(RECORDS)],
        "cache_key": pa.array(keys[rows].tolist(), pa.binary()).cast(pa.string()),
        "row": rows,
        "length": lengths[rows],
        "source": np.full(RECORDS, "protein_final.csv"),
        "number": np.arange(1, RECORDS + 1),
        "assembly_id": [f"assembly_{number // 10}" for number in range(RECORDS)],
        "function": [f"segment {number % 11}" for number in range(RECORDS)],
    }
    pq.write_table(pa.table(columns), model / "master_esm2_embeddings.parquet")
    skipped = np.arange(RECORDS) % (RECORDS // SKIPPED) == 0
    fates = {
        "status": np.where(skipped, "skipped", "embedded"),
        "reason": pa.array(np.where(skipped, "unknown_residues", "")),
        "detail": pa.array(np.where(skipped, "J at 82", "")),
        "key": columns["cache_key"],
    }
    records = {name: columns[name] for name in ("id", "source", "number")} | fates
    pq.write_table(pa.table(records), model / "records.parquet")
    summary = Summary(
        buckets=BUCKETS,
        keep=("assembly_id", "function"),
        records=RECORDS,
        accepted=RECORDS - SKIPPED,
        skipped=Counter({"unknown_residues": SKIPPED}),
        events=Counter({"upper_cased": 5}),
        unique=UNIQUE,
        residues=int(lengths.sum()),
        lengths=Counter(lengths.tolist()),
        inputs=(InputFile("protein_final.csv", "csv", "none", 10**9, "0" * 64, RECORDS),),
        warnings=(),
        files={},
    )
    write_sealed(results / "sequences" / SUMMARY, summary)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for bucket in range(BUCKETS):
        began = start + timedelta(minutes=10 * (bucket // 40))
        record = Completion(
            bucket=f"{bucket:04d}",
            unique=3150,
            keys_sha256="",
            fingerprint=FINGERPRINT,
            fingerprint_id=FINGERPRINT.id,
            parts=(),
            skipped=(),
            found=0,
            self_test=None,
            worker=WorkerInfo(host=f"x{bucket % 10}", pid=1, device="NVIDIA A100-SXM4-40GB"),
            versions={},
            seconds=500.0,
            started=began.isoformat(),
            ended=(began + timedelta(seconds=500)).isoformat(),
            computed=3150,
            tokens=1_200_000,
            tokens_per_second=2400.0 + bucket % 40,
        )
        write_sealed(model / "embedded" / f"{bucket:04d}.json", record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        results = Path(temporary)
        make(results)
        load, began = os.getloadavg(), time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", RUN, str(results)], check=True, capture_output=True, text=True
        )
        seconds = time.monotonic() - began
        size = (results / "report.html").stat().st_size
    processor, memory = done.stdout.split()
    result = {
        "records": RECORDS,
        "load": load,
        "seconds": seconds,
        "processor_seconds": float(processor),
        "bytes": size,
        "peak_memory_bytes": 1024 * int(memory),
    }
    print(json.dumps(result, indent=2))
    if options.output:
        write_json(options.output, result)


if __name__ == "__main__":
    main()
