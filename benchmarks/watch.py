"""What watch costs with 400 workers: CPU seconds of one look and its picture, of the 10 seconds
between two looks.

    PYTHONPATH=workflow/src:tests python benchmarks/watch.py --output benchmarks/results/watch.json

A campaign of 1,000 buckets, 400 of them finished, 400 running; every worker has written its
heartbeat anew before each look, as it does. Also the same on a terminal so tall that as many
workers are drawn as ever are.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console

from plm_embed.io.files import write_json
from plm_embed.reporting.watch import Watch
from plm_embed.reporting.watch_view import MOST_ROWS, SECONDS_BETWEEN_LOOKS, view
from test_watch import beat, campaign, finish

LOOKS = 10


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
        model = campaign(Path(temporary), 1000)
        for bucket in range(400):
            finish(model, bucket)
        watch = Watch(Path(temporary))
        console = Console(width=140, file=nowhere, force_terminal=True)
        for name, rows in (("terminal of 50 lines", 40), ("tallest terminal", MOST_ROWS)):
            spent = []
            for _ in range(LOOKS):
                for bucket in range(400, 800):
                    beat(model, bucket)
                began = time.process_time()
                console.print(view(watch.look(), rows=rows))
                spent.append(time.process_time() - began)
            share = statistics.median(spent[1:]) / SECONDS_BETWEEN_LOOKS
            print(f"{name}: first look {spent[0]:.3f} s, then {100 * share:.2f} % of one core")
            result[name] = {"cpu_seconds": spent, "share_of_a_core": share}
    if options.output:
        write_json(options.output, result)


if __name__ == "__main__":
    main()
