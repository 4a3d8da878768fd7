"""Published layouts read into one set of names."""

import argparse
import re
from dataclasses import replace
from pathlib import Path

import esm
import pytest
import torch
from safetensors.torch import load_file, save_file

from plm_embed.errors import WeightsError
from plm_embed.models.families.esm import ESM2, MASK
from plm_embed.models.registry import Model
from support.checkpoints import (
    TINY_ESM1B,
    TINY_ESM1V,
    TINY_ESM2,
    edit_json,
    random_state,
    read,
    write_fair_esm,
    write_hugging_face,
)


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.filterwarnings("ignore:Regression weights not found")
@pytest.mark.parametrize("model", [TINY_ESM2, TINY_ESM1B, TINY_ESM1V], ids=lambda model: model.name)
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_fair_esm_loads_what_we_load(model: Model, legacy: bool, tmp_path: Path) -> None:
    state = random_state(model, 1)
    path = write_fair_esm(tmp_path / f"{model.name}.pt", model, state, legacy=legacy)
    ours = read(path, model)
    assert equal(ours.tensors, state)
    assert (ours.layout, ours.token_dropout) == ("fair-esm", True)
    with torch.serialization.safe_globals([argparse.Namespace]):
        theirs, _ = esm.pretrained.load_model_and_alphabet(str(path))
    encoder = {
        n: t for n, t in theirs.state_dict().items() if "head." not in n and "inv_freq" not in n
    }
    assert equal(ours.tensors, encoder)


def test_the_mask_row_is_cleared_for_esm1b_only(tmp_path: Path) -> None:
    path = write_fair_esm(tmp_path / "esm1b.pt", TINY_ESM1B, random_state(TINY_ESM1B, 1))
    with torch.serialization.safe_globals([argparse.Namespace]):
        published = torch.load(path)["model"]["encoder.sentence_encoder.embed_tokens.weight"]
    assert published[MASK].any()
    assert not read(path, TINY_ESM1B).tensors["embed_tokens.weight"][MASK].any()
    path = write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, random_state(TINY_ESM2, 1))
    assert read(path, TINY_ESM2).tensors["embed_tokens.weight"][MASK].any()


def test_a_folder_that_transformers_5_wrote(tmp_path: Path) -> None:
    """It gives norms the names of TensorFlow, and frequencies one name for all layers."""
    state = random_state(TINY_ESM2, 1)
    file = write_hugging_face(tmp_path / "hf", TINY_ESM2, state) / "model.safetensors"
    new = {".LayerNorm.weight": ".LayerNorm.gamma", ".LayerNorm.bias": ".LayerNorm.beta"}
    written = {}
    for name, tensor in load_file(file).items():
        theirs = re.sub(r"layer\.\d+(.*inv_freq)", r"layer.*\1", name)
        for old, other in new.items():
            theirs = theirs.replace(old, other)
        written[theirs] = tensor
    assert len([name for name in written if name.endswith(("gamma", "beta"))]) == 8
    save_file(written, file)
    assert equal(read(tmp_path / "hf", TINY_ESM2).tensors, state)


def test_token_dropout_is_what_the_checkpoint_says(tmp_path: Path) -> None:
    folder = write_hugging_face(tmp_path, TINY_ESM2, random_state(TINY_ESM2, 1))
    edit_json(folder / "config.json", token_dropout=False)
    assert not read(folder, TINY_ESM2).token_dropout


@pytest.mark.parametrize("applied", [False, True])
def test_token_dropout_may_be_the_familys(applied: bool, tmp_path: Path) -> None:
    encoder = replace(ESM2.encoder, token_dropout=applied)
    model = replace(TINY_ESM2, family=replace(ESM2, encoder=encoder, required=()))
    config = write_hugging_face(tmp_path, model, random_state(model, 1)) / "config.json"
    edit_json(config, token_dropout=not applied)
    with pytest.raises(WeightsError, match=f"it says token_dropout: {not applied}, not {applied}"):
        read(tmp_path, model)
    config.write_text(config.read_text().replace("token_dropout", "something_else"))
    assert read(tmp_path, model).token_dropout == applied
