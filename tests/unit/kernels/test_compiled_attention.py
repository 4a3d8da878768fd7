"""Attention in C, against plain arithmetic in float64."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plm_embed.errors import out_of_memory
from plm_embed.io import compiled
from plm_embed.kernels import attention
from plm_embed.kernels.attention import Distances, sdpa
from plm_embed.kernels.attention import in_c as attend
from plm_embed.kernels.elementwise import PLAIN
from support.packed import exact, pack

CPU = torch.device("cpu")
BOUND = {torch.float32: 2e-6, torch.bfloat16: 0.02}
DTYPES = [
    pytest.param(
        dtype,
        marks=pytest.mark.skipif(
            attend not in [kernel.attend for kernel in attention.candidates(CPU, dtype)],
            reason=f"no kernel in C for {dtype} here",
        ),
    )
    for dtype in BOUND
]
LENGTHS = (1, 2, 31, 32, 33, 119, 120, 121, 245, 700)


def draw(dtype: torch.dtype, lengths: tuple[int, ...], heads: int, width: int) -> Tensor:
    """qkv of these sequences and of 20 rows behind them."""
    random = torch.Generator().manual_seed(5)
    return torch.randn((sum(lengths) + 20, 3, heads, width), generator=random).to(dtype)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 7, 16, 24, 36, 64, 128, 256])
def test_heads_of_any_width(dtype: torch.dtype, width: int) -> None:
    qkv, packed = draw(dtype, LENGTHS, 3, width), pack(LENGTHS, CPU)
    if dtype == torch.bfloat16 and width % 2:  # it takes two numbers at a time
        with pytest.raises(ValueError, match=f"heads of width {width}"):
            attend(qkv, packed)
        return
    found = attend(qkv.clone(), packed)
    assert found.dtype == dtype
    assert found.is_contiguous()
    assert (found.double() - exact(qkv, packed)).abs().max() < BOUND[dtype]
    assert not found[sum(LENGTHS) :].any()


@pytest.mark.parametrize("dtype", DTYPES)
@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=5),
    heads=st.integers(1, 5),
    width=st.sampled_from([4, 16, 24]),
    turns=st.integers(1, 4),
)
@settings(max_examples=25, deadline=None)
def test_a_sequence_knows_nothing_of_its_company_or_of_threads(
    dtype: torch.dtype, lengths: list[int], heads: int, width: int, turns: int
) -> None:
    qkv = draw(dtype, tuple(lengths), heads, width)
    with threads(turns):
        together = attend(qkv, pack(tuple(lengths), CPU))
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        with threads(1):
            alone = attend(qkv[rows].contiguous(), pack((length,), CPU))
        assert torch.equal(together[rows], alone)
        start += length


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_biases_by_distance(dtype: torch.dtype, scale: float) -> None:
    random = torch.Generator().manual_seed(6)
    table = 3 * torch.randn((4, 2 * 800 - 1), generator=random)
    packed = replace(pack(LENGTHS, CPU), distances=Distances(table, scale))
    qkv = draw(dtype, LENGTHS, 4, 16)
    found = attend(qkv.clone(), packed)
    assert (found.double() - exact(qkv, packed)).abs().max() < 2 * BOUND[dtype]
    short = replace(packed, distances=Distances(table[:, 200:-200], scale))
    with pytest.raises(ValueError, match="longer than the table"):
        attend(qkv, short)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [16, 24, 64])
def test_it_rotates_queries_and_keys_on_its_way(dtype: torch.dtype, width: int) -> None:
    qkv, packed = draw(dtype, LENGTHS, 4, width), pack(LENGTHS, CPU)
    random = torch.Generator().manual_seed(7)
    angles = 7 * torch.rand((len(qkv), width // 2), generator=random)
    rotary = angles.cos(), angles.sin()
    rotated = qkv.clone()
    PLAIN.query_key(rotated, None, rotary)
    found = attend(qkv, replace(packed, rotary=rotary))
    # one rounding to bfloat16 may differ between the two
    assert (found.double() - exact(rotated, packed)).abs().max() < 1.5 * BOUND[dtype]
    assert not torch.equal(found, attend(qkv, packed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_what_is_no_number_stays_and_stays_alone(dtype: torch.dtype, broken: float) -> None:
    """An overflow has to be seen by who computes it again, and to spoil no other sequence."""
    lengths = (40, 130, 7)
    qkv, packed = draw(dtype, lengths, 2, 16), pack(lengths, CPU)
    whole = attend(qkv, packed)
    qkv[41:44, 1] = broken
    found = attend(qkv, packed)
    assert found[40:170].isnan().any(1).all()
    assert torch.equal(found[:40], whole[:40])
    assert torch.equal(found[170:], whole[170:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e-30, 30.0])
def test_scores_far_apart_and_alike(dtype: torch.dtype, size: float) -> None:
    """Large scores have large rounding errors, torch's too."""
    qkv, packed = draw(dtype, LENGTHS, 2, 16), pack(LENGTHS, CPU)
    qkv[:, :2] *= size
    ours, torchs = (
        (kernel(qkv.clone(), packed).double() - exact(qkv, packed)).abs().max()
        for kernel in (attend, sdpa)
    )
    assert ours < 2 * torchs + BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_that_are_too_wide_are_left_to_torch(
    dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    assert attention.choose.__wrapped__(CPU, dtype, 2, 24).attend is attend
    assert attention.choose.__wrapped__(CPU, dtype, 2, 264).attend is not attend
    assert "C with AVX-512 is not used: ValueError: heads of width 264" in caplog.text


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_lack_of_memory_is_told_as_torch_tells_it(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a smaller batch is tried."""
    without = SimpleNamespace(attend=lambda *_: 1)
    monkeypatch.setattr(compiled, "load", lambda *_: without)
    with pytest.raises(RuntimeError) as error:
        attend(draw(dtype, LENGTHS, 2, 16), pack(LENGTHS, CPU))
    assert out_of_memory(error.value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_leave_the_core_that_the_main_thread_is_bound_to(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    everywhere = os.sched_getaffinity(0)
    seen: list[set[int]] = []
    note = SimpleNamespace(attend=lambda *_: seen.append(os.sched_getaffinity(0)))
    monkeypatch.setattr(compiled, "load", lambda *_: note)
    with threads(2), ThreadPoolExecutor(1) as other:
        other.submit(int).result()  # as OpenMP's, which may run elsewhere
        os.sched_setaffinity(0, {min(everywhere)})
        try:
            attend(draw(dtype, LENGTHS, 2, 16), pack(LENGTHS, CPU))
        finally:
            os.sched_setaffinity(0, everywhere)
    assert sorted(seen, key=len) == [{min(everywhere)}, everywhere]
