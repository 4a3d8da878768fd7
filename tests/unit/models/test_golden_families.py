"""Every family against float64 values of its authors' formulas, and in any company."""

from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plm_embed.inference.pooling import pool_batch
from plm_embed.inference.reference import hidden_states
from plm_embed.inference.weights import prepare
from plm_embed.kernels.elementwise import Elementwise
from plm_embed.kernels.linear import Linear
from plm_embed.models import weights
from plm_embed.models.engine import Engine
from plm_embed.models.layers import LATE_BIASES
from plm_embed.models.registry import Model
from support import checkpoints
from support.families import LARGER, SHIPPED, TINY, golden, relative, source
from support.packed import packed_batch

CPU = torch.device("cpu")
SETS = [pytest.param(name, SHIPPED, id=name) for name in TINY]
if LARGER:
    SETS += [pytest.param(name, Path(LARGER), id=f"{name}-larger") for name in TINY]


@cache
def prepared(name: str, folder: Path, root: Path = SHIPPED) -> Path:
    output = folder / root.name / name
    prepare(TINY[name], source(name, root), output)
    return output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def engine_of(name: str, folder: Path, dtype: str = "float32", root: Path = SHIPPED) -> Engine:
    manifest, tensors, _ = weights.load(prepared(name, folder, root))
    engine = Engine(manifest.as_model, tensors, CPU, dtype)  # type: ignore[arg-type]
    engine._family = TINY[name].family
    return engine


@pytest.mark.parametrize(("name", "root"), SETS)
def test_token_ids_are_the_published_ones(name: str, root: Path, folder: Path) -> None:
    known = golden(name, root)
    engine = engine_of(name, folder, root=root)
    for sequence, ids in zip(known.sequences, known.ids, strict=True):
        assert engine.tokenize(sequence).tolist() == ids.tolist()


