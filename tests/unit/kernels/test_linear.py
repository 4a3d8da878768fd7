from typing import Any

import pytest
import torch
import torch.nn.functional as F

from plm_embed.kernels import linear
from plm_embed.kernels.linear import Int8Linear, Linear, to_int8


@pytest.mark.parametrize("activation", [None, *linear._PLAIN])
@pytest.mark.parametrize(("rows", "inner", "outer"), [(1, 32, 96), (512, 320, 960), (7, 1280, 33)])
def test_packed_and_plain_weights_agree(
    monkeypatch: pytest.MonkeyPatch, rows: int, inner: int, outer: int, activation: Any
) -> None:
    random = torch.Generator().manual_seed(1)
    x, weight, bias = (
        torch.randn(shape, generator=random) for shape in ((rows, inner), (outer, inner), (outer,))
    )
    for added in (bias, None):
        exact = F.linear(x.double(), weight.double(), added if added is None else added.double())
        exact = linear._PLAIN[activation](exact) if activation else exact
        for has_onednn in (torch._C._has_mkldnn, False):
            monkeypatch.setattr(torch._C, "_has_mkldnn", has_onednn)
            found = Linear(weight, added)(x, activation)
            assert found.dtype == torch.float32
            assert (found - exact).abs().max() < 1e-6 * inner


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [None, torch.linspace(-1, 1, 96)])
@pytest.mark.parametrize("packed", [True, False])
def test_a_result_is_added_to_what_is_there(
    monkeypatch: pytest.MonkeyPatch, packed: bool, bias: torch.Tensor | None, dtype: torch.dtype
) -> None:
    random = torch.Generator().manual_seed(1)
    x, y, weight = (torch.randn(each, generator=random) for each in ((5, 96), (5, 32), (96, 32)))
    y, weight, bias = (each if each is None else each.to(dtype) for each in (y, weight, bias))
    if not packed:
        monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    exact = F.linear(y.double(), weight.double(), bias if bias is None else bias.double()) + x
    found = x.clone()
    Linear(weight, bias).add_to(found, y)
    assert (found - exact).abs().max() < (2e-5 if dtype == torch.float32 else 0.1)


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


@pytest.mark.parametrize("activation", [None, *linear._PLAIN])
@pytest.mark.parametrize("bias", [None, torch.linspace(-1, 1, 33)])
def test_8_bit_products_are_exact_and_blind_to_other_rows(
    bias: torch.Tensor | None, activation: Any
) -> None:
    random = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(shape, generator=random) for shape in ((40, 1280), (33, 1280)))
    x[3], x[4], weight[5] = 1000 * x[3], 0, 1e-30 * weight[5]
    (xs, xi), (ws, wi) = to_int8(x), to_int8(weight)
    assert xi.abs().amax(1).tolist() == [127] * 4 + [0] + [127] * 35
    exact = (xi.double() @ wi.double().t()) * xs.double() * ws.double().t()
    exact = exact if bias is None else exact + bias.double()
    exact = linear._PLAIN[activation](exact) if activation else exact
    layer = Int8Linear(weight, bias)
    y = layer(x, activation)
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-5)
    out = torch.empty_like(y)
    layer(x, activation, out=out)
    assert torch.equal(out, y)
    apart = F.linear(x, weight, bias) - layer(x)
    assert (apart.norm(dim=1) <= 0.02 * F.linear(x, weight).norm(dim=1)).all()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("activation", [None, *linear._PLAIN])
def test_8_bit_products_do_not_depend_on_the_place_of_a_row(activation: Any, threads: int) -> None:
    random = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(shape, generator=random) for shape in ((256, 64), (1040, 64)))
    layer, order = Int8Linear(weight, None), torch.randperm(256, generator=random)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(layer(x[order], activation), layer(x, activation)[order])
    finally:
        torch.set_num_threads(before)


def test_8_bit_products_whose_sums_overflow_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CPUs without VNNI, where pairs of products of numbers from 0 to 255 are added in 16
    bits.
    """
    assert linear.int8_problem.__wrapped__() == ""

    def saturating(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        products = (x.int()[:, :, None] + 128) * y.int()[None]  # (n, m, out)
        pairs = products.unflatten(1, (-1, 2)).sum(2).clamp(-(2**15), 2**15 - 1)
        return pairs.sum(1, dtype=torch.int32) - 128 * y.int().sum(0, dtype=torch.int32)

    monkeypatch.setattr(torch, "_int_mm", saturating)
    assert "not exact" in linear.int8_problem.__wrapped__()
    monkeypatch.delattr(torch, "_int_mm")
    assert "_int_mm" in linear.int8_problem.__wrapped__()
