"""What is installed here, and the tests that need a GPU. Nothing of torch: it may be missing."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
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


def missing() -> tuple[list[str], list[str]]:
    """What to install, and what is not there but can be done without."""

    def lacks(module: str) -> bool:
        try:
            import_module(module)
        except Exception:  # one that is there, and broken, is of no more use
            return True
        return False

    wanted = [f"{module}: {use}" for module, use in WANTED.items() if lacks(module)]
    # Triton compiles what launches its kernels
    compiler = shutil.which(os.environ.get("CC", "gcc")) or shutil.which("clang")
    if not compiler or not Path(sysconfig.get_path("include", "posix_prefix"), "Python.h").exists():
        wanted.append("a C compiler or Python.h: fused kernels")
    return [package for module, package in NEEDED.items() if lacks(module)], wanted


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
