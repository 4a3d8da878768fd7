"""The fused GPU kernels, run by Triton's interpreter on this machine's CPU, against torch's own
operations.
"""

import os
import platform
import sys
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plm_embed.accuracy import FALLBACK
from plm_embed.kernels import devices, elementwise
from plm_embed.kernels.elementwise import PLAIN, Elementwise, Form, Norm, Rotary
from plm_embed.kernels.linear import Linear
from plm_embed.models.engine import Engine, form
from plm_embed.models.layers import DTYPES, LATE_BIASES
from plm_embed.models.registry import MODELS
from support import checkpoints
from support.packed import packed_batch

CPU = torch.device("cpu")
FORMS = {
    "ESM-2": Form(96, 4, "gelu"),
    "ESM C": Form(96, 4, "silu", gated=True, biased=False, normed=True),
    "Ankh": Form(96, 4, "gelu_tanh", gated=True, biased=False, rms=True, turned=False),
    # no model has these yet
    "heads of 24": Form(96, 4, "gelu_tanh", gated=True),
    "RMS of queries and keys": Form(96, 4, "relu", gated=True, inner=120, rms=True, normed=True),
}
"""Forms of small models; the first three are like those of families."""
MODEL_FORMS = {form(model): name for name, model in MODELS.items()} | {
    FORMS[name]: name for name in ("heads of 24", "RMS of queries and keys")
}
"""Every form that a model has, by a model, and two that none has."""


