"""Golden sets of the families: tiny models in the published layouts, and what they give in float64.

PLM_EMBED_GOLDEN_FAMILIES may name a folder with the larger sets that the shipped ones are cut from.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from plm_embed.models import registry
from plm_embed.models.registry import Model
from support.tiny_models import TINY

SHIPPED = Path(__file__).parents[1] / "data" / "golden_families"
LARGER = os.environ.get("PLM_EMBED_GOLDEN_FAMILIES")

FOLDERS = {
    "dnabert": "dnabert2",
    "nt_v1": "nucleotide_transformer_v1",
    "nt_v2": "nucleotide_transformer_v2",
    "prostt5_3di": "prostt5",
}


@dataclass(frozen=True)
class Golden:
    """Sequences of one family, and their token ids, means (n, layers + 1, D) and, of some of them,
    all tokens (layers + 1, T, D).
    """

    model: Model
    source: Path
    sequences: tuple[str, ...]
    ids: tuple[np.ndarray, ...]
    means: np.ndarray
    tokens: dict[int, np.ndarray]
    special: np.ndarray | None
    """Means (n, D) over all tokens, special ones too, after the last layer."""


def source(name: str, root: Path = SHIPPED) -> Path:
    """The checkpoint of a golden set."""
    if name != "esmc":
        return root / FOLDERS.get(name, name)
    return next((root / name).rglob("*.pth"))


def golden(name: str, root: Path = SHIPPED) -> Golden:
    """A golden set. ProstT5's has proteins and, in lower case, 3Di strings."""
    folder = root / FOLDERS.get(name, name)
    records = (folder / "sequences.fasta").read_text().split(">")[1:]
    sequences = ["".join(record.split("\n")[1:]) for record in records]
    states = name == "prostt5_3di"
    kept = [i for i, sequence in enumerate(sequences) if sequence.islower() == states]
    with np.load(folder / "reference.npz") as stored:
        ids = np.split(stored["input_ids"], np.cumsum(stored["token_counts"])[:-1])
        tokens = {
            at: stored[f"tokens_{i}"] for at, i in enumerate(kept) if f"tokens_{i}" in stored.files
        }
        means = stored["mean"][kept]
        special = stored.get("mean_with_special")
    return Golden(
        TINY[name],
        source(name, root),
        tuple(sequences[i].upper() if states else sequences[i] for i in kept),
        tuple(ids[i] for i in kept),
        means,
        tokens,
        None if special is None else special[kept],
    )


def published(name: str) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
    """The tensors by their published names, in float64, and the configuration."""
    place = source(name)
    if place.is_file():  # ESM C's has no config.json
        model = TINY[name]
        config: dict[str, object] = {"n_layers": model.layers, "n_heads": model.heads}
        state = torch.load(place, weights_only=True)
    else:
        config = json.loads((place / "config.json").read_text())
        file = place / "model.safetensors"
        pickled = place / "pytorch_model.bin"
        state = load_file(file) if file.exists() else torch.load(pickled, weights_only=True)
    return {key: tensor.double() for key, tensor in state.items()}, config


def add_model(monkeypatch: pytest.MonkeyPatch, model: Model) -> None:
    """Let a tiny model be found by its name, for the time of a test."""
    monkeypatch.setitem(registry.MODELS, model.name, model)
    monkeypatch.setitem(registry._BY_NAME, model.name, model)


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    """|found - wanted| / |wanted|."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def write_dnabert_s(folder: Path) -> Path:
    """DNABERT's checkpoint as DNABERT-S is published: without prefix and head."""
    published = source("dnabert")
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        shutil.copyfile(published / name, folder / name)
    state = torch.load(published / "pytorch_model.bin", weights_only=True)
    made = {n.removeprefix("bert."): t for n, t in state.items() if not n.startswith("cls.")}
    torch.save(made, folder / "pytorch_model.bin")
    return folder


def write_esmc_hub(path: Path, state: Mapping[str, torch.Tensor]) -> Path:
    """ESM C's tensors by the names of the hub's first files, whose norms are fused."""
    pairs = {
        "attn.layernorm_qkv.0.": "attn.layernorm_qkv.layer_norm_",
        "attn.layernorm_qkv.1.": "attn.layernorm_qkv.",
        "ffn.0.": "ffn.layer_norm_",
        "ffn.1.": "ffn.fc1_",
        "ffn.3.": "ffn.fc2_",
    }
    made = {}
    for name, tensor in state.items():
        found = name.replace("sequence_head.", "lm_head.")
        for package, hub in pairs.items():
            found = found.replace(package, hub)
        made[found if found.startswith("lm_head.") else f"esmc.{found}"] = tensor.clone()
    made["esmc.transformer.blocks.0.ffn._extra_state"] = torch.zeros(1)
    save_file(made, path)
    return path


def write_esmc_native(folder: Path, state: Mapping[str, torch.Tensor], layers: int) -> Path:
    """ESM C's tensors by the names of transformers' own class, in a folder with a config.json."""
    made = {
        "esmc.embed_tokens.weight": state["embed.weight"],
        "esmc.norm.weight": state["transformer.norm.weight"],
    }
    for number, module in (("0", "dense"), ("2", "layer_norm"), ("3", "decoder")):
        for kind in ("weight", "bias"):
            made[f"lm_head.{module}.{kind}"] = state[f"sequence_head.{number}.{kind}"]
    for layer in range(layers):
        theirs, ours = f"transformer.blocks.{layer}.", f"esmc.layers.{layer}."
        parts = state[f"{theirs}attn.layernorm_qkv.1.weight"].chunk(3)
        made |= {f"{ours}self_attn.{n}_proj.weight": t for n, t in zip("qkv", parts, strict=True)}
        gate, up = state[f"{theirs}ffn.1.weight"].chunk(2)
        made |= {f"{ours}mlp.gate_proj.weight": gate, f"{ours}mlp.up_proj.weight": up}
        made[f"{ours}mlp.down_proj.weight"] = state[f"{theirs}ffn.3.weight"]
        made[f"{ours}self_attn.o_proj.weight"] = state[f"{theirs}attn.out_proj.weight"]
        for part in "qk":
            name = f"{ours}self_attn.{part}_norm.weight"
            made[name] = state[f"{theirs}attn.{part}_ln.weight"]
        for kind in ("weight", "bias"):
            name = f"{theirs}attn.layernorm_qkv.0.{kind}"
            made[f"{ours}input_layernorm.{kind}"] = state[name]
            made[f"{ours}post_attention_layernorm.{kind}"] = state[f"{theirs}ffn.0.{kind}"]
    folder.mkdir()
    config = '{"model_type": "esmc", "num_hidden_layers": 3, "hidden_size": 32}'
    (folder / "config.json").write_text(config)
    save_file(
        {name: t.contiguous().clone() for name, t in made.items()}, folder / "model.safetensors"
    )
    return folder
