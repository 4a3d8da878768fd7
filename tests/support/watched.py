"""A campaign as its files tell it to the watch, and what the watch shows of it."""

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from plm_embed.io.json_files import write_sealed
from plm_embed.reporting import watch
from plm_embed.reporting.watch import Progress, view
from plm_embed.sequences.summary import SUMMARY
from support.campaigns import completion
from support.made_up_sequences import counted

MODEL = "esm2_t33_650M_UR50D"
PRODUCTS = "master_esm2_embeddings.h5", "checksums.sha256", "report.html"


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds")


def campaign(results: Path, buckets: int) -> Path:
    """Buckets of 1,000 bytes and 1,000 residues each; returns the model's folder."""
    folder = results / "sequences" / "buckets"
    folder.mkdir(parents=True)
    for number in range(buckets):
        (folder / f"{number:04d}.parquet").write_bytes(b"x" * 1000)
    write_sealed(results / "sequences" / SUMMARY, counted(buckets=buckets, residues=1000 * buckets))
    (results / MODEL / "embedded").mkdir(parents=True)
    return results / MODEL


def finish(model: Path, bucket: int, at: float = 0.0) -> Path:
    """Write the completion record of a bucket, of so many seconds from now."""
    path = model / "embedded" / f"{bucket:04d}.json"
    write_sealed(path, completion(bucket=path.stem))
    os.utime(path, (time.time() + at, time.time() + at))
    return path


def beat(
    model: Path, number: int, *, updated: float = 1.0, progressed: float = 1.0, **fields: Any
) -> Path:
    """Write the heartbeat of a job with one worker, number `number`."""
    worker = {"pid": number, "state": "computing", "device": "NVIDIA A100", "gpu": str(number % 4)}
    worker |= {"computed": 12}
    worker |= {"progressed": ago(progressed), "tokens_per_second": fields.pop("rate", 50.0)}
    note = {"bucket": f"{number:04d}", "node": 0, "host": "node1"}
    note |= {"job": "17", "started": ago(100), "updated": ago(updated), "eta_seconds": 700.0}
    note |= {"tokens": 500, "tokens_total": 1000, "workers": [worker]} | fields
    path = model / "embedded" / "jobs" / f"{number}-{note['bucket']}-node1.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(note))
    return path


def look(results: Path) -> Progress:
    (progress,) = watch.look(results).models
    return progress


def shown(results: Path, width: int = 0) -> str:
    """Return a look as a terminal of this width shows it, or `--once`; its first line is not
    wrapped, wherever the tests' folders lie.
    """
    wide = width or 140 + len(str(results))
    console = Console(width=wide, force_terminal=bool(width), color_system=None)
    with console.capture() as capture:
        console.print(view(watch.look(results)))
    return capture.get()


def written(path: Path, text: str = "", at: float = 0.0) -> Path:
    """A file of so many seconds from now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (time.time() + at, time.time() + at))
    return path


def prove(model: Path, at: float = 0.0) -> None:
    """Make the files of the steps, one second after the other, from `at` seconds on."""
    for number, name in enumerate(PRODUCTS):
        written(model / name, at=at + number)
