"""The gather job, and its vectors without index and records, against `cp` of the same bytes and
`sync`, in turns.

    python benchmarks/gather.py --full --json benchmarks/results/gather.json

Makes a campaign of made-up vectors (float16, 1,280 numbers each) with several interleaved parts per
bucket, as an embed job leaves them that publishes every five minutes. Default: 200,000 rows;
--full: 1,200,000 rows, 3 GB, for which 10 GB of disk are needed.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from subprocess import PIPE
from typing import Any, NamedTuple

import h5py
import numpy as np
import pyarrow as pa

from plm_embed.fingerprint import Fingerprint, LongSequences
from plm_embed.io.files import sha256_file
from plm_embed.io.json_files import write_sealed
from plm_embed.io.parquet import row_group_writer
from plm_embed.jobs.completion_record import Completion, WorkerInfo
from plm_embed.keys import bucket_bounds, bucket_names, keys_sha256
from plm_embed.sequences.deduplicate import records_schema
from plm_embed.sequences.summary import SUMMARY, InputFile, Summary
from plm_embed.store.parts import PartRows, write_part
from plm_embed.store.store import Store

DIM = 1280
FINGERPRINT = Fingerprint(
    "esm2_t33_650M_UR50D", "0" * 64, (33,), ("mean",), LongSequences(), "float32", "float16", "x"
)
PROGRAM = """
import json, sys, time
from pathlib import Path
from plm_embed import startup
startup.set_up("gather")
sys.meta_path.insert(0, startup.NoPandas())
{imports}
paths = [Path(word) for word in sys.argv[1:]]
began = time.perf_counter()
{step}
seconds = time.perf_counter() - began
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
print(json.dumps([seconds, time.process_time(), int(peak) * 1.024e-3]))
"""
GATHER = PROGRAM.format(
    imports="from plm_embed.master.gather import gather",
    step="gather(*paths, {'workflow_commit': ''})",
)
VECTORS = PROGRAM.format(
    imports="""
from plm_embed.io.files import atomic_path
from plm_embed.master.campaign import pieces, read_campaign
from plm_embed.master.gather import create_master, write_pieces
from plm_embed.store.hdf5 import connect""",
    step="""
