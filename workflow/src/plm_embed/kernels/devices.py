"""The device and the precision that a job computes with, and the hardware that a node has.

What is found without torch needs none: NVIDIA's GPUs and the processor.
"""

import errno
import math
import os
import platform
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from plm_embed.accuracy import REFUSED, Roundings, check_dtype, rounding_of
from plm_embed.errors import ConfigError, DeviceError, device_lost, out_of_memory
from plm_embed.fingerprint import ComputeDtype

if TYPE_CHECKING:
    import torch

NO_GPU = ("", "-1", "NoDevFiles")
"""Values of CUDA_VISIBLE_DEVICES that hide GPUs from a process; the last is SLURM's."""
SECONDS_TO_COMPUTE = 3 * 3600.0
"""Time after which work queued on a GPU never ends: the longest batches take minutes."""
SECONDS_BETWEEN_LOOKS = 0.0005
"""Pause between looks at a GPU that computes: short beside a batch, and another is queued
meanwhile.
"""
ALONE = threading.Lock()
"""Held while torch's settings, which are those of the whole process, are those of one model."""
DEV = Path("/dev")
CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc/self")
_GPU = re.compile(r"GPU (?P<index>\d+): (?P<name>.+) \(UUID: (?P<uuid>[^)]+)\)")
_SLICE = re.compile(r" +MIG (?P<profile>\S+) +Device +\d+: \(UUID: (?P<uuid>[^)]+)\)")
_OLDER = "install the torch for older drivers (docs/laptop.md)"
_AGAIN = "run it again, on another device if this one {} again (see dmesg for Xid)"


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
    command = [tool, "--list-gpus"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except subprocess.SubprocessError:
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
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    name = re.search(r"^model name[ \t]*:[ \t]*(.*\S)", text, re.MULTILINE)
    return name[1] if name else platform.processor() or platform.machine()


def cores() -> int:
    """Return how many CPU cores this process may use: those it may run on, or fewer, where its
    cgroup or one around it (of a container, or of a scheduler) has less time than they have.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    count = len(os.sched_getaffinity(0))
    with suppress(OSError):
        for line in (PROC / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            root, names = CGROUPS, ["cpu.max"]
            if controllers:  # version 1, where a quota of -1 is none
                root, names = CGROUPS / "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
                if "cpu" not in controllers.split(","):
                    continue
            inside = Path(path.lstrip("/"))
            for group in (inside, *inside.parents):
                with suppress(OSError, ValueError):  # a ValueError for "max"
                    texts = [(root / group / name).read_text() for name in names]
                    quota, period = map(int, " ".join(texts).split())
                    count = min(count, math.ceil(quota / period) if quota > 0 else count)
    return count


def device_name(device: "torch.device") -> str:
    """Return the name of a GPU, or of the processor."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


def choose_device(setting: Literal["auto", "cpu", "cuda"]) -> "torch.device":
    """`auto` is the visible CUDA device if there is one, and the CPU where no GPU is shown.

    DeviceError when a GPU is wanted, given by CUDA_VISIBLE_DEVICES as schedulers do, or shown by
    the node, and cannot be used: a job beside a GPU that computes on the CPU would waste both.
    ConfigError where no attempt could help: a torch that has no code for the GPU, or GPUs that are
    hidden.
    """
    import torch

    if setting == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = visible is not None and visible.strip() in NO_GPU
    shown = not hidden and gpu_shown()
    if setting == "auto" and (hidden or (visible is None and not shown)):
        return torch.device("cpu")
    cuda, hip = torch.version.cuda, torch.version.hip
    if not shown:
        cause, remedy = "this job is shown none", "request a GPU and install requirements/cuda.txt"
    elif cuda:
        cause, remedy = "torch counts no GPU", "install a driver that fits this torch"
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
        except (RuntimeError, AssertionError) as error:
            cause = str(error).strip().split("\n", 1)[0].split(". ", 1)[0].rstrip(".")
    else:
        cause = "this torch is not made for the NVIDIA GPU here"
        remedy = "install requirements/cuda.txt in an empty environment (docs/laptop.md)"
    if cuda:
        remedy += f", or, if the driver is too old for CUDA {cuda}, {_OLDER}"
    build = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPU only"
    text = (
        f"no usable CUDA device on {socket.gethostname()}: {cause} (torch {torch.__version__}: "
        f"{build}; CUDA_VISIBLE_DEVICES: {'not set' if visible is None else visible})\n"
        f"{remedy}; to compute on the CPU, set device: cpu (in Python device='cpu')"
    )
    usable = (cuda or (hip and not shown)) and visible not in ("", "-1")
    raise DeviceError(text) if usable else ConfigError(text, key="device")


def choose_dtype(
    setting: ComputeDtype | Literal["auto"],
    device: "torch.device",
    roundings: Roundings | None = None,
    model: str = "",
) -> ComputeDtype:
    """Return the dtype to compute in. `auto` is bfloat16 on compute capability 8.0 or newer, or the
    next one that is near enough with the weights of a `model`, by their `roundings`; else float32.

    ConfigError for tfloat32 elsewhere, for bfloat16 on older GPUs, which lack it, for int8 but on
    CPUs that can do it, and for a dtype that is too coarse for the weights.
    """
    import torch

    from plm_embed.kernels.linear import int8_problem

    cuda = device.type == "cuda"
    modern = cuda and torch.cuda.get_device_capability(device) >= (8, 0)
    if setting == "auto":
        faster: tuple[ComputeDtype, ...] = ("bfloat16", "tfloat32") if modern else ()
        near = (name for name in faster if rounding_of(name, roundings).cosine >= REFUSED)
        return next(near, "float32")
    refused, remedy = "", "set float32, or auto"
    if (setting == "tfloat32" and not modern) or (setting == "bfloat16" and cuda and not modern):
        refused = f"needs a GPU of compute capability 8.0 or later, not {device_name(device)}"
        if setting == "bfloat16":
            remedy = "set float32 or float16, or auto"
    elif setting == "int8" and (why := "it is for CPUs" if cuda else int8_problem()):
        refused = f"cannot be used on {device_name(device)}: {why}"
        if cuda:
            remedy = "set device: cpu, or another dtype"
    if refused:
        key = "embedding.compute_dtype"
        raise ConfigError(f"{key}: {setting} {refused}\n{remedy}", key=key)
    check_dtype(setting, roundings, model)
    return setting


def set_up(device: "torch.device", threads: int, setting: ComputeDtype | Literal["auto"]) -> None:
    """Fix what would otherwise let the numbers depend on the machine's settings: threads, TF32,
    half-precision sums.
    """
    import torch

    torch.set_num_threads(threads)
    if device.type == "cuda":
        matmul = torch.backends.cuda.matmul
        matmul.allow_tf32 = setting == "tfloat32"
        matmul.allow_fp16_reduced_precision_reduction = False
        matmul.allow_bf16_reduced_precision_reduction = False


@contextmanager
def as_set_up(
    device: "torch.device", threads: int | None, setting: ComputeDtype | Literal["auto"]
) -> Iterator[None]:
    """`set_up` for the time of a block, which no other such block shares: what torch is told holds
    for the whole process. `threads` None leaves torch's number, unless a cgroup has
    less time.
    """
    import torch

    matmul = torch.backends.cuda.matmul
    names = [f"allow_{half}_reduced_precision_reduction" for half in ("fp16", "bf16")]
    with ALONE:
        try:
            held: dict[str, Any] = {"allow_tf32": matmul.allow_tf32}
        except RuntimeError:  # once the newer name was set, the older one cannot be read
            held = {"fp32_precision": matmul.fp32_precision}
        held |= {name: getattr(matmul, name) for name in names}
        before = torch.get_num_threads()
        set_up(device, threads or min(before, cores()), setting)
        try:
            yield
        finally:
            torch.set_num_threads(before)
            for name, value in held.items():
                setattr(matmul, name, value)


def check(device: "torch.device") -> None:
    """Allocate and multiply on the device; raise DeviceError when it cannot, or when the product is
    wrong.
    """
    import torch

    size = 512
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    named = f"{f'{device.type} {visible}'.strip()} on {socket.gethostname()}"
    try:
        ones = torch.ones(size, size, device=device)
        total = float((ones @ ones).sum())  # small powers of two: exact in any precision and order
    except (RuntimeError, torch.cuda.DeferredCudaCallError) as error:  # the latter: MIG
        no_code = "no kernel image is available" in str(error)
        hint = f"\n{_OLDER}: this one is not built for this GPU" if no_code else ""
        raise DeviceError(f"{named} does not compute: {error}{hint}") from error
    if total != size**3:
        raise DeviceError(f"{named} multiplies wrongly: {total:.0f}, not {size**3}")


def synchronize(device: "torch.device") -> None:
    """Wait for a GPU; what failed on it is raised here."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def wait(event: "torch.cuda.Event") -> None:
    """Wait until the device has come to the event; DeviceError when it hangs, for which CUDA waits
    without end.
    """
    # looks are counted, not seconds, which pass for a suspended job too
    for _ in range(round(SECONDS_TO_COMPUTE / SECONDS_BETWEEN_LOOKS)):
        if event.query():  # type: ignore[no-untyped-call]
            return
        time.sleep(SECONDS_BETWEEN_LOOKS)
    hours = SECONDS_TO_COMPUTE / 3600
    raise DeviceError(
        f"the GPU {os.environ.get('CUDA_VISIBLE_DEVICES', '')} of {socket.gethostname()} hangs: "
        f"a batch was not done within {hours:.0f} hours\n{_AGAIN.format('hangs')}"
    )


def too_small(device: "torch.device") -> DeviceError:
    """Return the error for a device without the memory for the model and the smallest batch."""
    return DeviceError(
        f"{device_name(device)} on {socket.gethostname()} has too little free memory for this "
        "model\nend what else uses it, or take a larger GPU"
    )


def raise_others(error: Exception, device: "torch.device") -> None:
    """Raise an error again unless it is about memory; DeviceError where it leaves the device
    unusable for this process.
    """
    if device.type == "cuda" and device_lost(error):
        reason = str(error).strip().splitlines()[0]
        raise DeviceError(
            f"CUDA error: the GPU {os.environ.get('CUDA_VISIBLE_DEVICES', '')} of "
            f"{socket.gethostname()} failed: {reason}\n"
            f"what was finished is in the store; {_AGAIN.format('fails')}"
        ) from error
    if not out_of_memory(error):
        raise error
