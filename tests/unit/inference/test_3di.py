"""ProstT5 of 3Di strings: its own letters, by the weights of ProstT5."""

from pathlib import Path

import pytest

import plm_embed
from plm_embed.errors import InputError
from plm_embed.fingerprint import master_name
from plm_embed.inference.weights import prepare
from plm_embed.models.registry import MODELS, find_model
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
        with pytest.raises(InputError, match=r"unknown_residues \(X at 4\)"):
            model.embed(["DPVX"])
        with pytest.raises(InputError, match="these are nucleotides, and the model reads 3Di"):
            model.embed(["ACGTTGCA" * 50])


def test_a_campaign_of_them_is_one_of_its_own() -> None:
    """No 3Di state stands for an unknown one, and none is a residue."""
    asked = {"inputs": [__file__], "model": "ProstT5-3Di", "residues": {"unknown": "substitute"}}
    (line,) = mistakes(asked, {})
    assert "substitute: no 3Di state stands for an unknown one" in line
    (line,) = mistakes({"inputs": [__file__], "model": ["ProstT5", "ProstT5-3Di"]}, {})
    assert "ProstT5 reads protein, ProstT5-3Di reads 3di" in line
    ours = find_model("prostt5_3di")
    assert ours is MODELS["ProstT5-3Di"]
    assert ours.address == MODELS["ProstT5"].address != MODELS["ProstT5_fp16"].address
    assert master_name(ours.family.name) == "master_prostt5_3di_embeddings"
