"""The fused GPU kernels, run by Triton's interpreter on this machine's CPU, against torch's own
operations.
"""

import os
import platform
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plm_embed.kernels import devices, elementwise
from plm_embed.kernels.elementwise import PLAIN, Elementwise
from plm_embed.models.encoder.engine import Engine
from plm_embed.models.manifest import Manifest, Source
from plm_embed.models.packed_batch import DTYPES
from plm_embed.models.registry import MODELS
from support import checkpoints

CPU = torch.device("cpu")
SHAPES = {
    name: (MODELS[name].dim, MODELS[name].heads)
    for name in ("esm2_t6_8M_UR50D", "esm2_t12_35M_UR50D")
}
SHAPES |= {"esm2_t33_650M_UR50D": (1280, 20), "heads of 24": (96, 4)}
DTYPE_NAMES = ("float32", "bfloat16", "float16")


@pytest.fixture(scope="module")
def fused() -> Elementwise:
    """The kernels as the interpreter runs them, which tests/conftest.py asks for where there is no
    GPU.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("here tests/gpu runs the kernels themselves")
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("requirements/test.txt has Triton for Linux on x86-64 only")
    return elementwise._fused()


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_agree_with_torch(fused: Elementwise, shape: str, dtype: str) -> None:
    assert elementwise._problem(fused, CPU, DTYPES[dtype], *SHAPES[shape]) == ""


def test_a_wrong_kernel_is_found_before_it_is_used(fused: Elementwise) -> None:
    def norm(x: Tensor, by: elementwise.Norm, dtype: torch.dtype) -> Tensor:
        return fused.norm(x, replace(by, weight=torch.zeros_like(by.weight)), dtype)

    def rotate(qkv: Tensor, cosine: Tensor, sine: Tensor) -> None:
        fused.rotate(qkv, cosine, -sine)

    def add_norm(x: Tensor, term: Tensor, by: elementwise.Norm, dtype: torch.dtype) -> Tensor:
        return fused.add_norm(x.clone(), term, by, dtype)  # x itself stays as it was

    for wrong in (
        replace(fused, norm=norm),
        replace(fused, add_norm=add_norm),
        replace(fused, rotate=rotate),
    ):
        assert elementwise._problem(wrong, CPU, torch.float32, 96, 4).startswith("they are off by ")


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (ModuleNotFoundError("No module named 'triton'"), False),
        (
            RuntimeError("Failed to find C compiler. Please specify via CC environment variable."),
            False,
        ),
        (RuntimeError("Triton Error [CUDA]: device kernel image is invalid"), False),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), True),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
    ],
)
def test_torch_serves_where_triton_cannot_but_not_on_a_lost_device(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, lost: bool
) -> None:
    def fail() -> Elementwise:
        raise error

    def synchronize(_: torch.device) -> None:
        if lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(elementwise, "_fused", fail)
    monkeypatch.setattr(devices, "synchronize", synchronize)
    cuda = torch.device("cuda", 0)
    if lost or isinstance(error, torch.OutOfMemoryError):
        with pytest.raises(RuntimeError, match=r"CUDA error: an illegal|CUDA out of memory"):
            elementwise.choose(cuda, torch.bfloat16, 96, 4)
    else:
        assert elementwise.choose(cuda, torch.bfloat16, 96, 4) is PLAIN
        assert "torch's own operations serve, more slowly" in caplog.text


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 40), st.integers(1, 700), st.booleans(), st.integers(0, 10))
def test_a_row_is_normed_alike_in_any_company(
    fused: Elementwise, rows: int, width: int, added: bool, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    x, term = (10 * torch.randn((rows, width), generator=random) for _ in range(2))
    by = elementwise.Norm(
        torch.randn(width, generator=random), torch.randn(width, generator=random)
    )

    def run(x: Tensor, term: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone()
        return (
            fused.add_norm(x, term, by, torch.float32)
            if added
            else fused.norm(x, by, torch.float32)
        ), x

    together, left = run(x, term)
    expected = x + term if added else x
    assert torch.equal(left, expected)
    assert torch.allclose(
        together, elementwise.norm(expected, by, torch.float32), atol=2e-5, rtol=1e-4
    )
    row = seed % rows
    assert torch.equal(run(x[row : row + 1], term[row : row + 1])[0][0], together[row])


def test_rotation_leaves_the_values_alone(fused: Elementwise) -> None:
    random = torch.Generator().manual_seed(3)
    qkv, angle = torch.randn((7, 3, 5, 12), generator=random), torch.randn((7, 6), generator=random)
    turned = qkv.clone()
    fused.rotate(turned, angle.cos(), angle.sin())
    assert torch.equal(turned[:, 2], qkv[:, 2])
    # a rotation: pairs of numbers keep their length
    assert torch.allclose(
        turned[..., :6].hypot(turned[..., 6:]), qkv[..., :6].hypot(qkv[..., 6:]), atol=1e-5
    )
    assert not torch.allclose(turned[:, :2], qkv[:, :2], atol=0.1)


@pytest.mark.workflow
@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_a_whole_model_through_the_kernels(fused: Elementwise, dtype: str) -> None:
    model = checkpoints.TINY_ESM2
    shape = model.layers, model.dim, model.heads, None
    manifest = Manifest(model.name, "esm2", *shape, True, "MIT", "", 0, Source("fair-esm", ""))
    engine = Engine(manifest, checkpoints.random_state(model, 7), CPU, dtype)  # type: ignore[arg-type]
    batch, layers = (
        engine.prepare(["MKTAYIAKQRQISFVKSHFSRQ" * 3, "ACDEF", "M"]),
        list(range(model.layers + 1)),
    )
    assert engine.elementwise is PLAIN
    expected = engine.forward(batch, layers)
    engine.elementwise = fused
    for layer, found in engine.forward(batch, layers).items():
        for ours, theirs in zip(batch.split(found), batch.split(expected[layer]), strict=True):
            if dtype == "float32":
                assert torch.allclose(ours, theirs, atol=2e-5)
            else:
                assert torch.cosine_similarity(ours, theirs, dim=1).min() > 0.9995


COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from plm_embed.kernels import triton_elementwise as fused

capability, width, half = map(int, sys.argv[1:4])
half_type = "*" + sys.argv[4]

def check(kernel, pointers, constants):
    # torch's tensors and their slices begin at multiples of 16 bytes, which Triton sees at a launch
    names = kernel.arg_names
    by_16 = [["tt.divisibility", 16]]
    aligned = {(at,): by_16 for at, name in enumerate(names) if name in pointers}
    signature = {name: pointers.get(name, "constexpr") for name in names}
    constants |= {"block": triton.next_power_of_2(width)}
    fixed = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, fixed, aligned)
    target = GPUTarget("cuda", capability, 32)
    made = triton.compile(source, target=target, options={"num_warps": 8})
    assert len(made.asm["cubin"]) > 1000
    assert "ld.global.v4" in made.asm["ptx"] and "st.global.v4" in made.asm["ptx"], made.asm["ptx"]

vectors = {"x_ptr": "*fp32", "term_ptr": half_type, "weight_ptr": "*fp32", "bias_ptr": "*fp32"}
vectors["out_ptr"] = half_type
for add in (False, True):
    for layer in (False, True):  # a layer norm with its bias, or an RMS norm
        kind = {"center": layer, "shift": layer, "add": add}
        check(fused._norm_kernel, vectors, {"width": width, "epsilon": 1e-5} | kind)
angles = {"qkv_ptr": half_type, "cosine_ptr": "*fp32", "sine_ptr": "*fp32"}
check(fused._rotate_kernel, angles, {"pairs": width, "half": half})
"""


@pytest.mark.workflow
@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize(
    ("capability", "half_type"),
    [(70, "fp16"), (80, "bf16"), (90, "bf16")],
    ids=["V100", "A100", "H200"],
)
def test_kernels_compile_to_machine_code_that_moves_16_bytes_at_a_time(
    capability: int, half_type: str
) -> None:
    """For GPUs that are not here: Triton brings NVIDIA's assembler along."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    for dim, heads in (SHAPES["esm2_t33_650M_UR50D"], (5120, 40)):
        command = [
            sys.executable,
            "-c",
            COMPILE,
            str(capability),
            str(dim),
            str(dim // heads // 2),
            half_type,
        ]
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
