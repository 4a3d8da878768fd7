"""The forward pass against fair-esm's own models, on whole models and on random batches."""

import argparse
import tempfile
from copy import copy
from functools import cache
from pathlib import Path

import esm
import numpy as np
import pytest
import torch
from Bio.SeqIO.FastaIO import SimpleFastaParser
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_embed.fingerprint import ComputeDtype
from plm_embed.inference.reference import hidden_states
from plm_embed.inference.weights import prepare
from plm_embed.kernels import attention, torch_attention
from plm_embed.models import weights
from plm_embed.models.engine import Engine
from plm_embed.models.families.esm import ESM2, VOCABULARY
from plm_embed.models.packed_batch import DTYPES, ROWS
from plm_embed.models.registry import MODELS, Model
from plm_embed.models.weights import Manifest, Source
from plm_embed.sequences.alphabet import PROTEIN
from support import checkpoints
from support.checkpoints import mean_of

GOLDEN = Path(__file__).parents[2] / "data" / "esm2_golden"
CPU = torch.device("cpu")
SEQUENCES = [
    "M",
    "MK",
    "ACDEFGHIKLMNPQRSTVWY",
    "XBUZO" * 7,
    "LAGVSERTIDPKQNFYMHWC" * 30,
    "G" * 1022,
    "W" * 1100,
]
LONGEST_1B = 1022


@pytest.fixture(
    scope="module",
    params=[checkpoints.TINY_ESM2, checkpoints.TINY_ESM1B, checkpoints.TINY_ESM1V],
    ids=lambda model: model.name,
)
def model(request: pytest.FixtureRequest) -> Model:
    return request.param


@pytest.fixture(scope="module")
def paths(model: Model, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint in fair-esm's layout, and the weights folder made from it."""
    folder = tmp_path_factory.mktemp("weights")
    source = checkpoints.write_fair_esm(
        folder / f"{model.name}.pt", model, checkpoints.random_state(model, 5)
    )
    prepare(model, source, folder / "prepared")
    return source, folder / "prepared"


def fair_esm(source: Path, sequences: list[str]) -> list[dict[int, torch.Tensor]]:
    """Every layer's (L + 2, D) of each sequence, one at a time through the model as fair-esm loads
    it.
    """
    with torch.serialization.safe_globals([argparse.Namespace]):
        whole, alphabet = esm.pretrained.load_model_and_alphabet(str(source))
    whole.eval()
    layers = range(whole.num_layers + 1)
    found = []
    for sequence in sequences:
        _, _, tokens = alphabet.get_batch_converter()([("", sequence)])
        with torch.inference_mode():
            states = whole(tokens, repr_layers=layers)["representations"]
        found.append({layer: states[layer][0] for layer in layers})
    return found


def engine_of(folder: Path, dtype: str = "float32") -> Engine:
    manifest, tensors = weights.load(folder)
    return Engine(manifest, tensors, CPU, dtype)  # type: ignore[arg-type]


def hidden(
    engine: Engine, sequences: list[str], layers: list[int]
) -> list[dict[int, torch.Tensor]]:
    batch = engine.prepare(sequences)
    states = engine.forward(batch, layers)
    cut = {layer: batch.split(state) for layer, state in states.items()}
    return [{layer: cut[layer][i] for layer in layers} for i in range(len(sequences))]


def test_every_layer_of_whole_models_equals_fair_esm(
    model: Model, paths: tuple[Path, Path]
) -> None:
    source, folder = paths
    sequences = [
        sequence
        for sequence in SEQUENCES
        if model.max_residues is None or len(sequence) <= LONGEST_1B
    ]
    layers = list(range(model.layers + 1))
    expected = fair_esm(source, sequences)
    for name, found in (
        ("engine", hidden(engine_of(folder), sequences, layers)),
        ("reference", hidden_states(folder, sequences, layers)),
    ):
        for sequence, ours, theirs in zip(sequences, found, expected, strict=True):
            for layer in layers:
                assert ours[layer].shape == (len(sequence) + 2, model.dim)
                assert torch.allclose(ours[layer], theirs[layer], atol=2e-5, rtol=1e-5), (
                    name,
                    len(sequence),
                    layer,
                )


def test_a_token_that_is_lost_is_noticed() -> None:
    engine = copy(random_engine(checkpoints.TINY_ESM2))
    shorter = engine._tokens._replace(tokenize=lambda text: VOCABULARY.tokenize(text)[1:])
    engine._tokens = shorter
    with pytest.raises(RuntimeError, match="another number of residue tokens"):
        engine.prepare(["MKT"])


def test_only_the_layers_asked_for_are_computed(paths: tuple[Path, Path]) -> None:
    engine = engine_of(paths[1])
    batch = engine.prepare(["MKT"])
    assert set(engine.forward(batch, [1])) == {1}
    assert torch.equal(engine.forward(batch, [1])[1], engine.forward(batch, [0, 1, 2])[1])


@cache
def random_engine(model: Model, dtype: str = "float32") -> Engine:
    shape = model.layers, model.dim, model.heads, model.max_residues
    source = Source("fair-esm", "")
    manifest = Manifest(model.name, model.architecture, *shape, True, "MIT", "", 0, source)
    return Engine(manifest, checkpoints.random_state(model, 7), CPU, dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        (checkpoints.TINY_ESM2, "float32"),
        (checkpoints.TINY_ESM2, "bfloat16"),
        (checkpoints.TINY_ESM2, "float16"),
        (checkpoints.TINY_ESM1B, "float32"),
    ],
    ids=lambda each: str(getattr(each, "name", each)),
)
@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.text(PROTEIN.letters, min_size=1, max_size=300), min_size=1, max_size=12), st.data()
)
def test_a_vector_has_the_same_bits_in_any_company(
    model: Model, dtype: str, sequences: list[str], data: st.DataObject
) -> None:
    engine = random_engine(model, dtype)
    # some of equal length, which may share a call
    sequences += [sequences[0], "M" * len(sequences[0])]
    order = data.draw(st.permutations(range(len(sequences))))
    company = data.draw(st.lists(st.text(PROTEIN.letters, min_size=1, max_size=900), max_size=4))
    mixed = hidden(engine, [*company, *(sequences[i] for i in order)], [1, 2])[len(company) :]
    for i, found in zip(order, mixed, strict=True):
        (alone,) = hidden(engine, [sequences[i]], [1, 2])
        assert torch.equal(found[1], alone[1])
        assert torch.equal(found[2], alone[2])


