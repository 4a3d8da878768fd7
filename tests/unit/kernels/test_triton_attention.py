"""Attention with biases by distance: Triton's kernel, run by its interpreter on this machine's CPU.
The interpreter has no products in bfloat16.
"""

import os
import platform
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plm_embed.kernels import attention
from plm_embed.kernels.attention import Distances, Kernel, Packed
from plm_embed.models.distances import alibi_bias, t5_bias
from support.packed import exact, pack

CPU = torch.device("cpu")
LENGTHS = (5, 130, 1, 64, 65)
HEADS = 2


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    """The kernel as the interpreter runs it, which tests/conftest.py asks for where there is no
    GPU.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("here tests/gpu runs the kernels themselves")
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("requirements/test.txt has Triton for Linux on x86-64 only")
    return Kernel("distances", "Triton", attention._by_distance)


def make_qkv(rows: int, width: int, dtype: torch.dtype) -> Tensor:
    random = torch.Generator().manual_seed(3)
    return torch.randn((rows, 3, HEADS, width), generator=random).to(dtype)


def make_packed(lengths: tuple[int, ...], table: Tensor, scale: float) -> Packed:
    return replace(pack(lengths, CPU), distances=Distances(table, scale))


LEARNED = torch.randn((32, HEADS), generator=torch.Generator().manual_seed(1))
TABLES = {
    "slopes": (alibi_bias(HEADS, 256), 0.25),
    "buckets": (t5_bias(LEARNED, 128, 256), 1.0),
}


@pytest.mark.parametrize(
    ("width", "dtype", "name"),
    [  # a table is data to the kernel: of every width and every type once
        (24, torch.float32, "slopes"),
        (24, torch.float16, "buckets"),
        (64, torch.float32, "buckets"),
        (64, torch.float16, "slopes"),
        (128, torch.float32, "slopes"),
        (128, torch.float16, "buckets"),
    ],
)
def test_it_computes_attention_with_biases_within_each_sequence(
    kernel: Kernel, width: int, dtype: torch.dtype, name: str
) -> None:
    table, scale = TABLES[name]
    bound = 2e-5 if dtype == torch.float32 else 0.004
    scale /= (width / 16) ** 0.5
    qkv = make_qkv(sum(LENGTHS) + 20, width, dtype)
    packed = make_packed(LENGTHS, table, scale)
    found = kernel.attend(qkv, packed)
    assert found.shape == (len(qkv), HEADS * width)
    assert found.dtype == dtype
    assert (found.double() - exact(qkv, packed)).abs().max() < bound
    assert not found[sum(LENGTHS) :].any()


@settings(max_examples=5, deadline=None)
@given(
    st.lists(st.integers(1, 140), max_size=3),
    st.integers(1, 140),
    st.lists(st.integers(1, 140), max_size=2),
    st.sampled_from([torch.float32, torch.float16]),
)
def test_a_sequence_has_equal_bits_in_any_company(
    kernel: Kernel, before: list[int], length: int, after: list[int], dtype: torch.dtype
) -> None:
    table, scale = TABLES["buckets"]
    lengths = (*before, length, *after)
    qkv = make_qkv(sum(lengths) + 7, 16, dtype)
    start = sum(before)
    together = kernel.attend(qkv, make_packed(lengths, table, scale))[start : start + length]
    longer = torch.nn.functional.pad(table, (300, 300))  # as a longer sequence in company has it
    alone = kernel.attend(qkv[start : start + length], make_packed((length,), longer, scale))
    assert torch.equal(together, alone)


def test_it_goes_first_where_it_works_and_torch_serves_where_it_does_not(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert attention.problem(kernel, CPU, torch.float16, 4, 32, by_distance=True) == ""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    cuda = torch.device("cuda", 0)
    labels = [each.label for each in attention.candidates(cuda, torch.bfloat16, True)]
    assert labels == ["distances", "efficient", "math"]
    labels = [each.label for each in attention.candidates(cuda, torch.float32, True)]
    assert labels == ["efficient", "math"]

    class CompilationError(Exception):
        """As Triton's, which is no RuntimeError."""

    def fail(*_: object) -> Tensor:
        raise CompilationError("at 12:3")

    broken = replace(kernel, attend=fail)
    assert "at 12:3" in attention.problem(broken, CPU, torch.float16, 4, 32, by_distance=True)

    def unbiased_attend(qkv: Tensor, packed: Packed) -> Tensor:
        assert packed.distances is not None
        none = replace(packed.distances, table=0 * packed.distances.table)
        return kernel.attend(qkv, replace(packed, distances=none))

    unbiased = replace(kernel, attend=unbiased_attend)
    problem = attention.problem(unbiased, CPU, torch.float16, 4, 32, by_distance=True)
    assert problem.startswith("its result is off by")
