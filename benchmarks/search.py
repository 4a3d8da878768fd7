"""Nearest neighbors against NumPy's brute force and a flat index of FAISS.

    PYTHONPATH=workflow/src python benchmarks/search.py --rows 100000 --output FILE.json

The vectors are float16 (n, 1280) around n/50 centers, as families lie; 100 queries are vectors of
the same kind that are not among them. Each way runs in a process of its own, in turns: from the
file, which the system has in its cache, to the rows of the 10 nearest by cosine. NumPy and FAISS
hold all vectors as float32; their time to load is given apart. The memory's bandwidth is that of
two threads that read 1 GB each; of what plm-embed reaches each stored byte counts once.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import plm_embed
from plm_embed.fingerprint import Fingerprint, LongSequences
from plm_embed.io.json_files import write_json
from plm_embed.store import checksums
from plm_embed.store.hdf5 import connect, create_dataset, write_bits
from plm_embed.store.parts import create_datasets

DIM, QUERIES, TOP, THREADS = 1280, 100, 10, 2
FINGERPRINT = Fingerprint(
    "esm2_t33_650M_UR50D", "0" * 64, (33,), ("mean",), LongSequences(), "float32", "float16", "x"
)
WAYS = ("plm-embed", "numpy", "faiss flat")


def write_master(path: Path, rows: int) -> None:
    random = np.random.default_rng(1)
    keys = np.sort(
        np.array([hashlib.sha256(b"%d" % row).hexdigest() for row in range(rows)], dtype="S64")
    )
    centers = random.normal(size=(max(rows // 50, 1), DIM)).astype(np.float32)

    def vectors(count: int) -> np.ndarray:
        noise = random.standard_normal((count, DIM), dtype=np.float32)
        return (centers[random.integers(0, len(centers), count)] + 0.7 * noise).astype(np.float16)

    with connect(path, "w") as file:
        create_datasets(file, FINGERPRINT, rows)
        file["emb_keys"][...] = keys
        file["length"][...] = 100
        group = file.create_group("representations")
        dataset = create_dataset(group, "mean_l33", (rows, DIM), "float16")
        file["emb"] = dataset
        checksums.write(file, "emb_keys", 0, checksums.of_rows(keys))
        for start in range(0, rows, 1 << 14):
            block = vectors(min(1 << 14, rows - start)).view("<u2")
            write_bits(dataset, start, block)
            checksums.write(file, "mean_l33", start, checksums.of_rows(block))
        file.attrs["fingerprint"] = FINGERPRINT.to_json()
        file.attrs["fingerprint_id"] = FINGERPRINT.id
    lines = {
        "id": [f"p{row}" for row in range(rows)],
        "cache_key": keys.astype(str),
        "row": np.arange(rows),
    }
    pq.write_table(pa.table(lines), path.with_suffix(".parquet"))
    np.save(path.with_suffix(".npy"), vectors(QUERIES).astype(np.float32))


def one(way: str, path: Path) -> dict[str, object]:
    """Seconds to load and to search, those of processors, peak memory in MB, and the rows found."""
    queries = np.load(path.with_suffix(".npy"))
    with plm_embed.open(path) as embeddings:
        began, of_processors = time.perf_counter(), time.process_time()
        if way == "plm-embed":
            loaded = began
            found = embeddings.nearest(vectors=queries, k=TOP, threads=THREADS)
            rows = found["row"].to_numpy().reshape(QUERIES, TOP)
        else:
            everything = embeddings.to_numpy().astype(np.float32)
            everything /= np.linalg.norm(everything, axis=1, keepdims=True)
            if way == "faiss flat":
                import faiss

                flat = faiss.IndexFlatIP(DIM)
                flat.add(everything)
                loaded, of_processors = time.perf_counter(), time.process_time()
                rows = flat.search(queries, TOP)[1]
            else:
                loaded, of_processors = time.perf_counter(), time.process_time()
                scores = queries @ everything.T
                best = np.argpartition(-scores, TOP, axis=1)[:, :TOP]
                order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1)
                rows = np.take_along_axis(best, order, axis=1)
        ended, of_processors = time.perf_counter(), time.process_time() - of_processors
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (peak,) = [int(line.split()[1]) for line in status if line.startswith("VmHWM")]
    return {
        "loading_s": loaded - began,
        "searching_s": ended - loaded,
        "searching_processor_s": of_processors,
        "peak_mb": peak * 1.024e-3,
        "rows": rows.tolist(),
    }


def bandwidth() -> float:
    """GB/s that two threads read from memory, at best of five tries."""
    pages = np.ones((2, 1 << 27), np.uint64)
    tries = []
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            began = time.perf_counter()
            list(pool.map(np.max, pages))
            tries.append(time.perf_counter() - began)
    return pages.nbytes / min(tries) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--master", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        print(json.dumps(one(given.way, given.master)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "master_esm2_embeddings.h5")
        write_master(path, given.rows)
        runs: dict[str, list[dict[str, object]]] = {way: [] for way in WAYS}
        for _ in range(given.runs):
            for way in WAYS:
                command = [sys.executable, __file__, "--way", way, "--master", str(path)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                runs[way].append(json.loads(done.stdout))
    true = np.array(runs["numpy"][0]["rows"])
    result: dict[str, object] = {
        "rows": given.rows, "runs": given.runs, "load": os.getloadavg()[0], "threads": THREADS,
    }  # fmt: skip
    for way, found in runs.items():
        same = [
            len(set(mine) & set(theirs)) / TOP
            for mine, theirs in zip(found[0]["rows"], true, strict=True)  # type: ignore[call-overload]
        ]
        result[way] = {
            name: statistics.median(float(run[name]) for run in found)  # type: ignore[arg-type]
            for name in ("loading_s", "searching_s", "searching_processor_s", "peak_mb")
        } | {"same_neighbors": statistics.mean(same)}
    memory = bandwidth()
    searching = statistics.median(float(run["searching_s"]) for run in runs["plm-embed"])  # type: ignore[arg-type]
    result |= {
        "memory_gb_per_s": memory,
        "share_of_memory": given.rows * DIM * 2 / 1e9 / searching / memory,
    }
    print(json.dumps(result, indent=1))
    if given.output:
        write_json(given.output, result)


if __name__ == "__main__":
    main()
