"""ProstT5 of 3Di strings: its own letters, by the weights of ProstT5."""

from pathlib import Path

import pytest

import plm_embed
from plm_embed.errors import ConfigError, InputError
from plm_embed.inference.weights import prepare
from plm_embed.models.registry import MODELS, find_model
from plm_embed.sequences.residues import ResiduePolicy, Skipped, normalize
from plm_embed.workflow.checks import mistakes
from support.families import add_model, golden, relative, source
from support.tiny_models import TINY

MODEL = TINY["prostt5_3di"]


def test_states_in_either_case_have_one_vector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_model(monkeypatch, MODEL)
    known = golden("prostt5_3di")
    prepare(MODEL, source("prostt5_3di"), tmp_path / "weights")
    with plm_embed.load(MODEL.name, weights=tmp_path / "weights", dtype="float32") as model:
        upper = model.embed(list(known.sequences))
        assert (upper == model.embed([one.lower() for one in known.sequences])).all()
        for found, wanted in zip(upper, known.means[:, -1], strict=True):
            assert relative(found, wanted) < 1e-5
        assert model.embed(known.sequences[:1], pooling="per_residue")[0].shape == (22, 32)
        with pytest.raises(InputError, match="unknown_residues"):
            model.embed(["DPVX"])
        with pytest.raises(InputError, match="these are nucleotides, and the model reads 3Di"):
            model.embed(["ACGTTGCA" * 50])


def test_no_state_stands_for_an_unknown_one() -> None:
    found = normalize("DPVXQ", ResiduePolicy(alphabet="3di"))
    assert found == Skipped("unknown_residues", "X at 4")
    with pytest.raises(ConfigError, match="no 3Di state stands for an unknown one"):
        ResiduePolicy(unknown="substitute", alphabet="3di")
    asked = {"inputs": [__file__], "model": "ProstT5-3Di", "residues": {"unknown": "substitute"}}
    (line,) = mistakes(asked, {})
    assert "substitute: no 3Di state stands for an unknown one" in line
    (line,) = mistakes({"inputs": [__file__], "model": ["ProstT5", "ProstT5-3Di"]}, {})
    assert "ProstT5 reads protein, ProstT5-3Di reads 3di" in line


def test_the_weights_are_those_of_prostt5() -> None:
    ours = find_model("prostt5_3di")
    assert ours is MODELS["ProstT5-3Di"]
    assert find_model("Rostlab/ProstT5").name == "ProstT5"
    assert ours.address == MODELS["ProstT5"].address
    assert ours.address != MODELS["ProstT5_fp16"].address
    assert ours.family.master == "master_prostt5_3di_embeddings"
