"""Everything about the engine that needs a GPU, in one command of under nine minutes and without a
network.

    make gpu-check

First says what is missing. Then runs the CUDA tests, and measures throughput at three sets of
lengths against transformers and fair-esm where they are installed, interleaved, with the share of
this GPU's own bf16 matrix rate; accuracy of every dtype against fp32; a model of each other family,
its accuracy and speed; and a whole embed job with its busy fraction. Writes all of it as JSON.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import ChainMap
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NEEDED = {
    "torch": "torch",
    "numpy": "numpy",
    "h5py": "h5py",
    "pyarrow": "pyarrow",
    "safetensors": "safetensors",
    "requests": "requests",
    "rich": "rich",
    "pytest": "pytest",
    "esm": "fair-esm",
}
"""Modules without which nothing runs, and the packages that hold them."""
WANTED = {
    "triton": "fused kernels",
    "tokenizers": "DNABERT",
    "transformers": "a peer in the throughput table",
    "pynvml": "GPU use and power",
}
LENGTHS = {
    "influenza, mean 500": (500, 0.3),
    "old estimate, mean 1000": (1000, 0.1),
    "UniRef, mean 300": (300, 0.55),
}
"""Mean and spread (of the logarithm) of the lengths."""
FAMILIES = (
    *("esmc_600m", "prott5", "ankh-large", "protbert", "DNABERT-S"),
    *("nt-v2-500m-multi-species", "nt-500m-1000g"),
)
TOKENIZERS = {
    "dnabert": "dnabert2/tokenizer.json",
    "nt_v1": "nucleotide_transformer_v1/vocab.txt",
    "nt_v2": "nucleotide_transformer_v2/vocab.txt",
}
"""Of families whose tokens a file decides: those of the tests, whose tokens of DNABERT are
shorter.
"""
ROUNDS, START = 5, time.monotonic()


def missing() -> tuple[list[str], list[str]]:
    """What to install, and what is not there but can be done without."""

    def lacks(module: str) -> bool:
        try:
            import_module(module)
        except Exception:  # one that is there, and broken, is of no more use
            return True
        return False

    return (
        [package for module, package in NEEDED.items() if lacks(module)],
        [f"{module}: {use}" for module, use in WANTED.items() if lacks(module)],
    )


def run_tests(seconds: float) -> dict[str, Any]:
    """The CUDA tests in a process of their own."""
    options = "tests/gpu -m gpu -v -rA --tb=short -p no:cacheprovider"
    command = [sys.executable, "-m", "pytest", *options.split()]
    began = time.monotonic()
    try:
        ended = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds
        )
        output, code = ended.stdout + ended.stderr, ended.returncode
    except subprocess.TimeoutExpired as error:
        output, code = (error.stdout or b"").decode(), -1
    # line by line as they end, so that what was done before the time ran out is known
    found = {
        word.lower(): re.findall(rf"^(\S.*::.*) {word} ", output, re.MULTILINE)
        for word in ("PASSED", "FAILED", "ERROR", "SKIPPED")
    }
    print(output[-6000:] if code not in (0, 5) else output.strip().splitlines()[-1], flush=True)
    return {
        "exit_code": code,
        "seconds": round(time.monotonic() - began, 1),
        "output": output[-20000:],
    } | found


def draw(
    mean: float, spread: float, tokens: float, letters: str = "LAGVSERTIDPKQNFYMHWC"
) -> list[str]:
    """Random sequences of so many tokens and up to one sequence more, log-normal lengths."""
    import numpy as np

    random = np.random.default_rng(5)
    found: list[str] = []
    while tokens > 0:
        length = int(np.clip(random.lognormal(np.log(mean) - spread**2 / 2, spread), 20, 4 * mean))
        found.append("".join(random.choice(list(letters), length)))
        tokens -= length + 2
    return found


class Bench:
    """Measurements on one device, of one model after another."""

    def __init__(self, device: Any, tokens: int) -> None:
        """tokens: how many the engine embeds per timed run, for 650M; others in proportion."""
        import torch

        from plm_embed.models.packed_batch import TOKENS

        self.torch, self.device, self.tokens = torch, device, tokens
        self.cuda = device.type == "cuda"
        self.budget = TOKENS[device.type]
        self.modern = self.cuda and torch.cuda.get_device_capability(device) >= (8, 0)
        self.half = "bfloat16" if self.modern or not self.cuda else "float16"

    def timed(self, call: Callable[[], Any]) -> float:
        if self.cuda:
            self.torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        if self.cuda:
            self.torch.cuda.synchronize()
        return time.perf_counter() - began

    def matrix_rate(self, size: int) -> float:
        """FLOP/s of a square product of random numbers in half precision: the median of 5 times
        10.
        """
        dtype = getattr(self.torch, self.half)
        a, b = (self.torch.randn(size, size, device=self.device).to(dtype) for _ in range(2))
        out = self.torch.empty(size, size, device=self.device, dtype=dtype)

        def ten() -> None:
            for _ in range(10):
                self.torch.mm(a, b, out=out)

        ten()
        return 20 * size**3 / statistics.median(self.timed(ten) for _ in range(5))

    def model(self, name: str, end: float) -> dict[str, Any]:
        """Throughput and accuracy of one model; stops adding rounds at `end`."""
        import peers

        from plm_embed.models.registry import find_model

        model = find_model(name)
        tensors = peers.RandomTensors(model, self.device)
        report: dict[str, Any] = {"accuracy": self.accuracy(model, tensors), "throughput": {}}
        made = peers.engine(model, tensors, self.device, self.half)  # type: ignore[arg-type]
        report["kernels"] = {"attention": made.attention.name, "elementwise": made.elementwise.name}
        report["launching"] = self.launching(made)
        makers: dict[str, Callable[[], Any]] = {
            f"plm-embed {self.half}": lambda: peers.ours(made),
            f"transformers SDPA {self.half}": lambda: peers.hugging_face(
                model, tensors, self.device, self.half, 16384
            ),
            "fair-esm as shipped, float32": lambda: peers.fair_esm(
                model, tensors, self.device, "float32", 4096
            ),
        }
        runners: dict[str, Any] = {}
        for variant, make in makers.items():
            try:
                runners[variant] = make()
            except (
                Exception
            ) as error:  # a peer that is not there, or does not work here, is told and left out
                report.setdefault("left_out", {})[variant] = (
                    f"{type(error).__name__}: {error}".splitlines()[0]
                )
        budgets = max(1, round(self.tokens * flops_share(model) / self.budget))
        for label, (mean, spread) in LENGTHS.items():
            # as in a bucket of thousands: all batches but the last one of many are full
            ours = draw(mean, spread, 0.98 * budgets * self.budget)
            # what is slower gets fewer of the same sequences; the rate is per token
            samples = {
                variant: ours[:: 1 if "plm" in variant else 8 if "fair" in variant else 2]
                for variant in runners
            }
            report["throughput"][label] = self.interleaved(model, runners, samples, end)
            print(name, label, json.dumps(report["throughput"][label]["variants"]), flush=True)
        return report

    def interleaved(
        self, model: Any, runners: dict[str, Any], samples: dict[str, list[str]], end: float
    ) -> dict[str, Any]:
        import peers

        rates: dict[str, list[float]] = {variant: [] for variant in runners}
        matrix, problems = [], {}
        for variant, run in list(runners.items()):
            try:
                run(samples[variant])  # kernels are chosen and compiled
            except Exception as error:
                problems[variant] = f"{type(error).__name__}: {error}".splitlines()[0]
        for number in range(ROUNDS):
            if number and time.monotonic() > end:
                break
            matrix.append(self.matrix_rate(8192 if self.cuda else 256))
            for variant, run in runners.items():
                if variant not in problems:
                    tokens = sum(len(text) + 2 for text in samples[variant])
                    rates[variant].append(
                        tokens / self.timed(lambda run=run, variant=variant: run(samples[variant]))
                    )
        per_token = {
            variant: peers.flops(model, [len(t) for t in texts]) / sum(len(t) + 2 for t in texts)
            for variant, texts in samples.items()
        }
        rate = statistics.median(matrix)
        median = {variant: statistics.median(found) for variant, found in rates.items() if found}
        first = next(iter(median), None)
        return {
            "rounds": len(matrix),
            "mean_tokens": sum(len(t) + 2 for t in samples[first]) / len(samples[first])
            if first
            else None,
            "matrix_tflops": rate / 1e12,
            "problems": problems,
            "variants": {
                variant: {
                    "tokens_per_second": round(found),
                    "share_of_matrix_rate": round(found * per_token[variant] / rate, 4),
                    "ours_is_faster_by": round(median[first] / found, 2) if first else None,
                }
                for variant, found in median.items()
            },
        }

    def accuracy(self, model: Any, tensors: Any) -> dict[str, Any]:
        """Mean vectors of every dtype and attention kernel against fp32."""
        import peers

        from plm_embed.kernels.devices import set_up

        texts = [draw(mean, 0.2, 1)[0] for mean in (5, 20, 60, 150, 300, 500, 800, 1020, 2100)]
        exact = None
        found: dict[str, Any] = {}
        for dtype in ("float32", "tfloat32", "bfloat16", "float16"):
            if (dtype == "bfloat16" and self.half != "bfloat16") or (
                dtype == "tfloat32" and not self.modern
            ):
                continue
            set_up(self.device, self.torch.get_num_threads(), dtype)
            made = peers.engine(model, tensors, self.device, dtype)
            for kernel in [made.attention, *self.other_kernels(made)]:
                made.attention = kernel
                vectors = peers.ours(made)(texts)[0]
                exact = vectors if exact is None else exact
                found[f"{dtype}, {kernel.name}"] = peers.agreement(vectors, exact)
            del made
        set_up(self.device, self.torch.get_num_threads(), "auto")
        return found

    def other_kernels(self, made: Any) -> list[Any]:
        """The attention kernels that work here for a model besides the one that it uses."""
        from plm_embed.kernels import attention

        heads, dtype = made.manifest.heads, made.dtype
        offered = [
            each
            for each in attention._candidates(self.device, dtype)
            if each.name != made.attention.name
        ]
        problem = partial(attention._problem, device=self.device, dtype=dtype, heads=heads)
        return [each for each in offered if not problem(each, width=made.manifest.dim // heads)]

    def family(self, name: str, end: float) -> dict[str, Any]:
        """Throughput of a model of another family, and its accuracy in half precision; stops adding
        rounds at `end`.
        """
        import peers

        from plm_embed.models.registry import find_model
        from plm_embed.models.tokenizer_file import TENSOR

        model = find_model(name)
        tensors: Any = peers.RandomTensors(model, self.device)
        if model.tokenizer_file:
            file = ROOT / "tests" / "data" / "golden_families" / TOKENIZERS[model.family.name]
            content = self.torch.frombuffer(bytearray(file.read_bytes()), dtype=self.torch.uint8)
            tensors = ChainMap({TENSOR: content}, tensors)
        letters = "ACGT" if model.tokenizer_file else "LAGVSERTIDPKQNFYMHWC"
        wanted = 0.98 * self.budget * max(1, round(self.tokens * flops_share(model) / self.budget))
        per_token = model.family.letters_per_token
        texts = draw(500 * per_token, 0.3, wanted * per_token, letters)
        few = sorted(texts, key=len)[:: max(1, len(texts) // 8)]
        exact = peers.ours(peers.engine(model, tensors, self.device, "float32"))(few)[0]
        made = peers.engine(model, tensors, self.device, self.half)  # type: ignore[arg-type]
        run = peers.ours(made)
        report = {
            "kernels": {"attention": made.attention.name, "elementwise": made.elementwise.name},
            "accuracy": peers.agreement(run(few)[0], exact),
        }
        run(texts)  # kernels are compiled
        lengths = [len(made.tokenize(text)) for text in texts]
        tokens = sum(lengths)
        mixing = sum(4 * model.layers * model.inner * length**2 for length in lengths)
        flops = 2 * model.parameters * tokens + mixing
        rates, matrix = [], []
        for number in range(ROUNDS):
            if number and time.monotonic() > end:
                break
            matrix.append(self.matrix_rate(8192 if self.cuda else 256))
            rates.append(tokens / self.timed(lambda: run(texts)))
        rate = statistics.median(rates)
        report |= {
            "rounds": len(rates),
            "mean_tokens": tokens / len(texts),
            "tokens_per_second": round(rate),
            "letters_per_second": round(rate * sum(map(len, texts)) / tokens),
            "share_of_matrix_rate": round(rate * flops / tokens / statistics.median(matrix), 4),
        }
        print(name, json.dumps(report), flush=True)
        return report

    def launching(self, made: Any) -> dict[str, float]:
        """How long the host takes to queue a batch, and the device to compute it: what a CUDA graph
        could save.
        """
        batch = made.prepare(draw(500, 0.3, 0.85 * made.rows))
        layers = [made.manifest.layers]
        self.timed(lambda: made.forward(batch, layers))
        began = time.perf_counter()
        made.forward(batch, layers)
        queued = time.perf_counter() - began
        return {
            "host_seconds": queued,
            "device_seconds": self.timed(lambda: made.forward(batch, layers)),
        }

    def job(self, name: str, tokens: int) -> dict[str, Any]:
        """A whole embed job: weights from a file, self-test, batches, parts; its completion record
        in short.
        """
        import peers
        import pyarrow as pa
        import pyarrow.parquet as pq

        from plm_embed.inference.prepare_weights import seal
        from plm_embed.inference.settings import Settings
        from plm_embed.io.files import sha256_file
        from plm_embed.jobs.embed_bucket import Embedder
        from plm_embed.keys import key
        from plm_embed.models import weights
        from plm_embed.models.manifest import Manifest, Source
        from plm_embed.models.registry import find_model

        model = find_model(name)
        with tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as scratch:
            folder = Path(scratch)
            (folder / "weights").mkdir()
            tensors = peers.RandomTensors(model, self.device, self.torch.float16)
            path = folder / "weights" / weights.TENSORS
            weights.write(path, {each: tensors[each].cpu() for each in tensors})
            shape = model.architecture, model.layers, model.dim, model.heads, model.max_residues
            digest, source = sha256_file(path), Source("fair-esm", "")
            seal(
                path.parent,
                Manifest(model.name, *shape, True, "MIT", digest, path.stat().st_size, source),
            )
            rows = sorted(
                (key(text), text) for text in set(draw(*LENGTHS["influenza, mean 500"], tokens))
            )
            columns = {"key": [row[0] for row in rows], "sequence": [row[1] for row in rows]}
            pq.write_table(pa.table(columns), folder / "0000.parquet")
            settings = Settings(device=self.device.type, scratch="")
            record = Embedder(folder / "weights", folder / "store", settings).embed(
                folder / "0000.parquet", folder / "0000.json"
            )
        wanted = (
            "fingerprint",
            "self_test",
            "computed",
            "tokens",
            "tokens_per_second",
            "busy",
            "toks_per_batch",
        )
        found = asdict(record)
        return {each: found[each] for each in (*wanted, "loading_seconds", "seconds")}


def flops_share(model: Any) -> float:
    """Tokens of a model that cost what one of 650M does."""
    return min(8.0, 33 * 1280**2 / (model.layers * model.dim**2))


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
        "--output", type=Path, default=ROOT / "benchmarks" / "results" / "gpu_check.json"
    )
    asked = parser.parse_args(arguments)
    needed, wanted = missing()
    print("without:", "; ".join(wanted) or "nothing that is missed")
    if needed:
        print(
            f"missing: {', '.join(needed)}: put their wheels into wheels/ (make gpu-wheels, where "
            "there is a network)"
        )
        return 2
    import torch

    from plm_embed.kernels.devices import set_up

    if asked.device == "cuda" and not torch.cuda.is_available():
        print(f"no usable CUDA device (torch {torch.__version__}, CUDA {torch.version.cuda})")
        return 2
    device = torch.device(asked.device, 0) if asked.device == "cuda" else torch.device(asked.device)
    report: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(0) if asked.device == "cuda" else None,
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in ("torch", "numpy", "fair-esm")}
        | {name: getattr(sys.modules.get(name), "__version__", None) for name in WANTED},
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

    step("tests", 0.4, lambda end: run_tests(end - time.monotonic()))
    set_up(device, torch.get_num_threads(), "auto")
    bench = Bench(device, asked.tokens)
    step("job", 0.55, lambda _: bench.job(asked.job_model, 4 * asked.tokens))
    for number, name in enumerate(asked.models, start=1):
        step(
            name,
            0.55 + 0.25 * number / len(asked.models),
            lambda end, name=name: bench.model(name, end),
        )
    for number, name in enumerate(asked.families, start=1):
        step(
            name,
            0.8 + 0.2 * number / len(asked.families),
            lambda end, name=name: bench.family(name, end),
        )
    print(f"{report['seconds']} s; written to {asked.output}")
    failed = report["problems"] or report.get("tests", {}).get("exit_code") not in (0, 5)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
