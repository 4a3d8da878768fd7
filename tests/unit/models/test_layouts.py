"""Published layouts read into one set of names."""

import argparse
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import esm
import pytest
import torch
from safetensors.torch import load_file, save_file

from plm_embed.errors import WeightsError
from plm_embed.models.families.esm import ESM2, MASK
from plm_embed.models.registry import MODELS, Model
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
from support.families import TINY, source, write_dnabert_s, write_esmc_hub, write_esmc_native


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def pickled(name: str) -> dict[str, torch.Tensor]:
    """The tensors of a golden checkpoint as they are published."""
    place = source(name)
    file = place if place.is_file() else place / "pytorch_model.bin"
    state: dict[str, torch.Tensor] = torch.load(file, weights_only=True)
    return state


@pytest.mark.filterwarnings("ignore:Regression weights not found")
@pytest.mark.parametrize("model", [TINY_ESM2, TINY_ESM1B, TINY_ESM1V], ids=lambda model: model.name)
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_fair_esm_loads_what_we_load(model: Model, legacy: bool, tmp_path: Path) -> None:
    """The row of <mask> is cleared for ESM-1 only."""
    state = random_state(model, 1)
    path = write_fair_esm(tmp_path / f"{model.name}.pt", model, state, legacy=legacy)
    ours = read(path, model)
    assert equal(ours.tensors, state)
    assert (ours.layout, ours.token_dropout) == ("fair-esm", True)
    with torch.serialization.safe_globals([argparse.Namespace]):
        theirs, _ = esm.pretrained.load_model_and_alphabet(str(path))
        embedding = torch.load(path)["model"]["encoder.sentence_encoder.embed_tokens.weight"]
    encoder = {
        n: t for n, t in theirs.state_dict().items() if "head." not in n and "inv_freq" not in n
    }
    assert equal(ours.tensors, encoder)
    assert embedding[MASK].any()
    assert ours.tensors["embed_tokens.weight"][MASK].any() == (model is TINY_ESM2)


def test_a_folder_that_transformers_5_wrote(tmp_path: Path) -> None:
    """It gives norms the names of TensorFlow, and frequencies one name for all layers."""
    state = random_state(TINY_ESM2, 1)
    file = write_hugging_face(tmp_path / "hf", TINY_ESM2, state) / "model.safetensors"
    written = {}
    for name, tensor in load_file(file).items():
        theirs = re.sub(r"layer\.\d+(.*inv_freq)", r"layer.*\1", name)
        theirs = theirs.replace(".LayerNorm.weight", ".LayerNorm.gamma")
        written[theirs.replace(".LayerNorm.bias", ".LayerNorm.beta")] = tensor
    assert len([name for name in written if name.endswith(("gamma", "beta"))]) == 8
    save_file(written, file)
    assert equal(read(tmp_path / "hf", TINY_ESM2).tensors, state)


@pytest.mark.parametrize("applied", [False, True])
def test_token_dropout_is_the_checkpoints_or_the_familys(applied: bool, tmp_path: Path) -> None:
    encoder = replace(ESM2.encoder, token_dropout=applied)
    model = replace(TINY_ESM2, family=replace(ESM2, encoder=encoder, required=()))
    config = write_hugging_face(tmp_path, model, random_state(model, 1)) / "config.json"
    edit_json(config, token_dropout=not applied)
    assert read(tmp_path, TINY_ESM2).token_dropout is not applied
    with pytest.raises(WeightsError, match=f"it says token_dropout: {not applied}, not {applied}"):
        read(tmp_path, model)
    config.write_text(config.read_text().replace("token_dropout", "something_else"))
    assert read(tmp_path, model).token_dropout == applied


def test_three_layouts_of_esm_c_hold_the_same_tensors(tmp_path: Path) -> None:
    model, state = TINY["esmc"], pickled("esmc")
    package = read(source("esmc"), model)
    for written in (
        write_esmc_hub(tmp_path / "model.safetensors", state),
        tmp_path,  # the folder, which has no config.json
        write_esmc_native(tmp_path / "native", state, model.layers),
    ):
        assert equal(read(written, model).tensors, package.tensors)


def test_dnabert_s_is_published_without_prefix_and_head(tmp_path: Path) -> None:
    found = read(write_dnabert_s(tmp_path / "published"), TINY["dnabert"])
    assert equal(found.tensors, read(source("dnabert"), TINY["dnabert"]).tensors)


@pytest.mark.parametrize("name", ["prott5", "ankh"])
def test_of_a_full_t5_only_the_encoder_is_taken(name: str, tmp_path: Path) -> None:
    encoder = read(source(name), TINY[name]).tensors
    state = pickled(name)
    state["decoder.block.0.layer.0.SelfAttention.q.weight"] = torch.ones(3, 3)
    state["lm_head.weight"] = torch.ones(128, 32)
    del state["encoder.embed_tokens.weight"]
    folder = Path(shutil.copytree(source(name), tmp_path / "full"))
    torch.save(state, folder / "pytorch_model.bin")
    assert equal(read(folder, TINY[name]).tensors, encoder)
    save_file({n: t.clone() for n, t in state.items()}, folder / "model.safetensors")
    (folder / "pytorch_model.bin").unlink()
    assert equal(read(folder, TINY[name]).tensors, encoder)


def test_pickles_in_shards_are_read(tmp_path: Path) -> None:
    model, state = TINY["protbert"], pickled("protbert")
    names = sorted(state)
    files = {n: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, n in enumerate(names)}
    for file in set(files.values()):
        torch.save({n: state[n] for n in names if files[n] == file}, tmp_path / file)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    shutil.copy(source("protbert") / "config.json", tmp_path)
    assert equal(read(tmp_path, model).tensors, read(source("protbert"), model).tensors)
    (tmp_path / files[names[0]]).unlink()
    with pytest.raises(WeightsError, match=r"lacks pytorch_model-00001-of-00002\.bin"):
        read(tmp_path, model)


def test_names_numbers_and_settings_that_do_not_fit_are_named(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(source("prott5"), tmp_path / "edited"))
    for name, tensor, words in (
        ("encoder.new.weight", torch.ones(1), "has encoder.new.weight, which no name in the"),
        ("shared.weight", torch.ones(128, 32).half(), "two different tensors for embed_tokens.we"),
    ):
        torch.save(pickled("prott5") | {name: tensor}, copy / "pytorch_model.bin")
        with pytest.raises(WeightsError, match=re.escape(words)):
            read(copy, TINY["prott5"])
    with pytest.raises(WeightsError, match=r"prott5_tiny: it says feed_forward_proj: 'gated"):
        read(source("ankh"), TINY["prott5"])
    with pytest.raises(WeightsError, match=r"an unknown model .* asked for is esmc_300m"):
        read(source("esmc"), MODELS["esmc_300m"])
