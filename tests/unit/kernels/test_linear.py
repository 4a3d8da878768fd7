from typing import Any

import pytest
import torch
import torch.nn.functional as F

from plm_embed.kernels import linear
from plm_embed.kernels.linear import Linear


@pytest.mark.parametrize("activation", [None, *linear._PLAIN])
@pytest.mark.parametrize(("rows", "inner", "outer"), [(1, 32, 96), (512, 320, 960), (7, 1280, 33)])
def test_packed_and_plain_weights_agree(
    monkeypatch: pytest.MonkeyPatch, rows: int, inner: int, outer: int, activation: Any
) -> None:
    random = torch.Generator().manual_seed(1)
    x, weight, bias = (
        torch.randn(shape, generator=random) for shape in ((rows, inner), (outer, inner), (outer,))
    )
    exact = F.linear(x.double(), weight.double(), bias.double())
    exact = linear._PLAIN[activation](exact) if activation else exact
    packed = Linear(weight, bias)(x, activation)
    monkeypatch.setattr(linear, "_pack", lambda _: None)
    plain = Linear(weight, bias)(x, activation)
    for found in (packed, plain):
        assert found.dtype == torch.float32
        assert (found - exact).abs().max() < 1e-6 * inner


@pytest.mark.parametrize("bias", [None, torch.linspace(-1, 1, 96)])
def test_relu_in_the_product_is_that_after_it(
    monkeypatch: pytest.MonkeyPatch, bias: torch.Tensor | None
) -> None:
    random = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(shape, generator=random) for shape in ((5, 32), (96, 32)))
    monkeypatch.setattr(linear, "_pack", lambda _: None)
    expected = F.linear(x, weight, bias).clamp(min=0)
    assert torch.equal(Linear(weight, bias)(x, "relu"), expected)
    monkeypatch.delattr(torch, "_addmm_activation")
    assert torch.equal(Linear(weight, bias)(x, "relu"), expected)


def test_without_the_private_operator_torchs_own_path_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Missing:
        def __getattr__(self, name: str) -> object:
            raise AttributeError(name)

    monkeypatch.setattr(torch.ops, "mkldnn", Missing())
    assert Linear(torch.eye(4), torch.ones(4))(torch.zeros(2, 4)).tolist() == [[1.0] * 4] * 2


def test_half_precision_accumulates_in_fp32() -> None:
    ones = torch.full((1, 4096), 1.0, dtype=torch.bfloat16)
    assert Linear(ones, torch.zeros(1, dtype=torch.bfloat16))(ones).item() == 4096.0
