"""The GPUs of this node, found without touching CUDA: which a job takes, which a worker may use,
and which CPU cores lie next to it.
"""

import fcntl
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from plm_embed.kernels.hardware import ask_nvidia, nvidia_gpus

log = logging.getLogger(__name__)
PCI = Path("/sys/bus/pci/devices")
LOCKS = Path("/tmp")
"""Folder of the locks: one for all users of a machine, who share its GPUs."""
SECONDS_BETWEEN_LOOKS = 1.0
"""Pause between two looks at GPUs that are taken: short beside a job."""


def visible_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES may be set to for one worker each."""

    def names_gpu(name: str) -> bool:
        return name.isdecimal() or name.startswith(("GPU-", "MIG-"))

    if "CUDA_VISIBLE_DEVICES" not in environment:
        return [gpu.id for gpu in nvidia_gpus()]
    names = map(str.strip, environment["CUDA_VISIBLE_DEVICES"].split(","))
    # CUDA too stops at what names none: -1, or SLURM's NoDevFiles
    return list(takewhile(names_gpu, names))


def gpu_names() -> list[str]:
    """Return the names of this machine's GPUs; none without a driver that answers."""
    return [gpu.name for gpu in nvidia_gpus()]


def take_gpus(count: int) -> None:
    """Take `count` GPUs for as long as this process lives: wait until so many are free, and set
    CUDA_VISIBLE_DEVICES to them.

    Nothing changes where a scheduler, or the user, gave the job no more than it takes, nor where
    there are fewer. Other jobs of this program are kept off by a lock for each GPU, which the
    kernel releases when the process ends, however it ends.
    """
    names = visible_gpus()
    if len(names) < count or (len(names) == count and "CUDA_VISIBLE_DEVICES" in os.environ):
        return
    uuids = {gpu.id: gpu.uuid for gpu in nvidia_gpus()}
    waiting = False
    while True:
        locks: dict[str, int] = {}
        for name in names:
            lock = _lock(uuids.get(name, name)) if len(locks) < count else None
            if lock is not None:
                locks[name] = lock
        if len(locks) == count:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(locks)
            return
        for lock in locks.values():
            os.close(lock)
        if not waiting:
            log.info("waiting for %d of %d GPUs: other jobs have taken them", count, len(names))
        waiting = True
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _lock(name: str) -> int | None:
    """Lock a GPU; return the open file that does, None where another process has it."""
    path = LOCKS / f"plm-embed-{name.replace('/', '-')}.lock"
    options = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    # created or opened, never both: the kernel refuses that to other users in a folder like /tmp
    with suppress(FileExistsError):
        new = os.open(path, options | os.O_CREAT | os.O_EXCL, 0o644)
        os.fchmod(new, 0o644)  # whatever the umask: others must be able to open it
        os.close(new)
    file = os.open(path, options)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def bind(gpu: str | None, threads: int) -> None:
    """Have this process see one GPU (None: those that it sees already), and run on the cores next
    to it if they are enough for its threads. Call it before torch is loaded.
    """
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        if hasattr(os, "sched_setaffinity"):
            cores = near_cores(gpu) & os.sched_getaffinity(0)
            if len(cores) > threads:  # and for the one that prepares
                os.sched_setaffinity(0, cores)
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        # its numbers are those of schedulers and nvidia-smi; CUDA's own begin with the fastest GPU
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def near_cores(gpu: str) -> set[int]:
    """Return the CPU cores of the NUMA node that a GPU hangs on; none when that is not known.

    On Polaris the order is reversed (GPU 0 is next to the last cores), so it is looked up, never
    guessed.
    """
    for address in ask_nvidia("--query-gpu=pci.bus_id", f"--id={gpu}", "--format=csv,noheader"):
        with suppress(OSError, ValueError):
            # nvidia-smi writes a domain of 8 digits, the kernel one of 4: 00000000:C7:00.0,
            # 0000:c7:00.0
            text = (PCI / address[-12:].lower() / "local_cpulist").read_text()  # 24-31,56-63
            ranges = [piece.partition("-") for piece in text.strip().split(",")]
            return {
                core
                for first, _, last in ranges
                for core in range(int(first), int(last or first) + 1)
            }
    return set()


class Meter:
    """Load and energy of a GPU, as NVML tells them.

    None where nvidia-ml-py is not installed, and where the GPU does not tell (a slice, or older
    than Volta).
    """

    def __init__(self, uuid: str) -> None:
        with suppress(Exception):  # whatever NVML says, an embedding does not fail for it
            import pynvml

            pynvml.nvmlInit()
            self._gpu = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        self._energy = self._ask("TotalEnergyConsumption")  # at the last look, in millijoules

    def _ask(self, name: str) -> Any:
        with suppress(Exception):
            import pynvml

            return getattr(pynvml, f"nvmlDeviceGet{name}")(self._gpu)
        return None

    def load(self) -> tuple[int | None, float | None]:
        """Return the utilization in percent of the time, and watts."""
        rates, milliwatts = self._ask("UtilizationRates"), self._ask("PowerUsage")
        return rates and rates.gpu, None if milliwatts is None else milliwatts / 1000

    def joules(self) -> float | None:
        """Return the energy since the last look. All that ran on this GPU meanwhile counts."""
        before, self._energy = self._energy, self._ask("TotalEnergyConsumption")
        return None if None in (before, self._energy) else (self._energy - before) / 1000
