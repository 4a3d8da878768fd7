"""This node's GPUs of NVIDIA and its processor, found without torch: by nvidia-smi, and by the
devices that this process may open.
"""

import errno
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

DEV = Path("/dev")
_GPU = re.compile(r"GPU (?P<index>\d+): (?P<name>.+) \(UUID: (?P<uuid>[^)]+)\)")
_SLICE = re.compile(r" +MIG (?P<profile>\S+) +Device +\d+: \(UUID: (?P<uuid>[^)]+)\)")


class Gpu(NamedTuple):
    """A GPU, or a slice of one (MIG): its name as CUDA says it, and as what CUDA_VISIBLE_DEVICES
    takes it.
    """

    id: str
    name: str
    uuid: str


def nvidia_gpus() -> list[Gpu]:
    """List the GPUs of NVIDIA's driver, and of those that are cut into slices the slices; none
    where nvidia-smi does not answer.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        answer = subprocess.run(
            [tool, "--list-gpus"], capture_output=True, text=True, check=False, timeout=60
        )
    except subprocess.TimeoutExpired:
        return []
    if answer.returncode:
        return []
    gpus: list[Gpu] = []
    whole = None
    for line in answer.stdout.splitlines():
        if gpu := _GPU.fullmatch(line.rstrip()):
            whole = Gpu(gpu["index"], gpu["name"], gpu["uuid"])
            gpus.append(whole)
        elif whole and (piece := _SLICE.fullmatch(line.rstrip())):
            if gpus[-1] is whole:
                gpus.pop()
            gpus.append(Gpu(piece["uuid"], f"{whole.name} MIG {piece['profile']}", piece["uuid"]))
    return gpus


def gpu_shown() -> bool:
    """Return whether this process is shown a GPU: by NVIDIA's driver, or as a device that it may
    open (EPERM: a scheduler's cgroup gave it to another job).
    """
    if nvidia_gpus():
        return True
    for device in DEV.glob("nvidia[0-9]*"):
        try:
            os.close(os.open(device, os.O_RDONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EPERM, errno.ENXIO, errno.ENODEV):
                continue
        return True
    return False


def cpu_name() -> str:
    """Return the name of the processor."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            return next(
                line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
            )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
