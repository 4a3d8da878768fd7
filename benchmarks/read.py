"""Reading rows by id through `plm_embed.open`, against the chunk layout of 65,536 rows with lzf.

    python benchmarks/read.py            # 200,000 rows
    python benchmarks/read.py --full     # 1,200,000 rows and 2,000,000 records; 6 GB of disk

Both layouts hold the same float16 vectors of 1,280 numbers. Single rows and 10,000 rows at once, at
random, in turns.
"""

import argparse
import hashlib
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import plm_embed
from plm_embed.fingerprint import Fingerprint, LongSequences
from plm_embed.store import checksums
from plm_embed.store.hdf5 import connect, create_dataset, write_bits
from plm_embed.store.parts import create_datasets

DIM = 1280
FINGERPRINT = Fingerprint(
    "esm2_t33_650M_UR50D", "0" * 64, (33,), ("mean",), LongSequences(), "float32", "float16", "x"
)
RESULTS = Path(__file__).parent / "results"


def write_master(folder: Path, rows: int, records: int) -> tuple[Path, Path]:
    """A master with its index, and the other layout with the same vectors."""
    random = np.random.default_rng(1)
    master, other = folder / "master_esm2_embeddings.h5", folder / "other.h5"
    keys = np.sort(
        np.array(
            [hashlib.sha256(b"%d" % number).hexdigest() for number in range(rows)], dtype="S64"
        )
    )
    pool = random.normal(size=(8192, DIM)).astype(np.float16)
    with connect(master, "w") as file, h5py.File(other, "w") as slow:
        create_datasets(file, FINGERPRINT, rows)
        file["emb_keys"][...] = keys
        checksums.write(file, "emb_keys", 0, checksums.of_rows(keys))
        lengths = np.full(rows, 100, "<i4")
        file["length"][...] = lengths
        checksums.write(file, "length", 0, checksums.of_rows(lengths))
        dataset = create_dataset(
            file.create_group("representations"), "mean_l33", (rows, DIM), "float16"
        )
        file["emb"] = dataset
        chunks = (min(65_536, rows), DIM)
        theirs = slow.create_dataset("emb", (rows, DIM), "<f2", chunks=chunks, compression="lzf")
        for start in range(0, rows, 65_536):
            count = min(65_536, rows - start)
            block = np.concatenate([random.permutation(pool) for _ in range(8)])[:count]
            write_bits(dataset, start, block.view("<u2"))
            checksums.write(file, "mean_l33", start, checksums.of_rows(block.view("<u2")))
            theirs[start : start + count] = block
        file.attrs["fingerprint"] = FINGERPRINT.to_json()
    which = np.sort(np.concatenate([np.arange(rows), random.integers(0, rows, records - rows)]))
    columns = {
        "id": pa.array([f"ABC{number:08d}" for number in range(records)]),
        "cache_key": pa.array(keys[which].astype(str)),
        "row": pa.array(which),
    }
    pq.write_table(pa.table(columns), master.with_suffix(".parquet"))
    return master, other


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--full", action="store_true")
    options.add_argument("--folder", type=Path, help="for the temporary files")
    given = options.parse_args()
    rows, records = (1_200_000, 2_000_000) if given.full else (200_000, 330_000)
    random = np.random.default_rng(2)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        master, other = write_master(Path(folder), rows, records)
        with plm_embed.open(master) as ours, h5py.File(other) as file:
            preparing = seconds(lambda: ours.get(["ABC00000000"]))
            ids = [f"ABC{number:08d}" for number in range(records)]
            singles = random.integers(0, records, 300).tolist()
            one = [seconds(lambda number=number: ours.get([ids[number]])) for number in singles]
            keys = ours.keys[random.integers(0, rows, 300)]
            fresh = plm_embed.open(master)
            by_key = [seconds(lambda key=key: fresh.by_key([key])) for key in keys]
            fresh.close()
            many, theirs, theirs_one = [], [], []
            for _ in range(3):
                chosen = np.sort(random.choice(rows, 10_000, replace=False))
                wanted = random.choice(records, 10_000, replace=False).tolist()
                many.append(
                    seconds(lambda wanted=wanted: ours.get([ids[number] for number in wanted]))
                )
                theirs.append(seconds(lambda chosen=chosen: file["emb"][chosen]))
                theirs_one.append(seconds(lambda chosen=chosen: file["emb"][int(chosen[17])]))
    result = {
        "rows": rows,
        "records": records,
        "first_look_up_s": preparing,
        "one_row_by_id_ms": 1e3 * statistics.median(one),
        "one_row_by_key_ms": 1e3 * statistics.median(by_key),
        "one_row_65536_lzf_ms": 1e3 * statistics.median(theirs_one),
        "rows_10000_by_id_s": statistics.median(many),
        "rows_10000_65536_lzf_s": statistics.median(theirs),
        "ratio_10000": statistics.median(theirs) / statistics.median(many),
    }
    result |= {"load": os.getloadavg()[0], "cores": os.cpu_count(), "machine": platform.platform()}
    for label, value in result.items():
        print(f"{label:24} {value:,.4g}" if isinstance(value, float) else f"{label:24} {value}")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"read_{rows}.json").write_text(
        json.dumps(result, indent=2) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