@pytest.mark.parametrize(("name", "root"), SETS)
def test_every_layer_is_what_the_formulas_give(name: str, root: Path, folder: Path) -> None:
    known = golden(name, root)
    engine = engine_of(name, folder, root=root)
    order = np.random.default_rng(1).permutation(len(known.sequences))
    for chosen in (order, order[::-1][: len(order) // 2]):
        batch = packed_batch(engine, [known.sequences[i] for i in chosen])
        for layer, states in engine.forward(batch, range(4)).items():
            cut = zip(chosen, batch.split(states), batch.residues, strict=True)
            for i, found, (first, stop) in cut:
                mean = found[first:stop].double().mean(0).numpy()
                assert relative(mean, known.means[i, layer]) < 5e-6, (i, layer)
                if i in known.tokens:
                    assert relative(found.numpy(), known.tokens[i][layer]) < 1e-5, (i, layer)


class SumsWithinProducts(Elementwise):
    """As on CUDA: linear layers lack the biases of sums, which the next norm adds."""

    def add(self, x: Tensor, linear: Linear, y: Tensor) -> None:
        linear.add_to(x, y)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", TINY)
def test_every_layer_has_the_biases_before_it(
    name: str, exact: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)  # weights are not packed
    monkeypatch.setitem(LATE_BIASES, "cpu", True)
    known, engine = golden(name), engine_of(name, folder)
    assert all(layer.out.bias is None and layer.fc2.bias is None for layer in engine._layers)
    engine.elementwise = SumsWithinProducts()
    batch = packed_batch(engine, known.sequences)
    for layer in range(4):
        states = batch.split(engine.forward(batch, [layer], exact)[layer])
        for i, (state, (first, stop)) in enumerate(zip(states, batch.residues, strict=True)):
            mean = state[first:stop].double().mean(0).numpy()
            assert relative(mean, known.means[i, layer]) < 5e-6, (i, layer)


@pytest.mark.parametrize(
    ("name", "root"), [each for each in SETS if golden(*each.values).special is not None]
)
def test_the_mean_with_special_tokens_is_the_authors(name: str, root: Path, folder: Path) -> None:
    known = golden(name, root)
    assert known.special is not None
    engine = engine_of(name, folder, root=root)
    batch = packed_batch(engine, known.sequences)
    found = pool_batch("mean_special", engine.forward(batch, [3])[3], batch).double().numpy()
    for mean, wanted in zip(found, known.special, strict=True):
        assert relative(mean, wanted) < 5e-6


@pytest.mark.parametrize("name", TINY)
def test_the_reference_computes_the_same(name: str, folder: Path) -> None:
    known = golden(name)
    chosen = [i for i, sequence in enumerate(known.sequences) if len(sequence) < 500]
    sequences = [known.sequences[i] for i in chosen]
    single = known.model.family.reference.name == "fair-esm"
    bound = 1e-6 if single else 2e-7  # in float32 or float64
    for i, states in zip(
        chosen, hidden_states(prepared(name, folder), sequences, [0, 1, 3]), strict=True
    ):
        for layer, found in states.items():
            first, stop = known.model.family.residues(len(found))
            mean = found[first:stop].double().mean(0).numpy()
            assert relative(mean, known.means[i, layer]) < bound


@pytest.mark.parametrize(
    ("dtype", "bound"), [("bfloat16", 0.999), ("float16", 0.99999), ("int8", 0.995)]
)
@pytest.mark.parametrize("name", TINY)
def test_half_precision_keeps_the_direction(
    name: str, dtype: str, bound: float, folder: Path
) -> None:
    known = golden(name)
    engine = engine_of(name, folder, dtype)
    batch = packed_batch(engine, known.sequences)
    states = engine.forward(batch, [3])[3]
    for i, (found, rows) in enumerate(zip(batch.split(states), batch.residues, strict=True)):
        mean, wanted = found[slice(*rows)].double().mean(0).numpy(), known.means[i, 3]
        cosine = mean @ wanted / (np.linalg.norm(mean) * np.linalg.norm(wanted))
        assert cosine > bound


def test_only_t5_keeps_its_last_matrix_in_fp32(folder: Path) -> None:
    """Numbers that overflow in float16 on the way, as those of the real ProtT5 do."""
    for name, finite in (("prott5", True), ("esmc", False)):
        manifest, tensors, _ = weights.load(prepared(name, folder))
        huge = {n: 1e5 * t if n.endswith("fc2.weight") else t for n, t in tensors.items()}
        engine = Engine(manifest.as_model, huge, CPU, "float16")
        found = engine.forward(packed_batch(engine, ["MKTAYIAKQR" * 5]), [3])[3]
        assert bool(torch.isfinite(found[:52]).all()) == finite


ALL = TINY | {"esm2": checkpoints.TINY_ESM2, "esm1b": checkpoints.TINY_ESM1B}


@cache
def random_engine(name: str, dtype: str) -> Engine:
    """A golden model on two heads of 16 or more, for which torch's own attention keeps its bits."""
    model: Model = ALL[name]
    tensors = (
        checkpoints.read(source(name), model).tensors
        if name in TINY
        else checkpoints.random_state(model, 7)
    )
    model = checkpoints.decided(model, token_dropout=name not in TINY)
    return Engine(model, tensors, CPU, dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize("name", ALL)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_a_vector_has_the_same_bits_in_any_company(
    name: str, dtype: str, data: st.DataObject
) -> None:
    engine = random_engine(name, dtype)
    alphabet, last = ALL[name].family.alphabet, ALL[name].layers
    width = alphabet.letters_of_residue
    letters = st.sampled_from([*map("".join, product(alphabet.letters, alphabet.states or [""]))])

    def some(longest: int, at_least: int, at_most: int) -> list[str]:
        text = st.lists(letters, min_size=1, max_size=longest).map("".join)
        return data.draw(st.lists(text, min_size=at_least, max_size=at_most))

    sequences, company = some(300, 1, 8), some(900, 0, 4)
    same_length = "Ad"[:width] * (len(sequences[0]) // width)
    sequences = [*sequences, sequences[0], same_length]
    order = data.draw(st.permutations(range(len(sequences))))
    batch = packed_batch(engine, [*company, *(sequences[i] for i in order)])
    mixed = {layer: batch.split(found) for layer, found in engine.forward(batch, [1, last]).items()}
    for at, i in enumerate(order, len(company)):
        alone = packed_batch(engine, [sequences[i]])
        for layer, found in engine.forward(alone, [1, last]).items():
            assert torch.equal(mixed[layer][at], alone.split(found)[0])