@pytest.fixture(scope="module")
def fused() -> Elementwise:
    """The kernels as the interpreter runs them, which tests/conftest.py asks for where there is no
    GPU.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("here tests/gpu runs the kernels themselves")
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("requirements/test.txt has Triton for Linux on x86-64 only")
    from plm_embed.kernels.triton_elementwise import Fused

    made: Elementwise = Fused()
    return made


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", FORMS)
def test_kernels_agree_with_exact_arithmetic(fused: Elementwise, name: str, dtype: str) -> None:
    assert elementwise.problem(fused, CPU, DTYPES[dtype], FORMS[name]) == ""


@pytest.mark.parametrize("shape", MODEL_FORMS, ids=MODEL_FORMS.get)
def test_kernels_of_every_model_pass_with_room(
    monkeypatch: pytest.MonkeyPatch, fused: Elementwise, shape: Form
) -> None:
    monkeypatch.setattr(elementwise, "ROUNDED", 1.5)
    assert elementwise.problem(fused, CPU, torch.bfloat16, shape) == ""


def broken() -> dict[str, tuple[str, Elementwise]]:
    """Kernels with an error each, and a form that shows it."""

    def other(**operation: Any) -> Elementwise:
        changed = copy(PLAIN)
        changed.__dict__.update(operation)
        return changed

    def norm_by(**changes: Any) -> Elementwise:
        def norm(x: Tensor, by: Norm, dtype: torch.dtype, *, keep: bool = False) -> Tensor:
            return PLAIN.norm(x, replace(by, **changes), dtype, keep=keep)

        return other(norm=norm)

    def rounded(x: Tensor, by: Norm, dtype: torch.dtype, *, keep: bool = False) -> Tensor:
        return PLAIN.norm(x.bfloat16().float(), by, dtype, keep=keep)  # x itself stays, too

    def stale(x: Tensor, by: Norm, dtype: torch.dtype, *, keep: bool = False) -> Tensor:
        y = PLAIN.norm(x, by, dtype, keep=keep)
        y[:, -1] = 0  # the edge of a tile
        return y

    def add(x: Tensor, linear: Linear, y: Tensor) -> None:
        PLAIN.add(x.clone(), linear, y)  # x itself stays as it was

    def query_key(turn: float = 1, roll: int = 0, **changes: Any) -> Elementwise:
        def query_key(qkv: Tensor, norms: tuple[Norm, Norm] | None, rotary: Rotary | None) -> None:
            if norms and changes:
                norms = replace(norms[0], **changes), replace(norms[1], **changes)
            PLAIN.query_key(qkv, norms, rotary and (rotary[0], turn * rotary[1]))
            qkv.copy_(qkv.roll(roll, 2))

        return other(query_key=query_key)

    def up_by(change: Any) -> Elementwise:
        def up(x: Tensor, linear: Linear, gate: Linear | None, activation: Any) -> Tensor:
            return PLAIN.up(x, *change(linear, gate), activation)

        return other(up=up)

    def cut(x: Tensor, linear: Linear, gate: Linear | None, activation: Any) -> Tensor:
        y = PLAIN.up(x, linear, gate, activation)
        y[-1] = torch.nan
        return y

    def bare(linear: Linear, _: Linear | None) -> tuple[Linear, None]:
        return Linear(linear.weight, None), None

    return {
        "bias left out": ("ESM-2", norm_by(bias=None)),
        "late biases left out": ("ESM-2", norm_by(missing=None)),
        "epsilon left out": ("ESM-2", norm_by(epsilon=0.0)),
        "mean not subtracted": ("ESM-2", norm_by(rms=True)),
        "mean subtracted": ("Ankh", norm_by(rms=False)),
        "kept norm not kept": ("ESM-2", other(norm=rounded)),
        "last column not written": ("ESM-2", other(norm=stale)),
        "sum not written": ("ESM-2", other(add=add)),
        "turned the other way": ("ESM C", query_key(turn=-1)),
        "heads swapped": ("ESM C", query_key(roll=1)),
        "mean of queries not subtracted": ("ESM C", query_key(rms=True)),
        "mean of queries subtracted": ("RMS of queries and keys", query_key(rms=False)),
        "gate left out": ("ESM C", up_by(lambda linear, _: (linear, None))),
        "gate and product swapped": ("ESM C", up_by(lambda linear, gate: (gate, linear))),
        "bias of the product left out": ("ESM-2", up_by(bare)),
        "last row not a number": ("ESM C", other(up=cut)),
    }


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_wrong_kernel_is_found_before_it_is_used(dtype: str) -> None:
    for shape in FORMS.values():
        assert elementwise.problem(PLAIN, CPU, DTYPES[dtype], shape) == ""
    for error, (name, wrong) in broken().items():
        problem = elementwise.problem(wrong, CPU, DTYPES[dtype], FORMS[name])
        assert problem.startswith("they are off by "), error


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
    def fail(*_: object) -> str:
        raise error

    def synchronize(_: torch.device) -> None:
        if lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(elementwise, "problem", fail)
    monkeypatch.setattr(devices, "synchronize", synchronize)
    cuda = torch.device("cuda", 0)
    if lost or isinstance(error, torch.OutOfMemoryError):
        with pytest.raises(RuntimeError, match=r"CUDA error: an illegal|CUDA out of memory"):
            elementwise.choose(cuda, torch.bfloat16, FORMS["heads of 24"])
    else:
        chosen = elementwise.choose(cuda, torch.bfloat16, FORMS["heads of 24"])
        assert type(chosen) is Elementwise
        assert str(error) in chosen.name and FALLBACK in chosen.name
        assert len(caplog.messages) == 1
        assert "torch's own operations are used for " in caplog.text


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 40), st.integers(1, 700), st.integers(0, 40))
def test_a_row_is_normed_alike_in_any_company(
    fused: Elementwise, rows: int, width: int, seed: int
) -> None:
    lacking, keep = seed % 2 == 1, seed % 4 > 1
    random = torch.Generator().manual_seed(seed)
    x = 10 * torch.randn((rows, width), generator=random)
    weight, bias, missing = torch.randn((3, width), generator=random)
    by = Norm(weight, bias, missing=missing if lacking else None)

    def run(rows: slice) -> Tensor:
        mine = x[rows].clone()
        y = fused.norm(mine, by, torch.float32, keep=keep)
        assert torch.equal(mine, y if keep else x[rows])
        return y

    together = run(slice(None))
    whole = x.double() + (missing.double() if lacking else 0)
    exact = F.layer_norm(whole, (width,), weight.double(), bias.double(), by.epsilon)
    assert torch.allclose(together.double(), exact, atol=2e-5, rtol=1e-4)
    row = seed % rows
    assert torch.equal(run(slice(row, row + 1))[0], together[row])


@pytest.mark.usefixtures("fused")
def test_half_precision_holds_what_its_gelu_gives() -> None:
    """The polynomial of the normal distribution's tail, for every number of both half types."""
    from plm_embed.kernels import triton_elementwise

    bits = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
    # in steps of the type; the interpreter does not round bfloat16 but cuts it
    for dtype, bound in ((torch.float16, 0.5), (torch.bfloat16, 1.0)):
        x = bits.view(dtype)
        x = x[x.isfinite()]
        exact = x.double() * torch.special.ndtr(x.double())
        off = triton_elementwise.activate(x.clone()[None], "gelu")[0].double() - exact
        kind = torch.finfo(dtype)
        step = (exact.abs() * kind.eps).clamp(min=kind.smallest_normal * kind.eps)
        seen = (x > -5.5) & (x.abs() > 1e-30)
        assert (off.abs() <= bound * step + 5e-6 * exact.abs())[seen].all()
        assert off[~seen].abs().max() < 3e-7


@pytest.mark.workflow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_whole_model_through_the_kernels(
    fused: Elementwise, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    model = checkpoints.TINY_ESM2
    model = checkpoints.decided(model, token_dropout=True)
    engine = Engine(model, checkpoints.random_state(model, 7), CPU, dtype)  # type: ignore[arg-type]
    engine.rows = 64  # the interpreter takes each by itself
    batch = packed_batch(engine, ["MKTAYIAKQRQISFVKSHFSRQ", "ACDEF", "M"])
    layers = list(range(model.layers + 1))
    assert engine.elementwise is PLAIN
    expected = engine.forward(batch, layers)
    # as on CUDA
    monkeypatch.setitem(LATE_BIASES, "cpu", True)
    engine = Engine(model, checkpoints.random_state(model, 7), CPU, dtype)  # type: ignore[arg-type]
    engine.elementwise = fused
    for layer, found in engine.forward(batch, layers).items():
        for ours, theirs in zip(batch.split(found), batch.split(expected[layer]), strict=True):
            if dtype == "float32":
                assert torch.allclose(ours, theirs, atol=2e-5)
            else:
                assert torch.cosine_similarity(ours, theirs, dim=1).min() > 0.9995
