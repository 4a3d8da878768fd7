"""The device and the precision that a job computes with."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from plm_embed.errors import (
    ConfigError,
    DeviceError,
    device_lost,
)
from plm_embed.fingerprint import ComputeDtype
from plm_embed.io.threads import cores
from plm_embed.kernels import hardware
from plm_embed.kernels.linear import int8_problem

NO_GPU = ("", "-1", "NoDevFiles")
"""Values of CUDA_VISIBLE_DEVICES that hide GPUs from a process; the last is SLURM's."""
_NO_CODE = "no kernel image is available"
_OLDER = "install the torch for older drivers (docs/laptop.md)"
SECONDS_TO_COMPUTE = 3 * 3600.0
"""Time after which work queued on a GPU never ends: the longest batches take minutes."""
SECONDS_BETWEEN_LOOKS = 0.0005
"""Pause between looks at a GPU that computes: short beside a batch, and another is queued
meanwhile.
"""
ALONE = threading.Lock()
"""Held while torch's settings, which are those of the whole process, are those of one model."""


def choose_device(setting: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """`auto` is the visible CUDA device if there is one, and the CPU where no GPU is shown.

    DeviceError when a GPU is wanted, given by CUDA_VISIBLE_DEVICES as schedulers do, or shown by
    the node, and cannot be used: a job beside a GPU that computes on the CPU would waste both.
    ConfigError where no attempt could help: a torch that has no code for the GPU, or GPUs that are
    hidden.
    """
    if setting == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = visible is not None and visible.strip() in NO_GPU
    shown = not hidden and hardware.gpu_shown()
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


def choose_dtype(setting: ComputeDtype | Literal["auto"], device: torch.device) -> ComputeDtype:
    """`auto` is bfloat16 on compute capability 8.0 or newer, else float32. ConfigError for tfloat32
    elsewhere, for bfloat16 on older GPUs, which lack it, and for int8 but on CPUs that can do it.
    """
    cuda = device.type == "cuda"
    modern = cuda and torch.cuda.get_device_capability(device) >= (8, 0)
    if (setting == "tfloat32" and not modern) or (setting == "bfloat16" and cuda and not modern):
        choice = "float32" if setting == "tfloat32" else "float32 or float16"
        raise ConfigError(
            f"embedding.compute_dtype: {setting} needs a GPU of compute capability 8.0 or later, "
            f"not {device_name(device)}\n"
            f"set {choice}, or auto",
            key="embedding.compute_dtype",
        )
    if setting == "int8" and (cuda or int8_problem()):
        remedy = "set device: cpu, or another dtype" if cuda else "set float32, or auto"
        raise ConfigError(
            f"embedding.compute_dtype: int8 cannot be used on {device_name(device)}: "
            f"{'it is for CPUs' if cuda else int8_problem()}\n{remedy}",
            key="embedding.compute_dtype",
        )
    if setting == "auto":
        return "bfloat16" if modern else "float32"
    return setting


def set_up(device: torch.device, threads: int, setting: ComputeDtype | Literal["auto"]) -> None:
    """Fix what would otherwise let the numbers depend on the machine's settings: threads, TF32,
    half-precision sums.
    """
    torch.set_num_threads(threads)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = setting == "tfloat32"
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


@contextmanager
def as_set_up(
    device: torch.device, threads: int | None, setting: ComputeDtype | Literal["auto"]
) -> Iterator[None]:
    """`set_up` for the time of a block, which no other such block shares: what torch is told holds
    for the whole process. `threads` None leaves torch's number, unless a cgroup has
    less time.
    """
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


def check(device: torch.device) -> None:
    """Allocate and multiply on the device; raise DeviceError when it cannot, or when the product is
    wrong.
    """
    size = 512
    named = (
        f"{device.type} {os.environ.get('CUDA_VISIBLE_DEVICES', '')}".strip()
        + f" on {socket.gethostname()}"
    )
    try:
        ones = torch.ones(size, size, device=device)
        total = float((ones @ ones).sum())  # small powers of two: exact in any precision and order
    except (RuntimeError, torch.cuda.DeferredCudaCallError) as error:  # the latter: MIG
        hint = f"\n{_OLDER}: this one is not built for this GPU" if _NO_CODE in str(error) else ""
        raise DeviceError(f"{named} does not compute: {error}{hint}") from error
    if total != size**3:
        raise DeviceError(f"{named} multiplies wrongly: {total:.0f}, not {size**3}")


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else hardware.cpu_name()


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def wait(event: torch.cuda.Event) -> None:
    """Wait until the device has come to the event; DeviceError when it hangs, for which CUDA waits
    without end.
    """
    # looks are counted, not seconds, which pass for a suspended job too
    for _ in range(round(SECONDS_TO_COMPUTE / SECONDS_BETWEEN_LOOKS)):
        if event.query():  # type: ignore[no-untyped-call]
            return
        time.sleep(SECONDS_BETWEEN_LOOKS)
    raise DeviceError(
        f"the GPU {os.environ.get('CUDA_VISIBLE_DEVICES', '')} of {socket.gethostname()} hangs: "
        f"a batch was not done within {SECONDS_TO_COMPUTE / 3600:.0f} hours\n"
        "run it again, on another device if this one hangs again (see dmesg for Xid)"
    )


def too_small(device: torch.device) -> DeviceError:
    """Return the error for a device without the memory for the model and the smallest batch."""
    return DeviceError(
        f"{device_name(device)} on {socket.gethostname()} has too little free memory for this "
        "model\nend what else uses it, or take a larger GPU"
    )


def failure(error: Exception, device: torch.device) -> DeviceError | None:
    """Return the error to raise when `error` leaves the device unusable for this process; else
    None.
    """
    if device.type != "cuda" or not device_lost(error):
        return None
    reason = str(error).strip().splitlines()[0]
    return DeviceError(
        f"CUDA error: the GPU {os.environ.get('CUDA_VISIBLE_DEVICES', '')} of "
        f"{socket.gethostname()} failed: {reason}\n"
        "what was finished is in the store; run it again, on another device if this one fails "
        "again (see dmesg for Xid)"
    )
