"""Kernels of attention, each against plain arithmetic; those of a GPU by a stand-in with the same
contract.
"""

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from plm_embed.errors import PassingError
from plm_embed.io import compiled
from plm_embed.kernels import attention, devices
from plm_embed.kernels.attention import (
    Attend,
    Distances,
    Kernel,
    Packed,
    aligned,
    blocked,
    choose,
    in_c,
    sdpa,
)
from support.packed import exact, pack

CPU = torch.device("cpu")
LENGTHS = (5, 5, 1, 130, 2, 2, 700)


def random_qkv(dtype: torch.dtype, tail: int = 20) -> Tensor:
    random = torch.Generator().manual_seed(3)
    return torch.randn((sum(LENGTHS) + tail, 3, 4, 16), generator=random).to(dtype)


def varlen(
    query: Tensor, key: Tensor, value: Tensor, at: Tensor, _: Tensor, longest: int, __: int
) -> Tensor:
    """Do as FlashAttention's function for variable lengths: rows that belong to no sequence
    hold anything.
    """
    out = torch.full(query.shape, torch.nan, dtype=query.dtype)
    for start, stop in zip(at.tolist(), at.tolist()[1:], strict=False):
        assert stop - start <= longest
        q, k, v = (part[start:stop].transpose(0, 1) for part in (query, key, value))
        out[start:stop] = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1)
    return out


KERNELS = {
    "sdpa": sdpa,
    "math": sdpa_kernel(SDPBackend.MATH)(sdpa),
    "blocked": blocked,
    "aligned": aligned,
    "varlen": lambda qkv, packed: attention.varlen(varlen, qkv, packed),
}


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 0.02), (torch.float16, 0.002)]
)
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_computes_attention_within_each_sequence(
    name: str, dtype: torch.dtype, bound: float
) -> None:
    qkv = random_qkv(dtype)
    packed = pack(LENGTHS, CPU)
    with torch.inference_mode():
        found = KERNELS[name](qkv.clone(), packed)
    assert found.shape == (len(qkv), 64)
    assert found.dtype == dtype
    assert found.is_contiguous()
    assert (found.double() - exact(qkv, packed)).abs().max() < bound
    assert not found[sum(LENGTHS) :].any()


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 3e-6), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize("name", ["sdpa", "blocked"])
def test_the_bias_of_each_distance_is_added(name: str, dtype: torch.dtype, bound: float) -> None:
    table = torch.randn((4, 2 * 1024 - 1), generator=torch.Generator().manual_seed(4))
    packed = replace(pack(LENGTHS, CPU), distances=Distances(table, 0.5))
    qkv = random_qkv(dtype)
    with torch.inference_mode():
        found = KERNELS[name](qkv.clone(), packed)
    assert (found.double() - exact(qkv, packed)).abs().max() < bound
    assert not found[sum(LENGTHS) :].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tail", [0, 20])
def test_masked_keys_tell_nothing_of_the_company(dtype: torch.dtype, tail: int) -> None:
    """Neither what lies behind a sequence, nor that nothing does."""
    for length in (3, 130, 144, 351):
        random = torch.Generator().manual_seed(length)
        alone = torch.randn((length, 3, 4, 16), generator=random).to(dtype)
        broken = torch.full((40 + tail, 3, 4, 16), torch.nan, dtype=dtype)
        found = aligned(torch.cat((alone, broken)), pack((length, 40), CPU))[:length]
        assert torch.equal(found, aligned(alone, pack((length,), CPU)))


def test_blocks_are_smaller_than_a_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = blocked(random_qkv(torch.float32), pack(LENGTHS, CPU))
    monkeypatch.setattr(attention, "SCORE_BYTES", 4 * 700 * 50)
    assert torch.allclose(blocked(random_qkv(torch.float32), pack(LENGTHS, CPU)), whole, atol=1e-6)


