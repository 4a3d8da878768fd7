"""Attention on processors with AVX-512, in C: torch's kernel takes its products from MKL and bmm,
which have none for heads this narrow.

A thread takes every n-th head of all sequences, so bits depend neither on the number of threads nor
on a sequence's company.
"""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from plm_embed.io import compiled
from plm_embed.kernels.packed import Packed

FLAGS = "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-ffp-contract=fast"
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
    options = f"-DWIDTH={width}", *(("-DHALF", "-mavx512bf16") if half else ())
    library = compiled.load(Path(__file__).with_suffix(".c"), *FLAGS, *options)
    out = torch.empty((len(qkv), heads * width), dtype=qkv.dtype)
    out[sum(packed.lengths) :] = 0
    lengths = (ctypes.c_int32 * len(packed.lengths))(*packed.lengths)
    distances, (cosines, sines) = packed.distances, packed.rotary or (None, None)
    scale = width**-0.5 if distances is None else distances.scale
    table = None if distances is None else distances.table
    if table is not None and max(packed.lengths) > len(table[0]) // 2 + 1:
        raise ValueError("a sequence is longer than the table of biases by distance")
    tensors = (qkv, out, cosines, sines, table)
    assert all(tensor is None or tensor.is_contiguous() for tensor in tensors)
    addresses = [ctypes.c_void_p(None if part is None else part.data_ptr()) for part in tensors]
    run = partial(
        library.attend,
        *addresses[:2],
        lengths,
        len(lengths),
        heads,
        ctypes.c_float(scale),
        *addresses[2:],
        0 if table is None else table.shape[1] // 2,
    )
    threads = min(torch.get_num_threads(), heads * len(lengths))
    # threads of its own each time: a tenth of a millisecond, and nothing that a fork would lack
    with ThreadPoolExecutor(threads, initializer=_go_anywhere) as pool:
        futures = [pool.submit(run, turn, threads) for turn in range(1, threads)]
        failed = [run(0, threads), *(future.result() for future in futures)]
    if any(failed):
        raise RuntimeError("out of memory for the keys and values of a head")  # as torch says it
    return out


def _go_anywhere() -> None:
    """Let this thread run wherever a thread of the process may: OpenMP binds the main thread to a
    core if it is told to, and what that one starts to the same core.
    """
    everywhere: set[int] = set()
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError):  # it has ended
            everywhere |= os.sched_getaffinity(int(task.name))
    with suppress(OSError):
        os.sched_setaffinity(0, everywhere)