campaign = read_campaign(*paths[:3])
with atomic_path(paths[3]) as path, connect(path, "w") as file:
    create_master(file, campaign)
    write_pieces(path, file, pieces(map(campaign.bucket, campaign.rows), campaign.parts_folder))""",
)


class Round(NamedTuple):
    cp_seconds: float
    vectors_seconds: float
    gather_seconds: float
    cpu_seconds: float
    peak_mb: float


def make_campaign(folder: Path, rows: int, buckets: int, parts: int, repeats: int) -> None:
    """Sequences, a store and completion records of `rows` keys; every key answers for `repeats`
    records on average.
    """
    keys = np.sort(
        np.array([hashlib.sha256(b"%d" % i).hexdigest() for i in range(rows)], dtype="S64")
    )
    random = np.random.default_rng(0)
    length = random.integers(100, 1000, rows, dtype=np.int32)
    store = Store(folder / "store", FINGERPRINT)
    edges = np.searchsorted(
        keys.astype("S16"), [b"%016x" % min(at, 2**64 - 1) for at in bucket_bounds(buckets)]
    )
    edges[-1] = rows
    for name in ("sequences/buckets", "sequences/members", "embedded"):
        (folder / name).mkdir(parents=True)
    records = 0
    tables = []
    for number, bucket in enumerate(bucket_names(buckets)):
        inside = slice(edges[number], edges[number + 1])
        mine, lengths = keys[inside], length[inside]
        infos = []
        for part in np.array_split(random.permutation(len(mine)), parts):
            vectors = random.standard_normal((len(part), DIM), dtype=np.float32)
            once = PartRows(
                mine[part], lengths[part], np.ones(len(part), dtype=np.int32), {"mean_l33": vectors}
            )
            write_part(folder / "part.h5", once, FINGERPRINT, {"device": "CPU"})
            infos.append(store.publish(folder / "part.h5"))
        text = pa.array(mine.astype(str))
        columns = {"key": text, "length": pa.array(lengths)}
        write_table(folder / f"sequences/buckets/{bucket}.parquet", pa.table(columns))
        counts = (
            random.multinomial(len(mine) * repeats // 100, np.full(len(mine), 1 / len(mine))) + 1
        )
        at = np.repeat(np.arange(len(mine)), counts)
        numbers = np.arange(records + 1, records + len(at) + 1)
        records += len(at)
        members = {
            "key": text.take(pa.array(at)),
            "id": pa.array([f"protein_{n}" for n in numbers]),
            "source": pa.repeat("proteins.fasta", len(at)),
            "number": pa.array(numbers),
            "events": pa.repeat("", len(at)),
            "length": pa.array(lengths[at]),
        }
        write_table(folder / f"sequences/members/{bucket}.parquet", pa.table(members))
        none = pa.nulls(len(at), pa.string())
        more = {"header": members["id"], "status": pa.repeat("accepted", len(at))}
        tables.append(pa.table(members | more | {"reason": none, "detail": none}))
        record = Completion(
            bucket=bucket,
            unique=len(mine),
            keys_sha256=keys_sha256(mine),
            fingerprint=FINGERPRINT,
            fingerprint_id=FINGERPRINT.id,
            parts=tuple(infos),
            skipped=(),
            found=0,
            self_test=None,
            worker=WorkerInfo(host="", pid=0, device="CPU"),
            versions={},
            seconds=0.0,
            started="",
            ended="",
        )
        write_sealed(folder / f"embedded/{bucket}.json", record)
    order = records_schema([]).names
    write_table(folder / "sequences/records.parquet", pa.concat_tables(tables).select(order))
    written = (folder / "sequences").rglob("*.parquet")
    files = {str(path.relative_to(folder / "sequences")): sha256_file(path) for path in written}
    summary = Summary(
        buckets=buckets,
        keep=(),
        records=records,
        accepted=records,
        skipped=Counter(),
        events=Counter(),
        unique=rows,
        residues=0,
        lengths=Counter(),
        inputs=(InputFile("proteins.fasta", "fasta", "none", 1, "", records),),
        warnings=(),
        files=files,
    )
    write_sealed(folder / "sequences" / SUMMARY, summary)
    (folder / "part.h5").unlink()


def forget(folder: Path) -> None:
    """Have the system forget the campaign's files, which other nodes write in a real one; the first
    run reads them.
    """
    for path in filter(Path.is_file, folder.rglob("*")):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def write_table(path: Path, table: pa.Table) -> None:
    """As deduplicate writes it."""
    with row_group_writer(path, table.schema) as writer:
        for batch in table.combine_chunks().to_batches():
            writer.write(batch)


def run_gather(folder: Path, program: str = GATHER) -> tuple[float, float, float]:
    """Seconds that gather took, synced, without the start of Python; its CPU seconds; and its peak
    memory in MB.
    """
    paths = ["sequences", "embedded", "store", "master.h5", "master.parquet", "records.parquet"]
    command = [sys.executable, "-c", program, *(str(folder / name) for name in paths)]
    for name in paths[3:]:  # as is done with the copy
        (folder / name).unlink(missing_ok=True)
    seconds, cpu, peak = json.loads(subprocess.run(command, stdout=PIPE, check=True).stdout)
    return seconds, cpu, peak


def run_cp(folder: Path) -> float:
    """Seconds for cp of the master and a sync of the copy."""
    copy = folder / "copy.h5"
    copy.unlink(missing_ok=True)
    began = time.perf_counter()
    subprocess.run(["cp", str(folder / "master.h5"), str(copy)], check=True)
    subprocess.run(["sync", str(copy)], check=True)
    return time.perf_counter() - began


def check(folder: Path) -> None:
    """Some rows of the master are those of the parts."""
    stored = {}
    for path in sorted(folder.glob("store/*/parts/*.h5"))[:3]:
        with h5py.File(path) as file:
            stored |= zip(
                file["emb_keys"][:50].tolist(), file["representations/mean_l33"][:50], strict=True
            )
    with h5py.File(folder / "master.h5") as file:
        rows = np.searchsorted(file["emb_keys"][...], sorted(stored))
        assert (file["emb"][rows] == np.stack([stored[key] for key in sorted(stored)])).all()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--full", action="store_true", help="1,200,000 rows")
    parser.add_argument("--buckets", type=int, default=16)
    parser.add_argument("--parts", type=int, default=6, help="interleaved parts per bucket")
    parser.add_argument(
        "--repeats", type=int, default=67, help="repeated records per 100 distinct ones"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = 1_200_000 if options.full else options.rows
    folder = Path(tempfile.mkdtemp(prefix="gather-", dir=options.folder))
    try:
        make_campaign(folder, rows, options.buckets, options.parts, options.repeats)
        os.sync()
        forget(folder)
        run_gather(folder)  # the first run also warms the caches
        check(folder)
        size = (folder / "master.h5").stat().st_size
        rounds = []
        for _ in range(options.rounds):
            copied = run_cp(folder)
            vectors, _, _ = run_gather(folder, VECTORS)
            gathered, cpu, peak = run_gather(folder)
            rounds.append(Round(copied, vectors, gathered, cpu, peak))
            print(
                f"cp + sync {size / copied / 1e6:6.0f} MB/s   vectors alone "
                f"{size / vectors / 1e6:6.0f} MB/s   "
                f"gather {size / gathered / 1e6:6.0f} MB/s ({cpu:.1f} s CPU)   {peak:.0f} MB"
            )
    finally:
        shutil.rmtree(folder)
    cp, vectors, ours, _, _ = map(statistics.median, zip(*rounds, strict=True))
    result: dict[str, Any] = {
        "rows": rows,
        "bytes": size,
        "buckets": options.buckets,
        "parts_per_bucket": options.parts,
        "rounds": [each._asdict() for each in rounds],
        "cp_mb_per_s": round(size / cp / 1e6),
        "gather_mb_per_s": round(size / ours / 1e6),
        "ratio": round(cp / ours, 2),
        "vectors_ratio": round(cp / vectors, 2),
        "peak_mb": round(max(each.peak_mb for each in rounds)),
        "machine": {"system": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg()},
    }
    print(
        f"median: gather at {result['ratio']} x the rate of cp + sync, its vectors alone at "
        f"{result['vectors_ratio']} x; peak {result['peak_mb']} MB"
    )
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