def test_a_kernel_that_fails_or_errs_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: object) -> Tensor:
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")

    def wrong(qkv: Tensor, packed: Packed) -> Tensor:
        return sdpa(qkv, packed) * 1.1

    def broken(*_: object) -> Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    offered = [
        Kernel("a", "refusing", refusing),
        Kernel("b", "wrong", wrong),
        Kernel("c", "right", sdpa),
    ]
    monkeypatch.setattr(attention, "candidates", lambda *_: iter(offered))
    chosen = choose.__wrapped__(CPU, torch.float32, 2, 8)
    assert (
        chosen.name == "right (fallback: refusing: RuntimeError: FlashAttention only supports "
        "Ampere GPUs or newer.)"
    )
    offered[2] = Kernel("b", "as good", sdpa)
    offered[0:1] = []
    assert choose.__wrapped__(CPU, torch.float32, 2, 8).name == "as good"
    offered[1:] = []
    with pytest.raises(RuntimeError, match="no attention kernel works"):
        choose.__wrapped__(CPU, torch.float32, 2, 8)

    offered[:] = [Kernel("d", "broken", broken), Kernel("c", "right", sdpa)]
    assert choose.__wrapped__(CPU, torch.float32, 2, 8).attend is sdpa
    # the device is lost: the next kernel would not help
    monkeypatch.setattr(devices, "synchronize", broken)
    with pytest.raises(RuntimeError, match="CUDA error"):
        choose.__wrapped__(CPU, torch.float32, 2, 8)

    def short_of_memory(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    offered[0] = Kernel("e", "short of memory", short_of_memory)  # says nothing about the kernel
    with pytest.raises(torch.OutOfMemoryError):
        choose.__wrapped__(CPU, torch.float32, 2, 8)


@pytest.mark.parametrize(
    ("capability", "dtype", "labels"),
    [
        ((7, 0), torch.float16, ["efficient", "math"]),
        ((8, 0), torch.float32, ["efficient", "math"]),
        ((9, 0), torch.bfloat16, ["varlen", "efficient", "math"]),
    ],
)
def test_what_is_tried_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    dtype: torch.dtype,
    labels: list[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    tried = list(attention.candidates(torch.device("cuda", 0), dtype))
    assert [kernel.label for kernel in tried if kernel.name != "flash_attn"] == labels


def test_the_call_of_flash_attention_fits_the_torch_that_is_installed() -> None:
    """With tensors that have no numbers."""
    query, key, value = torch.empty(3, 100, 4, 64, dtype=torch.bfloat16, device="meta")
    ends = torch.empty(3, dtype=torch.int32, device="meta")
    out = attention.flash(query, key, value, ends, ends, 60, 60)
    assert (out.shape, out.dtype, out.device) == (query.shape, torch.bfloat16, query.device)


AVX512 = dict.fromkeys(attention.IN_C, True)
BF16 = AVX512 | {"avx512_bf16": True}


@pytest.mark.parametrize(
    ("capabilities", "dtype", "kernels"),
    [
        ({"amx_bf16": True}, torch.bfloat16, [aligned]),
        ({"amx_bf16": False}, torch.bfloat16, [blocked, aligned]),
        ({}, torch.bfloat16, [blocked, aligned]),
        (AVX512, torch.bfloat16, [blocked, aligned]),
        (BF16, torch.bfloat16, [in_c, blocked, aligned]),
        (BF16 | {"amx_bf16": True}, torch.bfloat16, [aligned]),
        (BF16, torch.float16, [aligned]),
        ({"amx_bf16": True}, torch.float32, [sdpa]),
        (AVX512, torch.float32, [in_c, sdpa]),
    ],
)
def test_kernels_of_a_cpu_share_a_fingerprint(
    monkeypatch: pytest.MonkeyPatch,
    capabilities: dict[str, bool],
    dtype: torch.dtype,
    kernels: list[Attend],
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    candidates = list(attention.candidates(CPU, dtype))
    assert [kernel.attend for kernel in candidates] == kernels
    assert {kernel.label for kernel in candidates} == {""}
    by_distance = list(attention.candidates(CPU, dtype, by_distance=True))
    assert [kernel.attend for kernel in by_distance] == [
        sdpa if attend is aligned else attend for attend in kernels
    ]


def test_without_a_compiler_torch_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: BF16, raising=False)
    monkeypatch.setattr(compiled, "COMPILERS", ())
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled.load.cache_clear()
    for dtype, attend in ((torch.float32, sdpa), (torch.bfloat16, blocked)):
        assert choose.__wrapped__(CPU, dtype, 2, 8).attend is attend
    assert "C with AVX-512 is not used: RuntimeError: no C compiler" in caplog.text


def test_a_job_whose_compiler_hangs_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(*_: object) -> NoReturn:
        raise PassingError("gcc could not compile attention.c")

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: AVX512, raising=False)
    monkeypatch.setattr(compiled, "load", hangs)
    with pytest.raises(PassingError):  # another kernel has other bits
        choose.__wrapped__(CPU, torch.float32, 2, 8)
