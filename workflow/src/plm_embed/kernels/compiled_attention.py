"""Attention on processors with AVX-512, in C: torch's kernel takes its products from MKL and bmm,
which have none for heads this narrow.

A thread takes every n-th head of all sequences, so bits depend neither on the number of threads nor
on a sequence's company.
"""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from plm_embed.kernels import compiled
from plm_embed.kernels.packed import Packed

WIDEST = 256
"""Numbers of a head: blocks of wider ones leave the cache."""


def attend(qkv: Tensor, packed: Packed) -> Tensor:
    """qkv (T, 3, H, d) in float32 or bfloat16, contiguous -> (T, H d); zero in the rows behind the
    last sequence.

    RuntimeError when the code cannot be compiled; ValueError for heads that it does not compute.
    """
    heads, width = qkv.shape[2:]
    half = qkv.dtype == torch.bfloat16
    if width > WIDEST or (half and width % 2):
        raise ValueError(f"heads of width {width}")
    library = compiled.library("compiled_attention", f"WIDTH={width}", *(("HALF",) if half else ()))
    out = torch.empty((len(qkv), heads * width), dtype=qkv.dtype)
    out[sum(packed.lengths) :] = 0
    lengths = (ctypes.c_int32 * len(packed.lengths))(*packed.lengths)
    distances, (cosines, sines) = packed.distances, packed.rotary or (None, None)
    scale = width**-0.5 if distances is None else distances.scale
    table = None if distances is None else distances.table
    run = partial(
        library.attend,
        _at(qkv),
        _at(out),
        lengths,
        len(lengths),
        heads,
        ctypes.c_float(scale),
        _at(cosines),
        _at(sines),
        _at(table),
        0 if table is None else table.shape[1] // 2,
    )
    threads = min(torch.get_num_threads(), heads * len(lengths))
    # threads of its own each time: a tenth of a millisecond, and nothing that a fork would lack
    with ThreadPoolExecutor(threads) as pool:
        others = [pool.submit(run, turn, threads) for turn in range(1, threads)]
        failed = [run(0, threads), *(other.result() for other in others)]
    if any(failed):
        raise MemoryError("no memory for the keys and values of a head")
    return out


def _at(tensor: Tensor | None) -> ctypes.c_void_p:
    """Where its numbers lie; they lie one after another."""
    assert tensor is None or tensor.is_contiguous()
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())
