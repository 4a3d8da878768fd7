"""How long a user waits for `import plm_embed`, for the first vector after a cold start, for the
demo, and for a campaign with nothing left to do.

    PYTHONPATH=workflow/src python benchmarks/startup.py --output FILE.json

Each is a process of its own, in turns: Python alone, Python that imports plm_embed, and one that
calls `plm_embed.embed` with one protein of 300 residues, ESM-2 8M's shape, random weights and two
threads. Wall time and that of processors, from the start of the process to its end; the time of an
import is given without Python's own. The demo is what `make demo` runs once all is installed, on
two cores in an empty folder; the rerun is `snakemake --cores 2` after it.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from random_weights import write_checkpoint

from plm_embed.inference.weights import prepare
from plm_embed.io.files import write_json
from plm_embed.models.registry import find_model

MODEL = "esm2_8M"
ROOT = Path(__file__).parents[1]
SNAKEMAKE = ["-m", "snakemake", "--snakefile", str(ROOT / "workflow" / "Snakefile"), "--cores", "2"]
DEMO = (["-m", "plm_embed", "plan"], SNAKEMAKE, ["-m", "plm_embed", "summary"])
FIRST = """
import sys, plm_embed
plm_embed.embed(["MKTAYIAKQR" * 30], sys.argv[1], weights=sys.argv[2], threads=2, bar=False)
"""


def seconds(*commands: list[str], folder: Path) -> tuple[float, float]:
    """Of the clock, and of processors, for commands of Python one after the other."""
    package = os.environ | {"PYTHONPATH": str(ROOT / "workflow" / "src")}
    package.pop("PYTHONDONTWRITEBYTECODE", None)  # as in `make demo`
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    for words in commands:
        command = [sys.executable, *words]
        subprocess.run(command, check=True, capture_output=True, cwd=folder, env=package)
    ended, after = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return ended - began, used


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, model = Path(name), find_model(MODEL)
        prepare(model, write_checkpoint(folder / "weights.pt", model), folder / "weights")
        ways = {
            "python": [["-c", "pass"]],
            "import": [["-c", "import plm_embed"]],
            "first_vector": [["-c", FIRST, MODEL, str(folder / "weights")]],
            "demo": DEMO,
            "rerun": [SNAKEMAKE],
        }
        runs: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for number in range(given.runs):
            demo = folder / str(number)
            shutil.copytree(ROOT / "config", demo / "config")
            for way, commands in ways.items():
                runs[way].append(seconds(*commands, folder=demo))
    median = {
        way: [statistics.median(each) for each in zip(*found, strict=True)]
        for way, found in runs.items()
    }
    least = {way: min(wall for wall, _ in found) for way, found in runs.items()}
    result = {
        "runs": given.runs,
        "load": os.getloadavg()[0],
        "import_s": median["import"][0] - median["python"][0],
        "import_least_s": least["import"] - least["python"],
        "import_processor_s": median["import"][1] - median["python"][1],
    }
    for way in ("first_vector", "demo", "rerun"):
        result[f"{way}_s"], result[f"{way}_processor_s"] = median[way]
        result[f"{way}_least_s"] = least[way]
    print(json.dumps(result, indent=1))
    if given.output:
        write_json(given.output, result)


if __name__ == "__main__":
    main()
