"""A verdict on this machine's GPU, in less than nine minutes and without a network.

    make gpu-check
    make gpu-check GPU_CHECK="--weights esm2_t33_650M_UR50D.pt"

For each model it runs `plm-embed embed`, as a campaign's job does, and judges the completion
record: self-test, kernels, speed. It computes one sequence in every place of a batch and compares
the bits, stores matrices per residue, and runs the CUDA tests. How much is computed, and for which
models, follows from the card's speed on paper. Weights are random unless a file is named.

Each step is a process with a time limit. Details, also of steps that failed, go to a JSON file.
`--device cpu` rehearses it with a tiny model.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lines import Line, device_line, job_line, matrices_line
from paper import draw, on_paper, seconds_of
from run import ROOT, Check, StepError

from plm_embed.errors import PlmEmbedError
from plm_embed.models.registry import find_model

MODELS = ("650M", "prott5", "esmc_600m", "3B")
"""The first is always tried, the others while there is time."""
SECONDS = 420.0
"""No model is begun that would not be done by then."""
MATRICES = 64
"""Sequences whose matrices are stored."""
TESTS = "tests/gpu -m gpu -v -rA --tb=short -p no:cacheprovider"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--models", nargs="+", default=MODELS, help="(default: %(default)s)")
    parser.add_argument(
        "--weights", type=Path, help="real weights: a published file or folder, called as its model"
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "benchmarks" / "results" / "gpu_check.json"
    )
    options = parser.parse_args(arguments)
    if options.weights:
        path = options.weights
        options.models = [path.name if path.is_dir() else path.stem]
    elif options.device == "cpu" and options.models == MODELS:
        options.models = ["esm2_t3_untrained"]
    with tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as folder:
        check = Check(options.device, Path(folder))
        verdict = list(judge(check, options.models, options.weights))
    failed = sum(bool(line.wrong) for line in verdict)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    report = {"verdict": list(map(str, verdict)), "steps": check.details}
    options.output.write_text(json.dumps(report, indent=2) + "\n")
    print(*verdict, sep="\n")
    left_out = f", no time or memory for {', '.join(check.left_out)}" if check.left_out else ""
    print(
        f"{f'FAIL: {failed} of' if failed else 'PASS: all'} {len(verdict)} lines, "
        f"{check.seconds:.0f} s{left_out}; details in {options.output}"
    )
    return 1 if failed else 0


@contextmanager
def judged(line: Line) -> Iterator[None]:
    """An error of a step, or of the package, is what is wrong."""
    try:
        yield
    except (StepError, PlmEmbedError) as error:
        line.wrong.append("; ".join(str(error).splitlines()))


def judge(check: Check, models: list[str], source: Path | None) -> Iterator[Line]:
    """The verdict, line by line."""
    line = Line("device")
    with judged(line):
        device = check.step("device", "device", device=check.device)
        device_line(line, device)
    yield line
    if line.wrong:
        return
    yield from judge_model(check, models[0], source, device["name"])
    if check.device == "cuda":
        yield judge_tests(check)
    for name in models[1:]:
        yield from judge_model(check, name, None, device["name"], first=False)


def judge_model(
    check: Check, name: str, source: Path | None, gpu: str, *, first: bool = True
) -> Iterator[Line]:
    """A line of the model's job and of the places of a batch, and for the first model one of
    matrices; no line for another model that would take too long, or more memory than there is.
    """
    line = Line(name)
    folder = check.folder / "weights" / name
    with judged(line):
        model = find_model(name)
        paper = on_paper(model, gpu, check.device)
        if not first and check.seconds + seconds_of(model, paper) > SECONDS:
            check.left_out.append(name)
            return
        if source:
            command = [sys.executable, "-m", "plm_embed", "weights", "--model", name]
            command += ["--source", str(source.absolute()), "--output", str(folder), "--check"]
            line.seen.append(check.run(f"{name}: weights", command).strip().splitlines()[-1])
        else:
            check.step(
                f"{name}: weights", "weights", model=name, folder=str(folder), device=check.device
            )
        sequences = draw(model, paper.tokens)
        record, _ = check.embed(f"{name}: job", folder, sequences)
        dtype = record.fingerprint.compute_dtype
        places = check.step(
            f"{name}: places", "places", folder=str(folder), device=check.device, dtype=dtype
        )
        job_line(line, record, places, paper)
    yield line
    if first and not line.wrong:
        line = Line(f"{name} per residue")
        with judged(line):
            pooling = ["--settings", '{"pooling": ["mean", "per_residue"]}']
            record, parts = check.embed(f"{name}: matrices", folder, sequences[:MATRICES], *pooling)
            matrices_line(line, record, parts)
        yield line


def judge_tests(check: Check) -> Line:
    line = Line("CUDA tests")
    with judged(line):
        output = check.run("CUDA tests", [sys.executable, "-m", "pytest", *TESTS.split()])
        line.seen.append(output.strip().splitlines()[-1].strip("= "))
    if line.wrong:
        output = check.details["CUDA tests"]["stdout"]
        failed = re.findall(r"^(?:FAILED|ERROR) \S+::(\S+)", output, re.MULTILINE)
        line.wrong = [f"{len(failed)} failed: {', '.join(failed)[:200]}"] if failed else line.wrong
    return line
