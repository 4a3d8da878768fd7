"""The forward pass against fair-esm's own models, on whole models and on random batches."""

import argparse
import tempfile
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
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
from plm_embed.kernels import attention
from plm_embed.kernels.attention import Packed
from plm_embed.models import reference, weights
from plm_embed.models.engine import Engine
from plm_embed.models.families.esm import ESM2
from plm_embed.models.family import ALiBi, Encoder, Rotary
from plm_embed.models.layers import DTYPES
from plm_embed.models.registry import ARCHITECTURES, MODELS, Model
from plm_embed.sequences.residues import PROTEIN
from support import checkpoints
from support.checkpoints import mean_of
from support.packed import packed_batch

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
    manifest, tensors, _ = weights.load(folder)
    return Engine(manifest.as_model, tensors, CPU, dtype)  # type: ignore[arg-type]


def hidden(
    engine: Engine, sequences: list[str], layers: Sequence[int]
) -> list[dict[int, torch.Tensor]]:
    batch = packed_batch(engine, sequences)
    states = engine.forward(batch, layers)
    cut = {layer: batch.split(state) for layer, state in states.items()}
    return [{layer: cut[layer][i] for layer in layers} for i in range(len(sequences))]


def test_every_layer_of_whole_models_equals_fair_esm(
    model: Model, paths: tuple[Path, Path]
) -> None:
    source, folder = paths
    longest = model.family.max_residues or len(SEQUENCES[-1])
    sequences = [sequence for sequence in SEQUENCES if len(sequence) <= longest]
    layers = list(range(model.layers + 1))
    expected = fair_esm(source, sequences)
    for name, found in (
        ("engine", hidden(engine_of(folder), sequences, layers)),
        ("reference", hidden_states(folder, sequences, layers)),
    ):
        for sequence, ours, theirs in zip(sequences, found, expected, strict=True):
            for layer in layers:
                assert ours[layer].shape == (len(sequence) + 2, model.dim)
                close = torch.allclose(ours[layer], theirs[layer], atol=2e-5, rtol=1e-5)
                assert close, (name, len(sequence), layer)


def test_a_token_that_is_lost_is_noticed() -> None:
    engine = copy(random_engine(checkpoints.TINY_ESM2))
    whole = engine._tokens.tokenize
    engine._tokens = engine._tokens._replace(tokenize=lambda text: whole(text)[1:])
    with pytest.raises(RuntimeError, match="another number of residue tokens"):
        packed_batch(engine, ["MKT"])


@cache
def random_engine(model: Model) -> Engine:
    model = checkpoints.decided(model, token_dropout=True)
    return Engine(model, checkpoints.random_state(model, 7), CPU, "float32")


@pytest.mark.workflow
def test_a_sequence_of_36000_residues() -> None:
    """Some of its tokens: whole attention matrices of such a length fit nowhere."""
    engine = random_engine(Model("esm2_t1_16", ESM2, layers=1, dim=16, heads=1))
    giant = ("LAGVSERTIDPKQNFYMHWC" * 1_801)[-36_000:]
    some = torch.cat([torch.arange(40), torch.arange(35_900, 36_002)])

    def attend(qkv: torch.Tensor, packed: Packed) -> torch.Tensor:
        query, key, value = qkv[: packed.lengths[0]].double()[:, :, 0].unbind(1)
        out = qkv.new_zeros((len(qkv), 16))
        out[some] = (torch.softmax(query[some] @ key.T / 4, -1) @ value).float()
        return out

    exact = copy(engine)
    exact.attention = attention.Kernel("", "of some tokens", attend)
    found, expected = (hidden(each, [giant, "MK"], [1])[0][1] for each in (engine, exact))
    assert found.shape == (36_002, 16)
    assert torch.allclose(found[some], expected[some], atol=2e-5)


@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 0.9999), ("float16", 0.99999)])
def test_half_precision_stays_near(
    paths: tuple[Path, Path], dtype: ComputeDtype, bound: float
) -> None:
    sequences = [sequence for sequence in SEQUENCES if 10 < len(sequence) <= 1022]
    exact = hidden(engine_of(paths[1]), sequences, [2])
    engine = engine_of(paths[1], dtype)
    for kernel in attention.candidates(CPU, DTYPES[dtype]):  # with and without a compiler
        engine.attention = kernel
        for ours, theirs in zip(hidden(engine, sequences, [2]), exact, strict=True):
            assert ours[2].dtype == torch.float32
            assert torch.cosine_similarity(mean_of(ours[2]), mean_of(theirs[2]), dim=0) > bound


ENCODERS = {
    "slopes, gates and norms after the sums": Encoder(
        rows=33,
        positions=ALiBi(),
        token_types=True,
        embedding_norm="always",
        order="post",
        epsilon=1e-12,
        gated=True,
        up_bias=False,
    ),
    "RMS norms of q and k, biases, neighbors rotated, no final norm": Encoder(
        rows=33,
        positions=Rotary(neighbors=True),
        norm="rms",
        query_key_norm=True,
        final_norm=False,
    ),
    "rows of q and k with biases, halves rotated": Encoder(rows=33, positions=Rotary()),
}


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
def test_encoders_that_no_family_has(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    family = replace(ESM2, name="mixed", architecture="mixed", encoder=encoder)
    monkeypatch.setitem(ARCHITECTURES, "mixed", family)
    model = Model("mixed", family, layers=2, dim=96, heads=6, ffn_dim=160)
    tensors = checkpoints.random_state(model, 1)
    sequences = ["MKTAYIAKQRQISFVKSHFSRQ" * 12, "ACDEF", "M"]
    expected = reference.all_states(model, tensors, sequences, range(3))
    found = hidden(Engine(model, tensors, CPU, "float32"), sequences, range(3))
    for ours, theirs in zip(found, expected, strict=True):
        for layer in range(3):
            assert (ours[layer] - theirs[layer]).norm() / theirs[layer].norm() < 2e-6


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
