"""Everything about the engine that needs a GPU, in one command of under nine minutes and without a
network.

    make gpu-check

First says what is missing. Then runs the CUDA tests, and measures throughput at three sets of
lengths against transformers and fair-esm where they are installed, interleaved, with the share of
this GPU's own bf16 matrix rate; accuracy of every dtype against fp32; a model of each other family,
its accuracy and speed; and a whole embed job with its busy fraction. For benchmarks/roofline.py it
lists the largest kernels of a forward pass, tries other numbers of rows, times activations as
passes and within products, and copies memory. Writes all of it as JSON.
"""

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import here

FAMILIES = (
    *("esmc_600m", "prott5", "ankh-large", "protbert", "DNABERT-S"),
    *("nt-v2-500m-multi-species", "nt-500m-1000g"),
)
START = time.monotonic()


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
    asked = parser.parse_args(arguments)
    needed, wanted = here.missing()
    print("without:", "; ".join(wanted) or "nothing that is missed")
    if needed:
        print(
            f"missing: {', '.join(needed)}: put their wheels into wheels/ (make gpu-wheels, where "
            "there is a network)"
        )
        return 2
    import torch

    if asked.device == "cuda" and not torch.cuda.is_available():
        print(f"no usable CUDA device (torch {torch.__version__}, CUDA {torch.version.cuda})")
        return 2
    sys.path.append(str(Path(__file__).parents[1]))  # where peers.py lies
    import job
    import kernels
    import models
    from bench import Bench

    from plm_embed.kernels.devices import set_up

    device = torch.device(asked.device, 0) if asked.device == "cuda" else torch.device(asked.device)
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

    def step(name: str, share: float, call: Callable[[float], Any]) -> None:
        """Make one measurement, keep what goes wrong, and write what there is: the time may end at
        any moment.
        """
        if time.monotonic() - START < asked.seconds:
            try:
                report[name] = call(START + share * asked.seconds)
            except Exception as error:
                report["problems"][name] = traceback.format_exc()
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
            if asked.device == "cuda":
                torch.cuda.empty_cache()
        else:
            report["problems"][name] = "no time left"
        report["seconds"] = round(time.monotonic() - START, 1)
        asked.output.write_text(json.dumps(report, indent=2) + "\n")

    step("tests", 0.4, lambda end: here.run_tests(end - time.monotonic()))
    set_up(device, torch.get_num_threads(), "auto")
    bench = Bench(device, asked.tokens)
    step("kernels", 0.45, lambda _: kernels.kernels(bench, asked.job_model))
    step("activations", 0.45, lambda _: kernels.activations(bench))
    step("job", 0.55, lambda _: job.job(bench, asked.job_model, 4 * asked.tokens))
    for number, name in enumerate(asked.models, start=1):
        step(
            name,
            0.55 + 0.25 * number / len(asked.models),
            lambda end, name=name: models.model(bench, name, end),
        )
    for number, name in enumerate(asked.families, start=1):
        step(
            name,
            0.8 + 0.2 * number / len(asked.families),
            lambda end, name=name: models.family(bench, name, end),
        )
    print(f"{report['seconds']} s; written to {asked.output}")
    failed = report["problems"] or report.get("tests", {}).get("exit_code") not in (0, 5)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