def test_lengths_at_the_limits_and_the_residues_at_the_ends(
    paths: tuple[Path, Path], model: Model
) -> None:
    lengths = [1, 2, 1022] + ([1023, 2134] if model.max_residues is None else [])
    sequences = [("LAGVSERTIDPKQNFYMHWC" * 107)[-length:] for length in lengths]
    exact = hidden_states(paths[1], sequences, [1, 2])
    for dtype in ("float32", "bfloat16", "float16"):
        found = hidden(engine_of(paths[1], dtype), sequences, [1, 2])
        for sequence, ours, theirs in zip(sequences, found, exact, strict=True):
            for layer in (1, 2):
                assert ours[layer].shape == (len(sequence) + 2, model.dim)
                # all, the first and the last residue
                for part in (slice(None), slice(1, 2), slice(-2, -1)):
                    a, b = ours[layer][part], theirs[layer][part]
                    if dtype == "float32":
                        assert torch.allclose(a, b, atol=2e-5, rtol=1e-5)
                    else:
                        assert torch.cosine_similarity(a, b, dim=1).min() > 0.999


@pytest.mark.workflow
def test_a_sequence_of_36000_residues(monkeypatch: pytest.MonkeyPatch) -> None:
    """By two kernels, since whole attention matrices of such a length fit nowhere."""
    monkeypatch.setattr(torch_attention, "SCORE_BYTES", 1 << 26)
    engine = random_engine(Model("esm2_t1_16", ESM2, layers=1, dim=16, heads=1))
    giant = ("LAGVSERTIDPKQNFYMHWC" * 1_801)[-36_000:]
    ((found, *_), (expected, *_)) = (
        [states[1] for states in hidden(one, [giant, "MK"], [1])]
        for one in (engine, with_attention(engine, torch_attention.blocked))
    )
    assert found.shape == (36_002, 16)
    assert torch.allclose(found, expected, atol=2e-5)


def with_attention(engine: Engine, attend: attention.Attend) -> Engine:
    other = copy(engine)
    other.attention = attention.Kernel("", "another", attend)
    return other


