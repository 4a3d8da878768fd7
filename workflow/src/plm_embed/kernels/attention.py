"""Attention within each of several packed sequences, by the best kernel that a device has for a
dtype.

Every kernel here computes a sequence's rows by operations whose shapes and order depend on that
sequence alone, so its bits do not depend on its company. `math` is the exception: it serves where
torch has nothing better. Shapes: T tokens, H heads of d, sequences of L tokens.
"""

import ctypes
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from plm_embed.accuracy import FALLBACK
from plm_embed.errors import PassingError, out_of_memory
from plm_embed.io import compiled
from plm_embed.kernels import devices
from plm_embed.kernels.elementwise import PLAIN, Rotary

log = logging.getLogger(__name__)
IN_C = ("avx512_f", "avx512_bw", "avx512_dq", "avx512_vl", "fma3")
"""Features of a processor that the C code uses, in torch's words."""
FLAGS = "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-ffp-contract=fast"
WIDEST = 256
"""Numbers of a head in C: blocks of wider ones leave the cache."""
KEYS = 16
"""fp32 numbers in the largest vector of a CPU."""
SCORE_BYTES = 1 << 20
"""Scores alive at a time on a CPU: what its cache holds."""
MASK_BYTES = 1 << 28
"""Biases written out at a time on a GPU, whose kernels read them from memory."""
_FLASH = torch.ops.aten._flash_attention_forward
_UNSPLIT: dict[str, Any] = {
    argument.name: 1
    for argument in _FLASH.default._schema.arguments
    if argument.name == "num_splits"
}
"""Argument that keeps keys of a sequence in one block: splits would depend on the batch. Where
torch cannot be told, it never splits.
"""


@dataclass(frozen=True)
class Distances:
    """Biases that are added to scores by the distance of key and query, alike for all sequences.

    table: (H, 2 M - 1) fp32, from distance -(M - 1) (key - query) on, for sequences of at most M.
    scale: what the scores are multiplied by before.
    """

    table: Tensor
    scale: float

    def windows(self, length: int) -> Tensor:
        """(H, L, L), a view: row w has the biases of query L - 1 - w.

        As each row is the one before moved by one, the queries in reverse need no other memory than
        the table.
        """
        middle = self.table.shape[1] // 2
        return self.table[:, middle - length + 1 : middle + length].unfold(1, length, 1)


@dataclass(frozen=True)
class Packed:
    """Places of the sequences in the rows: `lengths`, and on the device `boundaries` (n + 1,)
    int32, 0 first.
    """

    lengths: tuple[int, ...]
    boundaries: Tensor
    distances: Distances | None = None
    rotary: Rotary | None = None
    """Angles for kernels that rotate queries and keys themselves."""


