"""The product with an activation in it: Triton's kernel, run by its interpreter on this machine's
CPU, and compiled for GPUs that are not here. The interpreter has no products in bfloat16.
"""

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plm_embed.kernels import elementwise
from plm_embed.kernels.elementwise import Form
from plm_embed.models.encoder.description import Activation
from plm_embed.models.registry import MODELS

CPU = torch.device("cpu")
EXACT: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: x * torch.special.ndtr(x),
    "gelu_tanh": lambda x: (
        0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    ),
    "relu": lambda x: x.clamp(min=0),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


@pytest.fixture(autouse=True)
def interpreted() -> None:
    """tests/conftest.py asks for the interpreter where there is no GPU."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("here tests/gpu runs the kernels themselves")
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("requirements/test.txt has Triton for Linux on x86-64 only")


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).half()


def whole(*shape: int, seed: int) -> Tensor:
    return (2 * draw(*shape, seed=seed)).round()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", EXACT)
def test_it_activates_products_without_rounding_them(
    activation: Activation, gated: bool, biased: bool
) -> None:
    from plm_embed.kernels import triton_product

    x, weight, gate = draw(300, 96), draw(256, 96, seed=2), draw(256, 96, seed=3)
    bias, gate_bias = draw(256, seed=4), draw(256, seed=5)
    found = triton_product.up(
        x,
        (weight, bias if biased else None),
        (gate, gate_bias if biased else None) if gated else None,
        activation,
    )
    up = x.double() @ weight.double().T + (bias if biased else 0)
    into = x.double() @ gate.double().T + (gate_bias if biased else 0) if gated else up
    exact = EXACT[activation](into) * (up if gated else 1)
    assert found.shape == (300, 256)
    assert found.dtype == torch.float16
    # half a step of half precision, and the sum's fp32
    assert ((found.double() - exact).abs() <= 2**-11 * exact.abs() * 1.05 + 5e-5).all()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 300), st.integers(1, 40), st.integers(0, 300), st.booleans())
def test_a_row_has_equal_bits_in_any_company(
    before: int, rows: int, after: int, gated: bool
) -> None:
    """Of whole numbers, whose sums are exact: the interpreter's products are NumPy's, which order
    the sums of a row by its place in the tile on some processors.
    """
    from plm_embed.kernels import triton_product

    by = whole(128, 64, seed=2), whole(128, seed=4)
    gate = (whole(128, 64, seed=3), whole(128, seed=5)) if gated else None
    x = whole(before + rows + after, 64, seed=6)
    mine = x[before : before + rows]
    together = triton_product.up(x, by, gate, "gelu")[before : before + rows]
    assert torch.equal(together, triton_product.up(mine, by, gate, "gelu"))


def test_half_precision_holds_what_its_gelu_gives() -> None:
    """The polynomial of the normal distribution's tail, for every number of both half types."""
    from plm_embed.kernels import triton_elementwise

    bits = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
    # in steps of the type; the interpreter does not round bfloat16 but cuts it
    for dtype, bound in ((torch.float16, 0.5), (torch.bfloat16, 1.0)):
        x = bits.view(dtype)
        x = x[x.isfinite()]
        exact = EXACT["gelu"](x.double())
        off = triton_elementwise.activate(x.clone()[None], "gelu")[0].double() - exact
        kind = torch.finfo(dtype)
        step = (exact.abs() * kind.eps).clamp(min=kind.smallest_normal * kind.eps)
        seen = (x > -5.5) & (x.abs() > 1e-30)
        assert (off.abs() <= bound * step + 5e-6 * exact.abs())[seen].all()
        assert off[~seen].abs().max() < 3e-7


@pytest.mark.parametrize(("capability", "pays"), [((8, 0), False), ((8, 9), True), ((9, 0), False)])
def test_it_serves_by_capability_and_precision_alone(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], pays: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    cuda = torch.device("cuda", 0)
    assert elementwise._product_pays(cuda, torch.bfloat16) == pays
    assert elementwise._product_pays(cuda, torch.float16) == pays
    assert not elementwise._product_pays(cuda, torch.float32)


