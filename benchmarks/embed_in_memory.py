"""`plm_embed.embed` against the embed job and against fair-esm and transformers as their users
write it, on the same proteins with random weights, in turns.

    PYTHONPATH=workflow/src python benchmarks/embed_in_memory.py --sequences 1000

Each way runs in a process of its own, with one thread. Seconds are of the work without loading: for
the job what its completion record says, for the others the time of the call on a model that is
loaded. fair-esm runs the loop of its scripts/extract.py with that script's 4,096 tokens a batch,
transformers 8 sequences at a time as they come (peers.py). The job's vectors are compared bit by
bit, the peers' by their cosine. A peer that is not installed is left out.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import peers
import torch
from random_weights import write_checkpoint
from safetensors.torch import load_file

import plm_embed
from plm_embed.inference.weights import prepare
from plm_embed.io.files import write_json
from plm_embed.jobs.completion_record import read_completion
from plm_embed.keys import key
from plm_embed.models.registry import find_model

PEERS = {"fair-esm": "esm", "transformers": "transformers"}


def proteins(count: int) -> dict[str, str]:
    """Random residues; the lengths spread as those of UniProt do."""
    random = np.random.default_rng(1)
    lengths = np.clip(random.lognormal(5.6, 0.6, count), 30, 1022).astype(int)
    letters = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
    return {
        f"p{number}": "".join(random.choice(letters, length))
        for number, length in enumerate(lengths)
    }


def in_memory(folder: Path, way: str, name: str) -> float:
    """Seconds of one call."""
    records = json.loads((folder / "proteins.json").read_text(encoding="utf-8"))
    if way == "embed":
        with plm_embed.load(name, weights=folder / "weights", threads=1) as model:
            began = time.perf_counter()
            vectors = model.embed(records, bar=False)
            seconds = time.perf_counter() - began
    else:
        torch.set_num_threads(1)
        tensors = load_file(folder / "weights" / "model.safetensors")
        given = find_model(name), tensors, torch.device("cpu"), "float32"
        run = (
            peers.fair_esm(*given, 4096) if way == "fair-esm" else peers.hugging_face(*given, None)
        )
        began = time.perf_counter()
        vectors, _ = run(list(records.values()))
        seconds = time.perf_counter() - began
    np.save(folder / f"{way}.npy", vectors)
    return seconds


def job(folder: Path, turn: int) -> float:
    """Seconds of one embed job on one bucket."""
    places = [
        *("--weights", folder / "weights", "--store", folder / f"store{turn}"),
        *("--embedded", folder / f"embedded{turn}", "--output", folder / f"done{turn}.json"),
    ]
    bucket = folder / "sequences/buckets/0000.parquet"
    program = [sys.executable, "-m", "plm_embed", "embed", bucket]
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
    parser.add_argument("--way", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder:
        print(in_memory(given.folder, given.way, given.model))
        return
    ways = ["embed", *(way for way, package in PEERS.items() if find_spec(package))]
    with tempfile.TemporaryDirectory() as name:
        folder, model = Path(name), find_model(given.model)
        prepare(model, write_checkpoint(folder / "weights.pt", model), folder / "weights")
        records = proteins(given.sequences)
        (folder / "proteins.json").write_text(json.dumps(records))
        fasta = "".join(f">{id}\n{sequence}\n" for id, sequence in records.items())
        (folder / "proteins.fasta").write_text(fasta)
        command = [sys.executable, "-m", "plm_embed", "deduplicate", folder / "proteins.fasta"]
        command += ["--output", folder / "sequences", "--buckets", "1"]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
        seconds: dict[str, list[float]] = {way: [] for way in ["job", *ways]}
        for turn in range(given.runs):
            seconds["job"].append(job(folder, turn))
            for way in ways:
                child = [sys.executable, __file__, "--folder", str(folder)]
                child += ["--way", way, "--model", given.model]
                done = subprocess.run(child, check=True, capture_output=True, text=True)
                seconds[way].append(float(done.stdout))
        with plm_embed.open(folder / "store0") as store:
            theirs = store.by_key([key(sequence) for sequence in records.values()])
        found = {way: np.load(folder / f"{way}.npy") for way in ways}
    result = {
        "model": given.model, "sequences": given.sequences, "runs": given.runs,
        "residues": sum(map(len, records.values())), "load": os.getloadavg()[0],
        "seconds": {way: statistics.median(each) for way, each in seconds.items()},
        "of_embed's_time": {
            way: statistics.median(a / b for a, b in zip(each, seconds["embed"], strict=True))
            for way, each in seconds.items()
        },
        "job_has_equal_bits": bool((found["embed"] == theirs).all()),
        "peers_agree": {way: peers.agreement(found[way], found["embed"]) for way in ways[1:]},
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    if given.output:
        write_json(given.output, result)


if __name__ == "__main__":
    main()
