"""The GPUs of this node, found without touching CUDA: which a worker may use, and which CPU cores
lie next to it.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

SYSFS = Path("/sys/bus/pci/devices")


def visible_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """What CUDA_VISIBLE_DEVICES may be set to for one worker each."""
    if "CUDA_VISIBLE_DEVICES" in environment:
        listed = map(str.strip, environment["CUDA_VISIBLE_DEVICES"].split(","))
        # CUDA too stops at what names none: -1, or SLURM's NoDevFiles
        return list(takewhile(_names_gpu, listed))
    return _ask("--query-gpu=index")


def _names_gpu(name: str) -> bool:
    return name.isdecimal() or name.startswith(("GPU-", "MIG-"))


def gpu_names() -> list[str]:
    """What the GPUs of this machine are called; none without a driver that answers."""
    return _ask("--query-gpu=name")


def near_cores(gpu: str) -> set[int]:
    """CPU cores of the NUMA node that a GPU hangs on; empty when that is not known.

    On Polaris the order is reversed (GPU 0 is next to the last cores), so it is looked up, never
    guessed.
    """
    for address in _ask("--query-gpu=pci.bus_id", f"--id={gpu}"):
        # nvidia-smi writes a domain of 8 digits, the kernel one of 4: 00000000:C7:00.0,
        # 0000:c7:00.0
        folder = SYSFS / address[-12:].lower()
        try:
            return _cores((folder / "local_cpulist").read_text())
        except (OSError, ValueError):
            continue
    return set()


def _cores(text: str) -> set[int]:
    """'24-31,56-63' as numbers."""
    found: set[int] = set()
    for piece in filter(None, text.strip().split(",")):
        first, _, last = piece.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _ask(*words: str) -> list[str]:
    """The lines that nvidia-smi answers; none without an answer."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, *words, "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        return []
    return answer.stdout.strip().splitlines() if answer.returncode == 0 else []


class Meter:
    """Joules since it was made, over the first `count` GPUs that this process may use.

    Known where nvidia-ml-py is installed and every one of them counts its energy (Volta and later,
    no slices).
    """

    def __init__(self, count: int) -> None:
        self._handles: list[Any] = []
        with suppress(Exception):  # whatever NVML says, an embedding does not fail for it
            import pynvml

            pynvml.nvmlInit()
            names = visible_gpus()[:count]
            self._handles = [
                pynvml.nvmlDeviceGetHandleByIndex(int(name))
                if name.isdecimal()
                else pynvml.nvmlDeviceGetHandleByUUID(name)
                for name in names
            ]
        self._before = self._read()

    def joules(self) -> float | None:
        """None when it is not known. The counters may be shared: all that ran on these GPUs
        meanwhile counts.
        """
        after = self._read()
        return None if self._before is None or after is None else after - self._before

    def _read(self) -> float | None:
        if not self._handles:
            return None
        with suppress(Exception):
            import pynvml

            millijoules = [
                pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self._handles
            ]
            return float(sum(millijoules)) / 1000
        return None