@pytest.mark.parametrize(
    "form",
    [
        Form(64, 4, "gelu", gated=False, biased=True),
        Form(96, 4, "silu", gated=True, biased=False),
    ],
)
def test_it_is_tried_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, form: Form
) -> None:
    from plm_embed.kernels import triton_product

    within = elementwise._fused(within=True)
    assert elementwise._problem(within, CPU, torch.float16, form) == ""
    true, (rows, width) = triton_product.up, elementwise.UP
    seen = []

    def wrong(x: Tensor, *others: Any) -> Tensor:
        seen.append(x.shape)
        found: Tensor = true(x, *others)
        found[rows - 1, width - 1] += 1
        return found

    monkeypatch.setattr(triton_product, "up", wrong)
    assert elementwise._problem(within, CPU, torch.float16, form).startswith("they are off by ")
    assert seen == [(rows, form.dim)]
    # where it does not serve, the other kernels do
    monkeypatch.setattr(elementwise, "_product_pays", lambda *_: True)
    on_cpu = elementwise._problem
    monkeypatch.setattr(
        elementwise, "_problem", lambda tried, _, *others: on_cpu(tried, CPU, *others)
    )
    chosen = elementwise.choose(torch.device("cuda", 0), torch.float16, form)
    named = "Triton, sums within products (fallback: Triton's product: they are off by "
    assert chosen.name.startswith(named)
    assert len(caplog.messages) == 1


def test_its_tiles_cover_every_model() -> None:
    from plm_embed.kernels import triton_product

    for model in MODELS.values():
        if model.layers > 3:  # not those that are made for tests
            weight = torch.empty((model.hidden, model.dim), dtype=torch.bfloat16, device="meta")
            assert triton_product.fits(weight), model.name
    assert not triton_product.fits(torch.empty((128, 24), dtype=torch.bfloat16, device="meta"))
    assert not triton_product.fits(torch.empty((128, 64), device="meta"))


COMPILE = """
import re, subprocess, sys, tempfile
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from plm_embed.kernels import triton_product as product

kernel = product._up_kernel
names = kernel.arg_names
assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
FORMS = (
    ("gelu", False, True, "*bf16"),  # ESM-2
    ("gelu", False, True, "*fp16"),
    ("silu", True, False, "*bf16"),  # ESM C
    ("gelu_tanh", True, False, "*bf16"),  # Ankh
    ("gelu", True, False, "*bf16"),  # DNABERT
)

def check(capability, activation, gated, biased, half):
    chip = f"sm_{capability}" + ("a" if capability >= 90 else "")
    types = {name: half for name in names if name.endswith("_ptr")}
    types |= {"rows": "i32", "width": "i32", "inner": "i32"}
    columns = product.COLUMNS // 2 if gated else product.COLUMNS
    constants = {"activation": activation, "gated": gated, "biased": biased}
    constants |= {"tile_rows": product.ROWS, "tile_columns": columns}
    constants |= {"depth": product.DEPTH, "group": product.GROUP}
    made = triton.compile(
        ASTSource(
            kernel,
            {name: types.get(name, "constexpr") for name in names},
            {(names.index(name),): value for name, value in constants.items()},
            {(names.index(n),): [["tt.divisibility", 16]] for n in types if n != "rows"},
        ),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": product.WARPS, "num_stages": product.STAGES},
    )
    ptx = made.asm["ptx"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        command = [assembler, "-v", f"--gpu-name={chip}", path, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spills = re.findall(r"(\\d+) bytes spill", said)
    assert spills and not any(map(int, spills)), said
    # two programs at a time: 65,536 registers and 100 KB of shared memory, 1 KB of it the system's
    registers = int(re.search(r"Used (\\d+) registers", said)[1])
    assert registers * 32 * product.WARPS * 2 <= 65536, (constants, registers)
    assert 2 * (made.metadata.shared + 1024) <= 100 << 10 or capability == 90
    tensor_cores = "wgmma.mma_async" if capability == 90 else "mma.sync.aligned.m16n8k16"
    assert tensor_cores in ptx
    copied = re.findall(r"cp\\.async\\.c[ag]\\.shared\\.global[^;]*, (?:0x)?(\\w+), ", ptx)
    assert copied and set(copied) == {"10"}, copied  # 16 bytes at a time, in hexadecimal
    stored = re.findall(r"st\\.global\\.(\\S+)", ptx)
    assert stored and set(stored) == {"v4.b32"}, stored

for capability in 80, 86, 89, 90:  # A100, A10, L40S, H100
    for form in FORMS:
        print(capability, form)  # the last one is what fails
        check(capability, *form)
"""


@pytest.mark.workflow
def test_machine_code_multiplies_on_tensor_cores_with_room_for_two() -> None:
    """For GPUs that are not here: Triton brings NVIDIA's assembler along."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", COMPILE], check=True, env=environment)
