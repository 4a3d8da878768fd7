"""What watch costs with 400 workers: CPU seconds of one look and its picture, of the 10 seconds
between two looks.

    PYTHONPATH=workflow/src python benchmarks/watch.py --output benchmarks/results/watch.json

A campaign of 1,000 buckets, 400 of them finished, 400 running; every worker has written its
heartbeat anew before each look, as it does. Also the same on a terminal so tall that as many
workers are drawn as ever are.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from plm_embed.io.files import write_json
from plm_embed.jobs.heartbeat import FOLDER, WorkerBeat, new_heartbeat, write_heartbeat
from plm_embed.reporting.screen.watch import Watch
from plm_embed.reporting.screen.watch_loop import SECONDS_BETWEEN_LOOKS
from plm_embed.reporting.screen.watch_view import MOST_ROWS, view
from plm_embed.sequences.summary import Summary, write_summary

LOOKS = 10
BUCKETS, FINISHED, WORKERS = 1000, 400, 400


def campaign(results: Path) -> Path:
    """Buckets of 1,000 bytes and 1,000 residues each, some finished; returns the model's folder."""
    folder, model = results / "sequences" / "buckets", results / "esm2_t33_650M_UR50D"
    folder.mkdir(parents=True)
    (model / "embedded").mkdir(parents=True)
    (model / "workers").mkdir()
    for number in range(BUCKETS):
        (folder / f"{number:04d}.parquet").write_bytes(b"x" * 1000)
    summary = Summary(
        buckets=BUCKETS,
        keep=(),
        records=0,
        accepted=0,
        skipped=Counter(),
        events=Counter(),
        unique=0,
        residues=1000 * BUCKETS,
        lengths=Counter(),
        inputs=(),
        warnings=(),
        files={},
    )
    write_summary(results / "sequences", summary)
    for number in range(FINISHED):
        (model / "embedded" / f"{number:04d}.json").write_text("{}")
    return model


def beat(model: Path, number: int) -> None:
    """What a worker says of its bucket every few seconds."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    worker = WorkerBeat(
        pid=number,
        state="computing",
        device="NVIDIA A100",
        gpu=str(number % 4),
        tokens_per_second=50.0,
        sequences=12,
        progressed=now,
        memory_bytes=3_000_000_000,
        utilization=97,
    )
    store = model / "store"
    said = replace(
        new_heartbeat(f"{number:04d}", model / "embedded", store, 0),
        residues=500,
        residues_total=1000,
        eta_seconds=700.0,
        workers=(worker,),
    )
    write_heartbeat(store / FOLDER / f"node1-{number}.json", said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    result: dict[str, object] = {
        "load": os.getloadavg(),
        "seconds_between_looks": SECONDS_BETWEEN_LOOKS,
    }
    with (
        tempfile.TemporaryDirectory() as temporary,
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
    ):
        model = campaign(Path(temporary))
        watch = Watch(Path(temporary))
        for name, height in (("terminal of 50 lines", 50), ("tallest terminal", 2 * MOST_ROWS)):
            console = Console(width=140, height=height, file=nowhere, force_terminal=True)
            spent = []
            for _ in range(LOOKS):
                for bucket in range(FINISHED, FINISHED + WORKERS):
                    beat(model, bucket)
                began = time.process_time()
                console.print(view(watch.look(), console))
                spent.append(time.process_time() - began)
            share = statistics.median(spent[1:]) / SECONDS_BETWEEN_LOOKS
            print(f"{name}: first look {spent[0]:.3f} s, then {100 * share:.2f} % of one core")
            result[name] = {"cpu_seconds": spent, "share_of_a_core": share}
    if options.output:
        write_json(options.output, result)


if __name__ == "__main__":
    main()
