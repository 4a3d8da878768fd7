"""Files that are cut short, harmful, of another model or of no known layout are refused with the
reason.
"""

import argparse
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from plm_embed.errors import WeightsError
from plm_embed.inference.weights import prepare
from plm_embed.models.registry import MODELS, Model
from support.checkpoints import (
    TINY_ESM1B,
    TINY_ESM2,
    random_state,
    read,
    write_fair_esm,
    write_hugging_face,
)


def refused(source: Path, words: str | None, model: Model = TINY_ESM2) -> str:
    """Return the error, which the pattern `words` is found in."""
    with pytest.raises(WeightsError, match=words) as error:
        read(source, model)
    return str(error.value)


class Harmful:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch harmed",)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_pickle_that_asks_for_more_is_not_loaded(
    legacy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "esm2_evil.pt"
    torch.save({"model": {}, "cfg": Harmful()}, path, _use_new_zipfile_serialization=not legacy)
    refused(path, r"was not loaded: it asks for (posix|nt|os)\.system, which could run code")
    path.write_bytes(pickle.dumps(Harmful()))
    refused(path, "was not loaded")
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_files_that_are_cut_short_are_refused(legacy: bool, tmp_path: Path) -> None:
    state, path = random_state(TINY_ESM2, 1), tmp_path / "cut.pt"
    whole = write_fair_esm(path, TINY_ESM2, state, legacy=legacy).read_bytes()
    sizes = (0, 1, 10, 200, 3000, len(whole) // 2, len(whole) - 50, len(whole) - 1)
    others = b"<html>Not found</html>", b"Not found\n", b"PK\x03\x04rubbish", b"\x80\x02N."
    for content in (*(whole[:size] for size in sizes), *others):
        path.write_bytes(content)
        refused(path, r"cut\.pt was not loaded")
    folder = write_hugging_face(tmp_path / "hf", TINY_ESM2, state)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    refused(folder, r"model\.safetensors was not loaded")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"model": {}}, "holds model without numbers"),
        ([1, 2], "holds no tensors by name"),
        ({"embed_tokens.weight": torch.zeros(33, 32)}, r"\(a bare state_dict\)\. Use"),
        (
            {"model": {}, "args": argparse.Namespace(arch="msa_transformer")},
            "says arch: 'msa_transformer', not 'esm2'",
        ),
        (
            {"model": {}, "cfg": {"model": argparse.Namespace(encoder_layers=2)}},
            r"an unknown model \(esm2, 0 layers, width 0, 4 heads\)",
        ),
    ],
)
def test_torch_files_of_another_kind_are_refused(content: Any, words: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "x.pt")
    refused(tmp_path / "x.pt", words)


def test_the_folder_of_another_family_is_seen_by_its_model_type(tmp_path: Path) -> None:
    """Whatever else its configuration contradicts."""
    encoder = replace(TINY_ESM2.family.encoder, token_dropout=False)
    config = {"layer_norm_eps": 1e-12, "model_type": "nonorm"}
    other = replace(TINY_ESM2, family=replace(TINY_ESM2.family, encoder=encoder, config=config))
    folder = write_hugging_face(tmp_path / "hf", TINY_ESM2, random_state(TINY_ESM2, 1))
    refused(folder, "it says model_type: 'esm', not 'nonorm'", other)


def test_another_model_is_named_beside_the_one_asked_for(tmp_path: Path) -> None:
    demo, larger = MODELS["esm2_t3_untrained"], MODELS["esm2_t6_8M_UR50D"]
    state = random_state(demo, 1)
    source = write_fair_esm(tmp_path / "weights.pt", demo, state)
    folder = write_hugging_face(tmp_path / "hf", demo, state)
    for place in (source, folder):
        refused(place, r"holds esm2_t3_untrained .* asked for is esm2_t6_8M_UR50D", larger)
    tiny = write_fair_esm(tmp_path / "tiny.pt", TINY_ESM2, random_state(TINY_ESM2, 1))
    refused(tiny, r"an unknown model \(esm2, 2 layers, width 32, 4", larger)
    # equal shapes: the name decides
    named = source.rename(tmp_path / "esm2_t6_8M_UR50D.pt")
    refused(named, "named after esm2_t6_8M_UR50D, but the model asked for is esm2_t3_unt", demo)


