"""A real campaign of thirty short proteins, step by step, as the Snakefile runs it but without the
start of a process.

Each command runs in a fork of this process, which has loaded the package already: a hundredth of
the usual time, and nothing that one command does to itself reaches the next. `make_stages` leaves a
copy of the campaign after each step.
"""

import bz2
import gzip
import hashlib
import importlib
import json
import logging
import lzma
import multiprocessing
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from backports import zstd

import plm_embed
from plm_embed.cli import main as cli
from plm_embed.errors import PlmEmbedError
from plm_embed.models.registry import MODELS
from support.checkpoints import random_state, write_fair_esm
from support.jobs import ForkedWorkers
from support.tiny_steps import BUCKETS, INPUTS, MODEL, OUTPUTS, VECTORS, commands

FORK = multiprocessing.get_context("fork")
SECONDS = 120
"""After which a command hangs; the longest takes one."""


def run_step(folder: Path, step: str, *, missing_only: bool = False) -> tuple[int, str]:
    """Run a rule's jobs until one fails; exit status and what the last of them printed.

    missing_only: of embed, the jobs whose output is missing, as where no step before it has run.
    """
    jobs = commands(step)
    if missing_only := missing_only and step == "embed":
        jobs = [
            job
            for job, path in zip(jobs, OUTPUTS[step], strict=True)
            if not (folder / path).exists()
        ]
    for path in () if missing_only else OUTPUTS[step]:
        if (folder / path).is_dir():
            shutil.rmtree(folder / path)
        (folder / path).unlink(missing_ok=True)
    status, words = 0, ""
    for command in jobs:
        status, words = run_command(folder, command)
        if status:
            break
    return status, words


def run_command(folder: Path, command: list[str]) -> tuple[int, str]:
    """Run `plm-embed` with these arguments in `folder`; exit status (None after SECONDS: -99) and
    what it printed.
    """

    def main() -> None:
        sys.argv = ["plm-embed", *command]
        cli.main()

    return forked(folder, main)


def forked(folder: Path, function: Callable[[], object]) -> tuple[int, str]:
    """Run a function in a fork, in `folder`; its exit status (-99 when it hangs) and what it
    printed.
    """
    log = folder / "log"
    process = FORK.Process(target=_child, args=(folder, log, function))
    process.start()
    process.join(SECONDS)
    hangs = process.is_alive()
    if hangs:
        process.kill()
        process.join()
    words = log.read_text(encoding="utf-8", errors="replace")
    return -99 if hangs else int(process.exitcode or 0), words


def _child(folder: Path, log: Path, function: Callable[[], object]) -> None:
    from plm_embed.jobs import process

    process.CONTEXT = ForkedWorkers()
    logging.root.handlers.clear()
    sys.stdout = sys.stderr = log.open("w", encoding="utf-8", buffering=1)
    os.dup2(sys.stdout.fileno(), 1)
    os.dup2(sys.stdout.fileno(), 2)
    os.chdir(folder)
    # a fork has no threads: where tests before it had some, torch would wait for them for ever
    torch.set_num_threads(1)
    try:
        function()
    except PlmEmbedError as error:  # of a function that is no command
        sys.exit(f"plm-embed: error: {error}")


def load_package() -> None:
    """Import what all commands need, so that the forks have it; it starts no thread."""
    for name in (
        "jobs.job",
        "jobs.worker",
        "master.gather",
        "master.validate",
        "inference.reference",
        "reporting.report",
    ):
        importlib.import_module(f"plm_embed.{name}")


def make_inputs(
    folder: Path, seed: int, letters: str = "ACDEFGHIKLMNPQRSTVWYX", longest: int = 60
) -> None:
    """Five files of six records, of which some repeat; all but Parquet of two streams one after the
    other.
    """
    chance = random.Random(seed)
    proteins = ["".join(chance.choices(letters, k=chance.randint(8, longest))) for _ in range(24)]
    records = [(f"p{at}", proteins[at % 24]) for at in range(30)]
    records[7] = ("p7", "MKV1")  # skipped: unknown residue
    halves = [
        "".join(
            f">{name} protein\n{residues}\n" for name, residues in records[start : start + 3]
        ).encode()
        for start in range(0, 24, 3)
    ]
    zstd_options = {zstd.CompressionParameter.checksum_flag: 1}
    packers: tuple[Callable[[bytes], bytes], ...] = (
        lambda text: gzip.compress(text, mtime=0),
        bz2.compress,
        lzma.compress,
        lambda text: zstd.compress(text, options=zstd_options),
    )
    (folder / "inputs").mkdir(parents=True)
    for path, pack, first, second in zip(INPUTS, packers, halves[::2], halves[1::2], strict=False):
        (folder / path).write_bytes(pack(first) + pack(second))
    table = {
        "id": [name for name, _ in records[24:]],
        "sequence": [residues for _, residues in records[24:]],
    }
    pq.write_table(pa.table(table), folder / INPUTS[-1], write_page_checksum=True, row_group_size=3)


def write_config(folder: Path) -> None:
    config = {
        "inputs": list(INPUTS),
        "model": MODEL,
        "weights": "model.pt",
        "buckets": len(BUCKETS),
    }
    config |= {"validate": {"spot_checks": 2}}
    (folder / "config").mkdir()
    (folder / "config" / "config.yaml").write_text(yaml.safe_dump(config))


def make_gathered(folder: Path) -> None:
    """Such a campaign up to its master."""
    begin(folder, 1)
    for step in ("weights", "deduplicate", "embed", "gather"):
        _succeed(folder, run_step(folder, step))


def begin(folder: Path, seed: int) -> None:
    """Make inputs, checkpoint and configuration."""
    load_package()
    make_inputs(folder, seed)
    write_config(folder)
    write_fair_esm(folder / "model.pt", MODELS[MODEL], random_state(MODELS[MODEL], seed))
    (folder / "model-contact-regression.pt").unlink()


def _succeed(folder: Path, outcome: tuple[int, str]) -> None:
    status, words = outcome
    if status:
        raise RuntimeError(f"{folder}: exit status {status}\n{words}")


def half_embedded(folder: Path) -> None:
    """Leave a campaign as if embed had been killed: one record of three, half of the parts."""
    for name in BUCKETS[1:]:
        (folder / VECTORS / "embedded" / f"{name}.json").unlink()
    for part in sorted((folder / VECTORS / "store").glob("*/parts/*.h5"))[::2]:
        named = (folder / VECTORS / "embedded" / f"{BUCKETS[0]}.json").read_text()
        if part.name not in named:
            part.unlink()


def read_as_users_do(folder: Path) -> tuple[int, str]:
    """Open the results, look vectors up, export them: exit status, and digests of what was read or
    the error.
    """
    return forked(folder, lambda: print(json.dumps(_read_as_users_do(Path()))))


def _read_as_users_do(folder: Path) -> dict[str, str]:
    found = {}
    with plm_embed.open(folder / VECTORS) as embeddings:
        names = [f"p{at}" for at in range(30) if at != 7]
        found["get"] = digest(embeddings.get(names))
        found["by_key"] = digest(embeddings.by_key([key.decode() for key in embeddings.keys]))
        found["to_numpy"] = digest(embeddings.to_numpy())
        found["lengths"] = digest(embeddings.lengths)
        found["to_pandas"] = hashlib.sha256(embeddings.to_pandas().to_csv().encode()).hexdigest()
    return found


def digest(values: Any) -> str:
    """Return the digest of an array: its numbers, dtype and shape."""
    head = f"{values.dtype} {values.shape} ".encode()
    return hashlib.sha256(head + np.ascontiguousarray(values).tobytes()).hexdigest()
