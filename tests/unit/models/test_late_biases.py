"""As on CUDA: sums within products, whose biases the next norm adds; here by torch on a CPU."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from plm_embed.inference.weights import prepare
from plm_embed.kernels.elementwise import Elementwise
from plm_embed.kernels.linear import Linear
from plm_embed.models import weights
from plm_embed.models.engine import Engine
from plm_embed.models.layers import LATE_BIASES
from support.families import SHIPPED, TINY, golden, relative, source
from support.packed import packed_batch

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are not packed, and linear layers without the biases that norms add."""
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    monkeypatch.setitem(LATE_BIASES, "cpu", True)


class SumsWithinProducts(Elementwise):
    def add(self, x: Tensor, linear: Linear, y: Tensor) -> None:
        linear.add_to(x, y)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", TINY)
def test_every_layer_is_what_the_formulas_give(name: str, exact: bool, tmp_path: Path) -> None:
    known = golden(name, SHIPPED)
    prepare(TINY[name], source(name, SHIPPED), tmp_path)
    manifest, tensors, _ = weights.load(tmp_path)
    engine = Engine(manifest.as_model, tensors, CPU, "float32")
    assert all(layer.out.bias is None and layer.fc2.bias is None for layer in engine._layers)
    engine.elementwise, engine._family = SumsWithinProducts(), TINY[name].family
    batch = packed_batch(engine, known.sequences)
    for layer in range(4):  # each alone has the biases before it
        states = engine.forward(batch, [layer], exact)[layer]
        for i, (state, (first, stop)) in enumerate(
            zip(batch.split(states), batch.residues, strict=True)
        ):
            mean = state[first:stop].double().mean(0).numpy()
            assert relative(mean, known.means[i, layer]) < 5e-6, (i, layer)
