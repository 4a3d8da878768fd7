"""Attention within each of several packed sequences, by the best kernel that a device has for a
dtype.

Every kernel here computes a sequence's rows by operations whose shapes and order depend on that
sequence alone, so its bits do not depend on its company. `math` is the exception: it serves where
torch has nothing better.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from plm_embed.errors import PassingError, out_of_memory
from plm_embed.kernels import compiled_attention, devices, torch_attention
from plm_embed.kernels.elementwise import fallback, rotate
from plm_embed.kernels.packed import Distances, Packed

log = logging.getLogger(__name__)
IN_C = ("avx512_f", "avx512_bw", "avx512_dq", "avx512_vl", "fma3")
"""Features that `compiled_attention.FLAGS` let a C compiler use, in torch's words."""

Attend = Callable[[Tensor, Packed], Tensor]
"""qkv (T, 3, H, d), which is used up, and the sequences in it -> (T, D), contiguous; zero in the
rows behind the last sequence.
"""


@dataclass(frozen=True)
class Kernel:
    """One way to compute attention.

    label: its part of the engine's name in the fingerprint. Kernels of a GPU that round otherwise
    have different labels; those of a CPU have none, so that vectors do not depend on its kind or on
    a compiler by more than the dtype's rounding. name: for logs and completion records. rotates: it
    rotates queries and keys on its way (`Packed.rotary`), so that this is no pass of its own.
    """

    label: str
    name: str
    attend: Attend
    rotates: bool = False


@cache
def choose(
    device: torch.device, dtype: torch.dtype, heads: int, width: int, by_distance: bool = False
) -> Kernel:
    """The first kernel that works for `heads` of `width`: each is tried on the device, against
    plain arithmetic. `by_distance`: it has to add biases.

    Where a better one did not work, the log and the name of one of another kind tell why.
    """
    better: dict[str, str] = {}
    for kernel in _candidates(device, dtype, by_distance):
        problem = _problem(kernel, device, dtype, heads, width, by_distance)
        if not problem:
            if not better or kernel.label in better:
                return kernel
            return replace(kernel, name=fallback(kernel.name, next(iter(better.values()))))
        log.warning("attention: %s is not used: %s", kernel.name, problem)
        better.setdefault(kernel.label, f"{kernel.name}: {problem}")
    raise RuntimeError(f"no attention kernel works on {device} in {dtype}")


def _candidates(
    device: torch.device, dtype: torch.dtype, by_distance: bool = False
) -> Iterator[Kernel]:
    half = dtype != torch.float32
    if device.type == "cpu":
        # an older torch does not tell what the processor can do
        features: Callable[[], Mapping[str, Any]] = getattr(torch.cpu, "get_capabilities", dict)
        can = features().get
        by_unit = can("amx_bf16")  # products of bfloat16, which torch's fused kernel uses
        multiplies = can("avx512_bf16") and not by_unit
        if all(map(can, IN_C)) and (not half or (dtype == torch.bfloat16 and multiplies)):
            yield Kernel("", "C with AVX-512", compiled_attention.attend, rotates=True)
        if dtype == torch.bfloat16 and not by_unit:
            # torch's fused kernel runs it at the speed of fp32; matrix products run it at its own
            yield Kernel("", "products of cache-sized blocks", torch_attention.blocked)
        if half and not by_distance:
            yield Kernel("", "torch SDPA, keys in whole vectors", torch_attention.aligned)
        else:
            yield Kernel("", "torch SDPA", torch_attention.sdpa)
        return
    if half and torch.cuda.get_device_capability(device) >= (8, 0):
        if by_distance:  # FlashAttention adds none
            yield Kernel("distances", "Triton, biases by distance", _by_distance)
        else:
            yield from _variable_length()
    for backend, label in (
        (SDPBackend.EFFICIENT_ATTENTION, "efficient"),
        (SDPBackend.MATH, "math"),
    ):
        yield Kernel(
            label,
            f"torch SDPA ({label}), equal lengths together",
            partial(torch_attention.sdpa_by, backend),
        )


def _variable_length() -> Iterator[Kernel]:
    """Kernels that take packed sequences as they are. All are FlashAttention, hence one label."""
    torchs = partial(torch_attention.varlen, torch_attention.flash)
    yield Kernel("varlen", "torch FlashAttention", torchs)
    try:
        from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]
    except Exception as error:  # an extension built for another torch fails in many ways
        log.debug("flash_attn: %s", error)
    else:
        yield Kernel(
            "varlen", "flash_attn", partial(torch_attention.varlen, flash_attn_varlen_func)
        )


def _by_distance(qkv: Tensor, packed: Packed) -> Tensor:
    """The package's own kernel that adds biases, where there is Triton."""
    from plm_embed.kernels import triton_attention

    out: Tensor = triton_attention.attend(qkv, packed)
    return out


def _problem(  # noqa: PLR0917
    kernel: Kernel, device: torch.device, dtype: torch.dtype, heads: int, width: int,
    by_distance: bool = False,
) -> str:  # fmt: skip
    """Return why a kernel does not serve; empty when it does."""
    lengths = (40, 3, 129)
    random = torch.Generator().manual_seed(1)
    total = sum(lengths) + 20
    qkv = torch.randn((total, 3, heads, width), generator=random).to(dtype)
    table = torch.randn((heads, 2 * max(lengths) - 1), generator=random)
    exact = Packed(lengths, torch.tensor([0, 40, 43, 172], dtype=torch.int32))
    places = Packed(lengths, exact.boundaries.to(device))
    if by_distance:
        exact = replace(exact, distances=Distances(table, width**-0.5))
        places = replace(places, distances=Distances(table.to(device), width**-0.5))
    with torch.inference_mode():
        plain = qkv.to(torch.float32, copy=True)
        if kernel.rotates and width % 2 == 0:
            angles = torch.rand((total, width // 2), generator=random)
            places = replace(places, rotary=(angles.cos(), angles.sin()))
            rotate(plain, angles.cos(), angles.sin())
        expected = torch_attention.sdpa(plain, exact)
        try:
            result = kernel.attend(qkv.to(device), places).float().cpu()
        except PassingError:  # says nothing about the kernel, and another one has other bits
            raise
        except Exception as error:  # Triton's compiler and launcher raise many kinds
            if out_of_memory(error):  # says nothing about the kernel
                raise
            devices.synchronize(device)  # raises what it says on a device that is lost
            return f"{type(error).__name__}: {error}".splitlines()[0]
    worst = float(((result - expected).abs() / (1 + expected.abs())).max())
    return (
        ""
        if worst <= (1e-4 if dtype == torch.float32 else 0.02)
        else f"its result is off by {worst:.2g}"
    )
