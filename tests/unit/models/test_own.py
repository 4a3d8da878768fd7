"""Checkpoints of users' own: any shape of a known family, by a name that no table lists."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from plm_embed.errors import ConfigError, WeightsError
from plm_embed.inference.weights import prepare
from plm_embed.models import weights
from plm_embed.models.checkpoints import model_of
from plm_embed.models.engine import Engine
from plm_embed.models.families import FAMILIES
from plm_embed.models.registry import MODELS, Model
from plm_embed.models.weights import UNPUBLISHED, caveat
from plm_embed.sequences.residues import STATES
from support.checkpoints import (
    TINY_ESM1B,
    TINY_ESM2,
    edit_json,
    random_state,
    read,
    write_fair_esm,
    write_hugging_face,
)
from support.families import (
    TINY,
    golden,
    relative,
    source,
    write_esmc_hub,
    write_esmc_native,
)
from support.packed import packed_batch

FOLDERS = [
    name
    for name, model in TINY.items()
    if (source(name) / "config.json").is_file()
    and model.family.encoder.rows == FAMILIES[name].encoder.rows  # not with a shorter vocabulary
    and model.family.alphabet is not STATES  # the weights are those of ProstT5
]
ODD = replace(TINY_ESM2, name="my-model.v2", layers=5, dim=48, heads=6)


def refused(weights: Path, words: str, name: str = "mine") -> None:
    with pytest.raises(WeightsError, match=words) as error:
        model_of(name, weights)
    assert len(str(error.value).splitlines()) <= 2


def shape(model: Model) -> tuple[object, ...]:
    sizes = model.layers, model.dim, model.heads, model.inner, model.hidden
    return model.family.architecture, *sizes, model.family.max_residues


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_of_every_family_give_the_vectors_of_their_formulas(
    name: str, tmp_path: Path
) -> None:
    model = model_of("mine", source(name))
    longest = 2198 if name == "protbert" else TINY[name].family.max_residues
    assert shape(model) == (*shape(TINY[name])[:-1], longest)
    made = prepare(model, source(name), tmp_path / "weights")
    assert (made.model, made.max_residues) == ("mine", longest)
    assert caveat("mine", made) == UNPUBLISHED
    _, tensors, _ = weights.load(tmp_path / "weights")
    engine = Engine(made.as_model, tensors, torch.device("cpu"), "float32")
    known = golden(name)
    batch = packed_batch(engine, known.sequences)
    states = batch.split(engine.forward(batch, [3])[3])
    for i, (state, (first, stop)) in enumerate(zip(states, batch.residues, strict=True)):
        assert relative(state[first:stop].double().mean(0).numpy(), known.means[i, 3]) < 1e-5
    # prepared weights, and a record of them, say it too
    folder = tmp_path / "weights"
    assert shape(model_of("mine", folder))[:4] == shape(model)[:4]
    assert model_of("mine", folder).family.max_residues == longest
    refused(folder, "holds the weights of mine, not of yours", "yours")


@pytest.mark.parametrize("model", [ODD, replace(TINY_ESM1B, name="mine")], ids=lambda m: m.name)
def test_esm_models_of_any_shape_in_any_layout(model: Model, tmp_path: Path) -> None:
    state = random_state(model, 1)
    layouts = (
        write_fair_esm(tmp_path / "tuned.pt", model, state),
        write_hugging_face(tmp_path / "hf", model, state),
        write_hugging_face(tmp_path / "shards", model, state, shards=3, prefix=""),
        tmp_path / "hf" / "model.safetensors",
    )
    for path in layouts:
        described = model_of(model.name, path)
        assert shape(described) == shape(model)
        tensors = read(path, described).tensors
        assert all(torch.equal(tensors[name], state[name]) for name in state)


def test_folders_of_esm_c_need_a_configuration_for_their_heads(tmp_path: Path) -> None:
    state = torch.load(source("esmc"), weights_only=True)
    folders = [write_esmc_native(tmp_path / "native", state, 3), tmp_path / "hub"]
    folders[1].mkdir()
    write_esmc_hub(folders[1] / "model.safetensors", state)
    (folders[1] / "config.json").write_text('{"model_type": "esmc"}')
    for folder in folders:
        refused(folder, r"not say its number of heads \(num_attention_heads in config\.json\)")
        edit_json(folder / "config.json", num_attention_heads=2)
        assert shape(model_of("mine", folder)) == shape(TINY["esmc"])


def test_published_names_stay_those_of_published_models(tmp_path: Path) -> None:
    demo = MODELS["esm2_t3_untrained"]
    path = write_fair_esm(tmp_path / f"{demo.name}.pt", demo, random_state(demo, 1))
    assert model_of("esm2_8m", path) is MODELS["esm2_t6_8M_UR50D"]
    refused(path, f"is named after {demo.name}: set `model: {demo.name}`")
    with pytest.raises(ConfigError, match="a model of your own needs its `weights`"):
        model_of("mine")


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "with space", "x" * 200])
def test_names_that_no_folder_can_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the name of a model of your own has letters"):
        model_of(name, tmp_path)


def test_the_head_of_a_task_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = random_state(ODD, 1)
    folder = write_hugging_face(tmp_path / "hf", ODD, state)
    file = folder / "model.safetensors"
    body = {name: tensor for name, tensor in load_file(file).items() if name.startswith("esm.")}
    head = {
        "classifier.dense.weight": torch.ones(48, 48),
        "classifier.out_proj.bias": torch.ones(2),
    }
    save_file(body | head, file)
    caplog.set_level("INFO")
    assert set(read(folder, model_of("mine", folder)).tensors) == set(state)
    assert "head are not used: classifier.dense.weight, classifier.out_proj.bias" in caplog.text
    save_file(body | {"my_head.weight": torch.ones(2, 48)}, file)
    refused(folder, r"has my_head\.weight, .*\n.*model\.base_model\.save_pre")
    save_file({name.replace("layer.", "stack."): t for name, t in body.items()}, file)
    refused(folder, r"lacks layers\.0, has .*stack\.0.*\ndocs/models\.md lists")
    rest = {name: tensor for name, tensor in body.items() if "layer.4.output" not in name}
    save_file(rest | head, file)  # a head is no excuse for a body with holes
    refused(folder, r"lacks layers\.4\.fc2\.weight")


def test_what_is_no_whole_model_is_refused_with_the_nearest_family(tmp_path: Path) -> None:
    torch.save(random_state(ODD, 1), tmp_path / "my.pt")
    refused(tmp_path / "my.pt", r"my\.pt holds tensors without the model's settings \(a ")
    folder = write_hugging_face(tmp_path / "hf", ODD, random_state(ODD, 1))
    config, file = folder / "config.json", folder / "model.safetensors"
    whole = config.read_text()
    for change, problem in (
        ({"layer_norm_eps": 1e-12}, "as esm2, it says layer_norm_eps: 1e-12, not 1e-05"),
        ({"num_attention_heads": 5}, r"as esm2, it has 5 heads for a width of 48: [^;]*families$"),
        (  # three numbers per head, which cannot be rotated in pairs
            {"num_attention_heads": 16},
            "as esm2, it has 16 heads for a width of 48: each needs an equal part, an even number",
        ),
        ({"num_attention_heads": -2}, "as esm2, it does not say its number of heads"),
        (
            {"model_type": "roberta", "layer_norm_eps": 1e-12},
            "as esm2, it says model_type: 'roberta', not 'esm'",
        ),
    ):
        edit_json(config, **change)
        refused(folder, problem)
        config.write_text(whole)
    config.write_text(whole.replace("num_attention_heads", "heads_of_nothing"))
    refused(folder, "as esm2, it does not say its number of heads")
    config.write_text(whole)
    tensors = load_file(file)
    lost = next(name for name in tensors if "layer.4.attention.self.query.weight" in name)
    rest = {name: tensor for name, tensor in tensors.items() if name != lost}
    save_file(rest | {"esm.new.weight": torch.ones(1)}, file)
    refused(
        folder, r"as esm2, it lacks layers\.4\.self_attn\.q_proj\.weight, has esm\.new\.weight, "
    )
    save_file({name: torch.ones(1) for name in tensors}, file)
    refused(folder, "is not a complete model of any known family")
    file.write_bytes(file.read_bytes()[:-3])
    refused(folder, "was not loaded: it is cut short or damaged")
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid")
    refused(folder, "is a pointer of git-lfs")
    np.save(tmp_path / "x.npy", np.ones(3))
    refused(tmp_path / "x.npy", "was not loaded")