Attend = Callable[[Tensor, Packed], Tensor]
"""qkv (T, 3, H, d), contiguous, which is used up, and the sequences in it -> (T, H d), contiguous;
zero in the rows behind the last sequence.
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
    for kernel in candidates(device, dtype, by_distance):
        wrong = problem(kernel, device, dtype, heads, width, by_distance=by_distance)
        if not wrong and (not better or kernel.label in better):
            return kernel
        if not wrong:
            reason = next(iter(better.values()))
            return replace(kernel, name=f"{kernel.name} ({FALLBACK}{reason})")
        log.warning("attention: %s is not used: %s", kernel.name, wrong)
        better.setdefault(kernel.label, f"{kernel.name}: {wrong}")
    raise RuntimeError(f"no attention kernel works on {device} in {dtype}")


def candidates(
    device: torch.device, dtype: torch.dtype, by_distance: bool = False
) -> Iterator[Kernel]:
    """Yield the kernels that may serve a device, the best first."""
    half = dtype != torch.float32
    if device.type == "cpu":
        # an older torch does not tell what the processor can do
        features: Callable[[], Mapping[str, Any]] = getattr(torch.cpu, "get_capabilities", dict)
        can = features().get
        by_unit = can("amx_bf16")  # products of bfloat16, which torch's fused kernel uses
        multiplies = can("avx512_bf16") and not by_unit
        if all(map(can, IN_C)) and (not half or (dtype == torch.bfloat16 and multiplies)):
            yield Kernel("", "C with AVX-512", in_c, rotates=True)
        if dtype == torch.bfloat16 and not by_unit:
            # torch's fused kernel runs it at the speed of fp32; matrix products run it at its own
            yield Kernel("", "products of cache-sized blocks", blocked)
        if half and not by_distance:
            yield Kernel("", "torch SDPA, keys in whole vectors", aligned)
        else:
            yield Kernel("", "torch SDPA", sdpa)
        return
    if half and torch.cuda.get_device_capability(device) >= (8, 0):
        if by_distance:  # FlashAttention adds none
            yield Kernel("distances", "Triton, biases by distance", _by_distance)
        else:  # both are FlashAttention, hence one label
            yield Kernel("varlen", "torch FlashAttention", partial(varlen, flash))
            try:
                from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]
            except Exception as error:  # an extension built for another torch fails in many ways
                log.debug("flash_attn: %s", error)
            else:
                yield Kernel("varlen", "flash_attn", partial(varlen, flash_attn_varlen_func))
    # not torch's own choice: its FlashAttention splits keys by how many sequences share the call
    for backend, label in (
        (SDPBackend.EFFICIENT_ATTENTION, "efficient"),
        (SDPBackend.MATH, "math"),
    ):
        name = f"torch SDPA ({label}), equal lengths together"
        yield Kernel(label, name, sdpa_kernel(backend)(sdpa))


def problem(
    kernel: Kernel,
    device: torch.device,
    dtype: torch.dtype,
    heads: int,
    width: int,
    *,
    by_distance: bool = False,
) -> str:
    """Return why a kernel does not serve; empty when it does."""
    lengths, total = (40, 3, 129), 192
    boundaries = torch.tensor((0, 40, 43, 172), dtype=torch.int32)
    random = torch.Generator().manual_seed(1)
    qkv = torch.randn((total, 3, heads, width), generator=random).to(dtype)
    table = torch.randn((heads, 2 * max(lengths) - 1), generator=random)
    angles = torch.rand((total, width // 2), generator=random)
    distances = Distances(table, width**-0.5) if by_distance else None
    on_cpu = Packed(lengths, boundaries, distances)
    distances = distances and replace(distances, table=table.to(device))
    on_device = Packed(lengths, boundaries.to(device), distances)
    plain = qkv.to(torch.float32, copy=True)
    with torch.inference_mode():
        if kernel.rotates and width % 2 == 0:
            on_device = replace(on_device, rotary=(angles.cos(), angles.sin()))
            PLAIN.query_key(plain, None, on_device.rotary)
        expected = sdpa(plain, on_cpu)
        try:
            result = kernel.attend(qkv.to(device), on_device).float().cpu()
        except PassingError:  # says nothing about the kernel, and another one has other bits
            raise
        except Exception as error:  # Triton's compiler and launcher raise many kinds
            if out_of_memory(error):  # says nothing about the kernel
                raise
            devices.synchronize(device)  # raises what it says on a device that is lost
            return f"{type(error).__name__}: {error}".splitlines()[0]
    worst = float(((result - expected).abs() / (1 + expected.abs())).max())
    bound = 1e-4 if dtype == torch.float32 else 0.02
    return "" if worst <= bound else f"its result is off by {worst:.2g}"


def in_c(qkv: Tensor, packed: Packed) -> Tensor:
    """Attention on processors with AVX-512, in float32 or bfloat16: torch's kernel takes its
    products from MKL and bmm, which have none for heads this narrow.

    A thread takes every n-th head of all sequences, so bits depend neither on the number of threads
    nor on a sequence's company. RuntimeError when the code cannot be compiled; ValueError for heads
    that it does not compute.
    """
    heads, width = qkv.shape[2:]
    half = qkv.dtype == torch.bfloat16
    if width > WIDEST or (half and width % 2):
        raise ValueError(f"heads of width {width}")
    options = f"-DWIDTH={width}", *(("-DHALF", "-mavx512bf16") if half else ())
    library = compiled.load(Path(__file__).with_suffix(".c"), *FLAGS, *options)
    out = qkv.new_empty((len(qkv), heads * width))
    out[sum(packed.lengths) :] = 0
    lengths = (ctypes.c_int32 * len(packed.lengths))(*packed.lengths)
    scale, middle, table = width**-0.5, 0, None
    if packed.distances is not None:
        scale, table = packed.distances.scale, packed.distances.table
        middle = table.shape[1] // 2
        if max(packed.lengths) > middle + 1:
            raise ValueError("a sequence is longer than the table of biases by distance")
    tensors = (qkv, out, *(packed.rotary or (None, None)), table)
    assert all(tensor is None or tensor.is_contiguous() for tensor in tensors)
    places = [ctypes.c_void_p(None if part is None else part.data_ptr()) for part in tensors]
    shape = lengths, len(lengths), heads, ctypes.c_float(scale)
    threads = min(torch.get_num_threads(), heads * len(lengths))
    cores: set[int] = set()  # OpenMP may bind this thread, and thus those that it starts, to one
    for task in Path("/proc/self/task").glob("*") if threads > 1 else ():
        with suppress(OSError):  # it has ended
            cores |= os.sched_getaffinity(int(task.name))

    def attend(turn: int) -> int:
        if turn and cores:
            with suppress(OSError):
                os.sched_setaffinity(0, cores)
        failed: int = library.attend(*places[:2], *shape, *places[2:], middle, turn, threads)
        return failed

    # threads of its own each time: a tenth of a millisecond, and nothing that a fork would lack
    with ThreadPoolExecutor(threads) as pool:
        others = pool.map(attend, range(1, threads))
        if any([attend(0), *others]):
            raise RuntimeError("out of memory for the keys and values of a head")  # as torch's
    return out


def sdpa(qkv: Tensor, packed: Packed, vectors: int = 1) -> Tensor:
    """torch's scaled_dot_product_attention, without a mask but for biases: on a GPU neighbors of
    equal length share one call.

    On a CPU each has its own: of heads of width 8, two threads give other bits to sequences that
    share one (torch 2.13, odd lengths from 9 to 31). Keys are filled up to multiples of `vectors`.
    """
    out = qkv.new_empty((len(qkv), qkv[0, 0].numel()))
    start = 0
    runs = ((length, len(list(run))) for length, run in groupby(packed.lengths))
    for length, count in runs if qkv.is_cuda else ((length, 1) for length in packed.lengths):
        stop = start + count * length
        query, key, value = (
            qkv[start:stop].view(count, length, *qkv.shape[1:]).permute(2, 0, 3, 1, 4)
        )  # (n, H, L, d)
        if packed.distances is not None:
            result = _biased(query, key, value, packed.distances)
        else:
            mask = None
            if more := -length % vectors:
                key, value = (F.pad(part, (0, 0, 0, more)) for part in (key, value))
                mask = qkv.new_zeros(length + more)
                mask[length:] = -torch.inf
                mask = mask.expand(1, 1, length, length + more)
            result = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        out[start:stop] = result.transpose(1, 2).reshape(stop - start, -1)
        start = stop
    out[start:] = 0
    return out


aligned = partial(sdpa, vectors=KEYS)
"""`sdpa` on a CPU, with masked keys that fill up the last vector: torch takes the scores of one
that is not full one by one, a third of its time at 300 keys.
"""


def _biased(query: Tensor, key: Tensor, value: Tensor, distances: Distances) -> Tensor:
    """Attention of (n, H, L, d) with biases; on a GPU by blocks of queries, whose biases are
    written out.
    """
    heads, length = query.shape[1:3]
    query = query.flip(2)  # as the windows are ordered
    windows = distances.windows(length)
    attend = partial(F.scaled_dot_product_attention, scale=distances.scale)
    if not query.is_cuda:
        return attend(query, key, value, attn_mask=windows[None]).flip(2)
    rows = max(1, MASK_BYTES // (heads * length * query.element_size()))
    stored = -(-length // 16) * 16  # rows of the mask begin where the kernel can read them
    parts = []
    for first in range(0, length, rows):
        block = windows[:, first : first + rows]
        mask = query.new_empty((*block.shape[:2], stored))[..., :length].copy_(block)
        mask = mask.expand(len(query), *mask.shape)
        parts.append(attend(query[:, :, first : first + rows], key, value, attn_mask=mask))
    return torch.cat(parts, 2).flip(2)


def blocked(qkv: Tensor, packed: Packed) -> Tensor:
    """Matrix products and softmax over blocks of heads, or of one head's queries, whose scores stay
    in the cache; for CPUs whose products of the dtype are fast.
    """
    out = qkv.new_empty((len(qkv), qkv[0, 0].numel()))
    start = 0
    for length in packed.lengths:
        stop = start + length
        query, key, value = qkv[start:stop].permute(1, 2, 0, 3).contiguous()  # (H, L, d)
        windows = None
        if packed.distances is None:
            query *= query.shape[-1] ** -0.5
        else:
            query = query.flip(1).mul_(packed.distances.scale)
            windows = packed.distances.windows(length)
        rows = max(1, SCORE_BYTES // (length * query.element_size()))
        heads = max(1, rows // length)
        result = torch.empty_like(query)
        for head in range(0, len(query), heads):
            group = slice(head, head + heads)
            for first in range(0, length, rows):
                scores = torch.bmm(query[group, first : first + rows], key[group].transpose(1, 2))
                if windows is not None:
                    scores = scores.float().add_(windows[group, first : first + rows])
                weights = torch.softmax(scores, -1).to(value.dtype)
                result[group, first : first + rows] = torch.bmm(weights, value[group])
        if windows is not None:
            result = result.flip(1)
        out[start:stop].view(length, len(query), -1).copy_(result.transpose(0, 1))
        start = stop
    out[start:] = 0
    return out


def varlen(function: Callable[..., Any], qkv: Tensor, packed: Packed) -> Tensor:
    """FlashAttention over variable lengths: the unused rows behind the last sequence belong to
    none.
    """
    query, key, value = qkv.unbind(1)  # (T, H, d), strided
    ends, longest = packed.boundaries, max(packed.lengths)
    out: Tensor = function(query, key, value, ends, ends, longest, longest).flatten(1)
    out[sum(packed.lengths) :] = 0
    return out


def flash(*where: Any) -> Tensor:
    """torch's FlashAttention, called as `torch.nn.attention.varlen_attn` calls it.

    To import that takes 2.5 s of a processor, since it brings torch's compiler, and it may take
    cuDNN's attention in place of this one.
    """
    out: Tensor = _FLASH(*where, 0.0, False, return_debug_mask=False, **_UNSPLIT)[0]
    return out


def _by_distance(qkv: Tensor, packed: Packed) -> Tensor:
    """The package's own kernel that adds biases, where there is Triton."""
    from plm_embed.kernels import triton_attention

    out: Tensor = triton_attention.attend(qkv, packed)
    return out