def test_half_precision_weights_can_be_used_in_fp32(paths: tuple[Path, Path]) -> None:
    sequences = ["MKTAYIAKQR" * 9, "ACD"]
    engine = engine_of(paths[1], "float16")
    batch = engine.prepare(sequences)
    exact = engine.forward(batch, [2], exact=True)[2]
    manifest, tensors = weights.load(paths[1])
    matrices = {name: tensor.half().float() if tensor.ndim == 2 and "embed" not in name else tensor
                for name, tensor in tensors.items()}  # fmt: skip
    expected = Engine(manifest, matrices, CPU, "float32").forward(batch, [2])[2]
    # biases are rounded too
    assert torch.allclose(exact, expected, atol=2e-3)
    assert not torch.allclose(exact, engine.forward(batch, [2])[2], atol=1e-6)


def test_batches_are_whole_slices_of_rows() -> None:
    batch = random_engine(checkpoints.TINY_ESM2).prepare(["M" * 700, "K" * 3])
    assert batch.lengths == (702, 5)
    assert len(batch.tokens) == len(batch.positions) == -(-707 // ROWS["cpu"]) * ROWS["cpu"]
    assert batch.boundaries.tolist() == [0, 702, 707]
    assert batch.segments.tolist() == [1, 700, 1, 1, 3, 1]
    assert batch.residues == ((1, 701), (1, 4))


@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 0.9999), ("float16", 0.99999)])
def test_half_precision_stays_near(
    paths: tuple[Path, Path], dtype: ComputeDtype, bound: float
) -> None:
    sequences = [sequence for sequence in SEQUENCES if 10 < len(sequence) <= LONGEST_1B]
    exact = hidden(engine_of(paths[1]), sequences, [2])
    engine = engine_of(paths[1], dtype)
    for kernel in attention._candidates(CPU, DTYPES[dtype]):  # with and without a compiler
        engine.attention = kernel
        for ours, theirs in zip(hidden(engine, sequences, [2]), exact, strict=True):
            assert ours[2].dtype == torch.float32
            assert torch.cosine_similarity(mean_of(ours[2]), mean_of(theirs[2]), dim=0) > bound


def test_real_shape_equals_fair_esm_one_by_one(tmp_path: Path) -> None:
    model = MODELS["esm2_t6_8M_UR50D"]
    source = checkpoints.write_fair_esm(
        tmp_path / f"{model.name}.pt", model, checkpoints.random_state(model, 11)
    )
    prepare(model, source, tmp_path / "prepared")
    sequences = ["MKTAYIAKQR", "LAGVSERTIDPKQNFYMHWC" * 12, "M" * 3, "ACDEFGHIKLMNPQRSTVWY" * 28]
    expected = fair_esm(source, sequences)
    for ours, theirs in zip(
        hidden(engine_of(tmp_path / "prepared"), sequences, [6]), expected, strict=True
    ):
        assert (mean_of(ours[6]) - mean_of(theirs[6])).abs().max() < 1e-5


@cache
def golden() -> tuple[Engine, dict[str, str], dict[str, np.ndarray]]:
    """The tiny model's engine, its inputs by key, and their expected values from a float64 forward
    pass.
    """
    with tempfile.TemporaryDirectory() as folder:
        prepare(MODELS["esm2_t3_untrained"], GOLDEN / "esm2_t3_tiny_random.pt", Path(folder))
        engine = engine_of(Path(folder))
    expected = dict(np.load(GOLDEN / "esm2_t3_tiny_random.expected.npz"))
    with (GOLDEN / "esm2_t3_tiny_random.fasta").open() as lines:
        sequences = dict(SimpleFastaParser(lines))
    cases = {}
    for key in sorted({name.rsplit("|", 1)[0] for name in expected}):
        record, variant = key.rsplit("|", 1)
        sequence = sequences[record]
        if set(sequence) <= set(PROTEIN.letters):
            # '-', '.' and <mask> are tokens to the model, but no residues here
            cases[key] = sequence[:1022] if variant == "first1022" else sequence
    return engine, cases, expected


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_golden_values_in_float64_in_any_batch(data: st.DataObject) -> None:
    engine, cases, expected = golden()
    assert len(cases) > 15
    batch = data.draw(st.lists(st.sampled_from(sorted(cases)), min_size=1, max_size=len(cases)))
    layers = list(range(4))
    for key, found in zip(
        batch, hidden(engine, [cases[key] for key in batch], layers), strict=True
    ):
        means = np.stack([mean_of(found[layer]).numpy() for layer in layers])
        assert np.abs(means - expected[f"{key}|mean"]).max() < 1e-4
        assert np.abs(found[3][0].numpy() - expected[f"{key}|bos"]).max() < 1e-4
        if f"{key}|tokens" in expected:
            assert np.abs(found[3].numpy() - expected[f"{key}|tokens"]).max() < 3e-4
