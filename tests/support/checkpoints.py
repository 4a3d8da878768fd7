"""Checkpoints with random weights in the layouts that real ones have. Run as a program it writes
the demo's.

PYTHONPATH=workflow/src:tests python -m support.checkpoints
"""

import json
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file

from plm_embed.inference.pooling import pool
from plm_embed.io.files import sha256_file
from plm_embed.io.json_files import write_sealed
from plm_embed.models import checkpoints
from plm_embed.models.checkpoints import files_of, tensor_shapes
from plm_embed.models.families.esm import ESM1B, ESM1V, ESM2, MASK, ROWS
from plm_embed.models.registry import MODELS, Model
from plm_embed.models.weights import MANIFEST, SELF_TEST, read_manifest

DEMO = Path(__file__).parents[2] / "config" / "demo" / "esm2_t3_untrained.pt"
DEMO_SEED = 2022

TINY_ESM2 = Model("esm2_t2_tiny", ESM2, layers=2, dim=32, heads=4, license="MIT")
TINY_ESM1B = replace(TINY_ESM2, name="esm1b_t2_tiny", family=ESM1B)
TINY_ESM1V = replace(TINY_ESM2, name="esm1v_t2_tiny", family=ESM1V)

_HUGGING_FACE = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "LayerNorm",
}


def mean_of(states: torch.Tensor) -> torch.Tensor:
    """The mean (D,) of an ESM model's representations (L + 2, D) over the residues."""
    return pool("mean", states, ESM2.residues(len(states)))


def random_state(
    model: Model, seed: int, *, norm_before: bool | None = None
) -> dict[str, torch.Tensor]:
    """Random fp32 tensors of `model` under the package's names.

    Every part matters to the output: attention is far from flat, layers change what they are given,
    no gain is 1 and no bias 0, so that each usual mistake shows. `norm_before` adds ESM-1b's layer
    norm after the embedding; by default models named esm1b have it. The row of <mask> is zero where
    fair-esm clears it.
    """
    random = np.random.default_rng(seed)
    shapes = tensor_shapes(model)
    if model.name.startswith("esm1b") if norm_before is None else norm_before:
        shapes |= {
            "emb_layer_norm_before.weight": (model.dim,),
            "emb_layer_norm_before.bias": (model.dim,),
        }
    state = {}
    for name, shape in sorted(shapes.items()):
        values = random.standard_normal(shape, dtype=np.float32)
        if "layer_norm" in name:
            values = 1 + 0.2 * values if name.endswith("weight") else 0.1 * values
        elif name.endswith("bias"):
            values *= 0.1
        elif name.startswith("embed_"):
            values *= 0.5
        else:
            # Scores of q and k have a standard deviation of about 1.5; the other matrices keep 0.7
            # of the scale.
            values *= np.sqrt((1.5 if "q_proj" in name or "k_proj" in name else 0.5) / shape[1])
        state[name] = torch.from_numpy(values)
    if model.family.architecture == "esm1b":
        state["embed_tokens.weight"][MASK] = 0
    return state


