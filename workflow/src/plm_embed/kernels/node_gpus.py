"""The GPUs that this node shows, found without torch: by nvidia-smi, and by the devices that this
process may open.
"""

import errno
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Literal, NamedTuple

DEV = Path("/dev")
PCI = Path("/sys/bus/pci/devices")
AMD_BYTES = 8 << 30
"""Memory of the smallest AMD GPU that ROCm supports; integrated graphics set less aside."""
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
    """The GPUs that NVIDIA's driver lists, and of those that are cut into slices the slices."""
    gpus: list[Gpu] = []
    whole = None
    for line in ask_nvidia("--list-gpus"):
        if gpu := _GPU.fullmatch(line.rstrip()):
            whole = Gpu(gpu["index"], gpu["name"], gpu["uuid"])
            gpus.append(whole)
        elif whole and (piece := _SLICE.fullmatch(line.rstrip())):
            if gpus[-1] is whole:
                gpus.pop()
            gpus.append(Gpu(piece["uuid"], f"{whole.name} MIG {piece['profile']}", piece["uuid"]))
    return gpus


def ask_nvidia(*words: str) -> list[str]:
    """The lines that nvidia-smi answers; none without an answer."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        answer = subprocess.run(
            [tool, *words], capture_output=True, text=True, check=False, timeout=60
        )
    except subprocess.TimeoutExpired:
        return []
    return answer.stdout.strip().splitlines() if answer.returncode == 0 else []


def shown() -> Literal["", "NVIDIA", "AMD", "Intel"]:
    """Return the vendor of the GPU that this process is shown, if any. Integrated graphics are
    none.
    """
    if nvidia_gpus() or any(map(_is_open, DEV.glob("nvidia[0-9]*"))):
        return "NVIDIA"
    folders = sorted(PCI.glob("*"))
    if _is_open(DEV / "kfd") and any(map(_is_amd, folders)):
        return "AMD"
    if any(
        _is_open(DEV / "dri" / node.name)
        for folder in filter(_is_intel, folders)
        for node in (folder / "drm").glob("renderD*")
    ):
        return "Intel"
    return ""


def _is_open(device: Path) -> bool:
    """Return whether a device is there and open to this job (a scheduler's cgroup: EPERM)."""
    try:
        os.close(os.open(device, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.EPERM, errno.ENXIO, errno.ENODEV)
    return True


def _is_amd(folder: Path) -> bool:
    """Return whether a PCI device is a GPU of AMD with memory of its own."""
    if _read(folder / "vendor") != "0x1002":
        return False
    memory = _read(folder / "mem_info_vram_total")
    return memory.isdecimal() and int(memory) >= AMD_BYTES


def _is_intel(folder: Path) -> bool:
    """Return whether a PCI device is a GPU of Intel, and none on the processor's own bus."""
    return (
        not folder.name.startswith("0000:00:")
        and _read(folder / "vendor") == "0x8086"
        and _read(folder / "class").startswith("0x03")
    )


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
