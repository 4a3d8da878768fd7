"""Everything about the engine that needs a GPU, in one command of under nine minutes and without a
network.

    make gpu-check

First says what is missing. Then runs the CUDA tests, and measures throughput at three sets of
lengths against transformers and fair-esm where they are installed, interleaved, with the share of
this GPU's own bf16 matrix rate; accuracy of every dtype against fp32; a model of each other family,
its accuracy and speed; and a whole embed job with its busy fraction. For benchmarks/roofline.py it
lists the largest kernels of a forward pass, tries other numbers of rows, times activations as
passes and within products, and copies memory. Writes all of it as JSON.

Each step is a process of its own with a time limit: one that loses the device, or hangs, costs the
others nothing.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import here

FAMILIES = (
    *("esmc_600m", "prott5", "ankh-large", "protbert", "DNABERT-S"),
    *("nt-v2-500m-multi-species", "nt-500m-1000g"),
)
START = time.monotonic()
SECONDS_MORE = 25.0
"""What a step may take beyond its time, in which it adds no rounds: then it ends with what it has.
"""
SECONDS_TO_END = 5.0
"""Of a step that was told to; then it is killed."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", nargs="+", default=["650M", "3B"])
    parser.add_argument("--families", nargs="*", default=FAMILIES, help="models of other families")
    parser.add_argument("--job-model", default="650M")
    parser.add_argument(
        "--tokens", type=int, default=8 * 32768, help="per timed run of 650M (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=500, help="for all of it (default: %(default)s)"
    )
    parser.add_argument(
        "--output", type=Path, default=here.ROOT / "benchmarks" / "results" / "gpu_check.json"
    )
    parser.add_argument("--step", help="take this one only, in this process")
    asked = parser.parse_args(arguments)
    return take(asked) if asked.step else check(asked)


def check(asked: argparse.Namespace) -> int:
    """Every step in a process of its own; the report is written after each."""
    needed, wanted = here.missing()
    print("without:", "; ".join(wanted) or "nothing that is missed", flush=True)
    if needed:
        print(
            f"missing: {', '.join(needed)}; fetch their wheels where there is a network, with the "
            f"same Python: pip download --no-deps --dest wheels {' '.join(needed)}"
        )
        return 2
    import torch

    if asked.device == "cuda" and not torch.cuda.is_available():
        print(f"no usable CUDA device (torch {torch.__version__}, CUDA {torch.version.cuda})")
        return 2
    report: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(0) if asked.device == "cuda" else None,
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in ("torch", "numpy", "fair-esm")}
        | {name: getattr(sys.modules.get(name), "__version__", None) for name in here.WANTED},
        "cuda": torch.version.cuda,
        "load": os.getloadavg(),
        "missing": wanted,
        "problems": {},
    }
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    ends = {"tests": 0.4, "kernels": 0.45, "activations": 0.45, "job": 0.55}
    for number, name in enumerate(asked.models, start=1):
        ends[name] = 0.55 + 0.25 * number / len(asked.models)
    for number, name in enumerate(asked.families, start=1):
        ends[name] = 0.8 + 0.2 * number / len(asked.families)
    for name, share in ends.items():
        now = time.monotonic() - START
        left = max(0.0, share * asked.seconds - now)
        if now > asked.seconds:
            report["problems"][name] = "no time left"
        elif name == "tests":
            report[name] = here.run_tests(left)
        else:
            found, problem = step(asked, name, left)
            if found:
                report[name] = found
            if problem:
                report["problems"][name] = problem
        report["seconds"] = round(time.monotonic() - START, 1)
        asked.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"{report['seconds']} s; written to {asked.output}")
    failed = report["problems"] or report.get("tests", {}).get("exit_code") not in (0, 5)
    return 1 if failed else 0


def step(asked: argparse.Namespace, name: str, seconds: float) -> tuple[dict[str, Any], str]:
    """What a step found in about so many seconds, and what went wrong; it writes both."""
    with tempfile.TemporaryDirectory(prefix="plm-embed-") as folder:
        output = Path(folder) / "step.json"
        command = [sys.executable, str(Path(__file__).parent), "--step", name]
        command += ["--device", asked.device, "--tokens", str(asked.tokens)]
        command += ["--models", *asked.models, "--job-model", asked.job_model]
        command += ["--seconds", str(seconds), "--output", str(output)]
        limit = seconds + SECONDS_MORE + SECONDS_TO_END
        try:
            code = subprocess.run(command, check=False, timeout=limit).returncode
            ended = f"its process ended with {code}"
        except subprocess.TimeoutExpired:
            ended = f"its process hung, and was killed after {limit:.0f} s"
        try:
            written = json.loads(output.read_text())
        except (OSError, ValueError):
            print(f"{name}: {ended}", flush=True)
            return {}, ended
        return written["found"], written["problem"]


def take(asked: argparse.Namespace) -> int:
    """One step: what it found goes into the output, and what ended it, time or an error."""
    sys.path.append(str(Path(__file__).parents[1]))  # where peers.py lies
    found: dict[str, Any] = {}
    problem = ""
    signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, asked.seconds + SECONDS_MORE)
    try:
        measure(asked, found)
    except BaseException as error:
        problem = traceback.format_exc()
        print(f"{asked.step}: {type(error).__name__}: {error}", flush=True)
    signal.setitimer(signal.ITIMER_REAL, 0)
    asked.output.write_text(json.dumps({"found": found, "problem": problem}))
    return 1 if problem else 0


def too_long(*_: object) -> NoReturn:
    """No Exception: peers that fail are left out, and this is not their failure."""
    sys.exit("it takes too long")


def measure(asked: argparse.Namespace, found: dict[str, Any]) -> None:
    """Make the measurements of a step; they go into `found` as they are made."""
    import job
    import kernels
    import models
    import torch
    from bench import Bench

    from plm_embed.kernels.devices import set_up

    device = torch.device(asked.device, 0) if asked.device == "cuda" else torch.device(asked.device)
    set_up(device, torch.get_num_threads(), "auto")
    bench, end = Bench(device, asked.tokens), START + asked.seconds
    if asked.step == "kernels":
        kernels.kernels(bench, asked.job_model, found)
    elif asked.step == "activations":
        kernels.activations(bench, found)
    elif asked.step == "job":
        job.job(bench, asked.job_model, 4 * asked.tokens, found)
    elif asked.step in asked.models:
        models.model(bench, asked.step, end, found)
    else:
        models.family(bench, asked.step, end, found)


if __name__ == "__main__":
    sys.exit(main())