def test_missing_unknown_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    state = random_state(TINY_ESM2, 1)
    del state["layers.1.fc1.bias"]
    state["layers.1.fc3.weight"] = torch.zeros(1)
    state["layers.0.fc2.weight"] = torch.zeros(32, 64)
    state["layers.0.fc1.weight"] = state["layers.0.fc1.weight"].double()
    path = write_fair_esm(tmp_path / "x.pt", TINY_ESM2, state)
    assert refused(path, None) == (
        f"weights: {path} is not a complete esm2_t2_tiny: it lacks layers.1.fc1.bias, has "
        "encoder.sentence_encoder.layers.1.fc3.weight, which no name in the family matches, holds "
        "layers.0.fc1.weight as float64, holds layers.0.fc2.weight with shape (32, 64), not (32, "
        "128)."
    )
    state = random_state(TINY_ESM1B, 1)
    del state["emb_layer_norm_before.bias"]
    path = write_fair_esm(tmp_path / "esm1b.pt", TINY_ESM1B, state)
    refused(path, r"lacks emb_layer_norm_before\.bias", TINY_ESM1B)


def test_tensors_without_usable_numbers_are_named(tmp_path: Path) -> None:
    name = "layers.0.fc1.bias"

    def holding(tensor: Any) -> Path:
        state = random_state(TINY_ESM2, 1) | {name: tensor}
        return write_fair_esm(tmp_path / "x.pt", TINY_ESM2, state)

    for number in (float("nan"), float("inf")):
        with pytest.raises(WeightsError, match=f"it holds NaN or infinite numbers in {name}"):
            prepare(TINY_ESM2, holding(torch.full((128,), number)), tmp_path / "out")
        assert not list((tmp_path / "out").iterdir())
    for tensor in (torch.zeros(128).to_sparse(), torch.zeros(128, device="meta"), 5):
        refused(holding(tensor), f"holds {name} without numbers|was not loaded")


def test_hugging_face_folders_that_lack_something(tmp_path: Path) -> None:
    state = random_state(TINY_ESM2, 1)
    refused(tmp_path / "absent.pt", "does not exist")
    folder = write_hugging_face(tmp_path / "shards", TINY_ESM2, state, shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    refused(folder, r"lacks model-00002-of-00003\.safetensors \(1 of 3 shards\)")
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "../../etc/passwd"}}')
    refused(folder, "no valid 'weight_map'")
    index.unlink()
    refused(folder, r"neither model\.safetensors nor")
    (folder / "pytorch_model.bin").write_bytes(b"")
    refused(folder, r"pytorch_model\.bin was not loaded")
    folder = write_hugging_face(tmp_path / "whole", TINY_ESM2, state)
    file = folder / "model.safetensors"
    assert read(file, TINY_ESM2).layout == "hugging-face"
    save_file({n: t for n, t in load_file(file).items() if "query" not in n}, file)
    refused(folder, r"lacks layers\.0\.self_attn\.q_proj\.weight")
    (folder / "config.json").unlink()
    refused(folder, r"without the model's settings .* with config\.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not valid JSON"),
        ("[]", "is not a JSON object"),
        ("[" * 100_000, "is not valid JSON .*recursion"),
        ('{"model_type": "bert"}', "says model_type: 'bert', not 'esm'"),
        ('{"model_type": "esm"}', "does not say token_dropout in config.json"),
    ],
)
def test_hugging_face_configs_that_say_something_else(
    text: str, words: str, tmp_path: Path
) -> None:
    folder = write_hugging_face(tmp_path, TINY_ESM2, random_state(TINY_ESM2, 1))
    (folder / "config.json").write_text(text)
    refused(folder, words)


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_an_adapter_is_refused_with_what_to_do(suffix: str, tmp_path: Path) -> None:
    folder = tmp_path / "my_adapter"
    folder.mkdir()
    file = folder / f"adapter_model.{suffix}"
    file.write_bytes(b"")
    (folder / "adapter_config.json").write_text("{}")
    (folder / "config.json").write_text("{}")
    for source in (folder, file):
        assert refused(source, None) == (
            f"weights: {source} is an adapter (LoRA), not a model; merge it into its model, and "
            "name the folder `merged` as the weights: docs/models.md#adapters has the lines of "
            "Python"
        )
    name = "base_model.model.esm.encoder.layer.0.attention.self.query.lora_A.weight"
    bare, state = tmp_path / f"bare.{suffix}", {name: torch.ones(2, 2)}
    save_file(state, bare) if suffix == "safetensors" else torch.save(state, bare)
    refused(bare, r"is an adapter \(LoRA\), not a model")
    write_hugging_face(folder, TINY_ESM2, random_state(TINY_ESM2, 1))  # merged into the same folder
    assert read(folder, TINY_ESM2)
