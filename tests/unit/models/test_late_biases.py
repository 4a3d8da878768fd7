"""As on CUDA: sums within products, whose biases the next norm adds; here by torch on a CPU."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from plm_embed.inference.weights import prepare
from plm_embed.kernels import linear
from plm_embed.kernels.elementwise import PLAIN
from plm_embed.kernels.linear import Linear
from plm_embed.models import weights
from plm_embed.models.engine import Engine
from plm_embed.models.layers import LATE_BIASES
from plm_embed.models.registry import Model
from plm_embed.models.weights import Manifest, Source
from support import checkpoints
from support.families import SHIPPED, TINY, golden, relative, source

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are not packed, and linear layers without the biases that norms add."""
    monkeypatch.setattr(linear, "_pack", lambda _: None)
    monkeypatch.setitem(LATE_BIASES, "cpu", True)


def within(engine: Engine) -> Engine:
    def add(x: Tensor, linear: Linear, y: Tensor) -> None:
        linear.add_to(x, y)

    assert all(layer.out.bias is None and layer.fc2.bias is None for layer in engine._layers)
    engine.elementwise = replace(PLAIN, add=add)
    return engine


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", TINY)
def test_every_layer_is_what_the_formulas_give(name: str, exact: bool, tmp_path: Path) -> None:
    known = golden(name, SHIPPED)
    prepare(TINY[name], source(name, SHIPPED), tmp_path)
    manifest, tensors = weights.load(tmp_path)
    engine = within(Engine(manifest, tensors, CPU, "float32"))
    engine._family = TINY[name].family
    batch = engine.prepare(known.sequences)
    for layer, states in engine.forward(batch, range(4), exact).items():
        for i, found in enumerate(batch.split(states)):
            first, stop = batch.residues[i]
            mean = found[first:stop].double().mean(0).numpy()
            assert relative(mean, known.means[i, layer]) < 5e-6, (i, layer)


@pytest.mark.parametrize("model", [checkpoints.TINY_ESM2, checkpoints.TINY_ESM1B])
def test_each_layer_asked_for_has_the_biases_before_it(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = model.layers, model.dim, model.heads, None
    manifest = Manifest(
        model.name, model.architecture, *shape, True, "MIT", "", 0, Source("fair-esm", "")
    )
    state = checkpoints.random_state(model, 7)
    late = within(Engine(manifest, state, CPU, "float32"))
    monkeypatch.setitem(LATE_BIASES, "cpu", False)
    usual = Engine(manifest, state, CPU, "float32")
    batch = usual.prepare(["MKTAYIAKQRQISFVKSHFSRQ" * 3, "ACDEF", "M"])
    for layer in range(model.layers + 1):
        found, expected = (each.forward(batch, [layer])[layer] for each in (late, usual))
        assert torch.allclose(found, expected, atol=2e-5), layer