def write_fair_esm(
    path: Path, model: Model, tensors: Mapping[str, torch.Tensor], *, legacy: bool = False
) -> Path:
    """A checkpoint as fair-esm publishes them, and its `-contact-regression.pt` beside it.

    `legacy` is torch's format before version 1.6. fair-esm goes by the file name, which begins with
    the model's family.
    """
    prefix = "encoder.sentence_encoder."
    state = {prefix + name: tensor for name, tensor in tensors.items()}
    if model.family.architecture == "esm1b":
        embedding = tensors["embed_tokens.weight"].clone()
        embedding[MASK] = 0.5  # published files hold a row that fair-esm clears on loading
        state[f"{prefix}embed_tokens.weight"] = embedding
    else:
        steps = torch.arange(0, model.dim // model.heads, 2).float() / (model.dim // model.heads)
        for layer in range(model.layers):
            state[f"{prefix}layers.{layer}.self_attn.rot_emb.inv_freq"] = 1.0 / (10000**steps)
    state |= {f"encoder.{name}": tensor for name, tensor in _head(model.dim).items()}
    state["encoder.lm_head.weight"] = state[f"{prefix}embed_tokens.weight"]
    arguments = {
        "encoder_layers": model.layers,
        "encoder_embed_dim": model.dim,
        "encoder_attention_heads": model.heads,
        "encoder_ffn_embed_dim": 4 * model.dim,
        "token_dropout": True,
    }
    if model.family.architecture == "esm2":
        content = {"cfg": {"model": Namespace(**arguments)}, "model": state}
    else:
        content = {
            "args": Namespace(arch="roberta_large", max_positions=1024, **arguments),
            "model": state,
        }
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    contacts = {
        "contact_head.regression.weight": torch.full((1, model.layers * model.heads), 0.1),
        "contact_head.regression.bias": torch.zeros(1),
    }
    torch.save({"model": contacts}, path.with_name(f"{path.stem}-contact-regression.pt"))
    return path


def write_hugging_face(
    folder: Path,
    model: Model,
    tensors: Mapping[str, torch.Tensor],
    shards: int = 1,
    prefix: str = "esm.",
) -> Path:
    """A Hugging Face model folder: as EsmForMaskedLM saves it, or with an empty prefix as EsmModel
    does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = {prefix + _hugging_face_name(name): tensor.clone() for name, tensor in tensors.items()}
    state[f"{prefix}embeddings.position_ids"] = torch.arange(1026)[None]
    if model.family.architecture == "esm2":
        state[f"{prefix}embeddings.position_embeddings.weight"] = torch.zeros(1026, model.dim)
        for layer in range(model.layers):
            name = f"{prefix}encoder.layer.{layer}.attention.self.rotary_embeddings.inv_freq"
            state[name] = torch.ones(model.dim // model.heads // 2)
    state[f"{prefix}contact_head.regression.weight"] = torch.zeros(1, model.layers * model.heads)
    if prefix:
        state |= _head(model.dim)
    config = {
        "model_type": "esm",
        "num_hidden_layers": model.layers,
        "hidden_size": model.dim,
        "num_attention_heads": model.heads,
        "intermediate_size": 4 * model.dim,
        "position_embedding_type": "rotary" if model.family.architecture == "esm2" else "absolute",
        "emb_layer_norm_before": "emb_layer_norm_before.weight" in tensors,
        "token_dropout": True,
        "vocab_size": ROWS,
    }
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    names = sorted(state)
    files = {
        name: f"model-{i * shards // len(names) + 1:05}-of-{shards:05}.safetensors"
        for i, name in enumerate(names)
    }
    for file in sorted(set(files.values())):
        save_file(
            {name: state[name] for name in names if files[name] == file},
            folder / file,
            metadata={"format": "pt"},
        )
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": files})
    )
    return folder


def write_demo(path: Path) -> Path:
    """The demo's checkpoint, without the contact regression, which nothing here needs."""
    model = MODELS["esm2_t3_untrained"]
    write_fair_esm(path, model, random_state(model, DEMO_SEED))
    path.with_name(f"{path.stem}-contact-regression.pt").unlink()
    return path


def decided(model: Model, *, token_dropout: bool) -> Model:
    """A model with what its family leaves to the checkpoint."""
    encoder = replace(model.family.encoder, token_dropout=token_dropout)
    return replace(model, family=replace(model.family, encoder=encoder))


def spoil_golden(folder: Path) -> None:
    """Make the self-test of a weights folder expect other vectors: then every device computes
    wrongly.
    """
    with np.load(folder / SELF_TEST) as stored:
        wrong = stored["mean"] + 0.01
    np.savez(folder / SELF_TEST, mean=wrong)
    write_sealed(
        folder / MANIFEST,
        replace(read_manifest(folder), self_test_sha256=sha256_file(folder / SELF_TEST)),
    )


class Checkpoint(NamedTuple):
    """A checkpoint in memory."""

    layout: str
    token_dropout: bool
    tensors: dict[str, torch.Tensor]
    head: dict[str, torch.Tensor]


def read(source: Path, model: Model) -> Checkpoint:
    """A checkpoint as this package reads it."""
    found = checkpoints.read(files_of(source, model), model)
    tensors, head = (
        {name: stored.read() for name, stored in part.items()}
        for part in (found.tensors, found.head)
    )
    return Checkpoint(found.layout, found.token_dropout, tensors, head)


def edit_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def _head(dim: int) -> dict[str, torch.Tensor]:
    """The language-model head, which embedding never uses."""
    return {
        "lm_head.bias": torch.zeros(ROWS),
        "lm_head.dense.weight": torch.eye(dim),
        "lm_head.dense.bias": torch.zeros(dim),
        "lm_head.layer_norm.weight": torch.ones(dim),
        "lm_head.layer_norm.bias": torch.zeros(dim),
    }


def _hugging_face_name(name: str) -> str:
    if name.startswith("layers."):
        _, layer, rest = name.split(".", 2)
        part, kind = rest.rsplit(".", 1)
        return f"encoder.layer.{layer}.{_HUGGING_FACE[part]}.{kind}"
    return {
        "embed_tokens": "embeddings.word_embeddings",
        "embed_positions": "embeddings.position_embeddings",
        "emb_layer_norm_before": "embeddings.layer_norm",
        "emb_layer_norm_after": "encoder.emb_layer_norm_after",
    }[name.split(".", maxsplit=1)[0]] + f".{name.rsplit('.', 1)[1]}"


if __name__ == "__main__":
    DEMO.parent.mkdir(parents=True, exist_ok=True)
    write_demo(DEMO)
