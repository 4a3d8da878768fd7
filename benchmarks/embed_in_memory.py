"""`plm_embed.embed` against the embed job, on the same proteins with random weights, in turns.

    PYTHONPATH=workflow/src python benchmarks/embed_in_memory.py --sequences 1000

Each way runs in a process of its own. Seconds are of the work without loading: for the job what its
completion record says, for `embed` the time of the call on a model that is loaded. The vectors are
compared bit by bit.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from random_weights import write_checkpoint

import plm_embed
from plm_embed.inference.prepare_weights import prepare
from plm_embed.io.files import write_json
from plm_embed.jobs.completion_record import read_completion
from plm_embed.keys import key
from plm_embed.models.registry import find_model


def proteins(count: int) -> dict[str, str]:
    """Random residues; the lengths spread as those of UniProt do."""
    random = np.random.default_rng(1)
    lengths = np.clip(random.lognormal(5.6, 0.6, count), 30, 1022).astype(int)
    letters = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
    return {
        f"p{number}": "".join(random.choice(letters, length))
        for number, length in enumerate(lengths)
    }


def in_memory(folder: Path) -> float:
    """Seconds of one call."""
    records = json.loads((folder / "proteins.json").read_text(encoding="utf-8"))
    with plm_embed.load((folder / "model").read_text(), weights=folder / "weights", threads=1) as m:
        began = time.perf_counter()
        vectors = m.embed(records, bar=False)
        seconds = time.perf_counter() - began
    np.save(folder / "vectors.npy", vectors)
    return seconds


def job(folder: Path, turn: int) -> float:
    """Seconds of one embed job on one bucket."""
    places = [
        *("--weights", folder / "weights", "--store", folder / f"store{turn}"),
        *("--embedded", folder / f"embedded{turn}", "--output", folder / f"done{turn}.json"),
    ]
    program = [
        sys.executable,
        "-m",
        "plm_embed",
        "embed",
        folder / "sequences/buckets/0000.parquet",
    ]
    settings = ["--threads", "1", "--storage-dtype", "float32", "--device", "cpu"]
    subprocess.run(list(map(str, [*program, *places, *settings])), check=True, capture_output=True)
    record = read_completion(folder / f"embedded{turn}" / "0000.json")
    return record.seconds - record.loading_seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="esm2_8M")
    parser.add_argument("--sequences", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder:
        print(in_memory(given.folder))
        return
    with tempfile.TemporaryDirectory() as name:
        folder, model = Path(name), find_model(given.model)
        prepare(model, write_checkpoint(folder / "weights.pt", model), folder / "weights")
        records = proteins(given.sequences)
        (folder / "model").write_text(model.name)
        (folder / "proteins.json").write_text(json.dumps(records))
        fasta = "".join(f">{id}\n{sequence}\n" for id, sequence in records.items())
        (folder / "proteins.fasta").write_text(fasta)
        command = [sys.executable, "-m", "plm_embed", "deduplicate", folder / "proteins.fasta"]
        command += ["--output", folder / "sequences", "--buckets", "1"]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
        memory, jobs = [], []
        for turn in range(given.runs):
            child = [sys.executable, __file__, "--folder", str(folder)]
            done = subprocess.run(child, check=True, capture_output=True, text=True)
            memory.append(float(done.stdout))
            jobs.append(job(folder, turn))
        with plm_embed.open(folder / "store0") as store:
            theirs = store.by_key([key(sequence) for sequence in records.values()])
        equal = bool((np.load(folder / "vectors.npy") == theirs).all())
    result = {
        "model": given.model, "sequences": given.sequences, "runs": given.runs,
        "residues": sum(map(len, records.values())), "load": os.getloadavg()[0],
        "embed_s": statistics.median(memory), "job_s": statistics.median(jobs),
        "ratio": statistics.median(a / b for a, b in zip(memory, jobs, strict=True)),
        "all_bits_equal": equal,
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    if given.output:
        write_json(given.output, result)


if __name__ == "__main__":
    main()
