"""What checkpoints of ESM-1b, ESM-1v and ESM-2 say about themselves, and call their tensors.

The common names are fair-esm's without prefixes (`layers.0.self_attn.q_proj.weight`). The
language-model head, the contact head and the rotary frequencies are not used.
"""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plm_embed.errors import WeightsError
from plm_embed.models.family import Description, Layout

_NOT_USED = re.compile(r"lm_head\.|contact_head\.|layers\.\d+\.self_attn\.rot_emb\.inv_freq$")
_NOT_USED_HF = re.compile(
    r"lm_head\.|contact_head\.|pooler\.|embeddings\.position_ids$"
    r"|encoder\.layer\.(?:\d+|\*)\.attention\.self\.rotary_embeddings\.inv_freq$"
)
_FROM_HF = (
    # transformers 5 writes the names of TensorFlow's norms
    (re.compile(r"LayerNorm\.gamma$"), "LayerNorm.weight"),
    (re.compile(r"LayerNorm\.beta$"), "LayerNorm.bias"),
    (re.compile(r"^embeddings\.word_embeddings\."), "embed_tokens."),
    (re.compile(r"^embeddings\.position_embeddings\."), "embed_positions."),
    (re.compile(r"^embeddings\.layer_norm\."), "emb_layer_norm_before."),
    (re.compile(r"^encoder\.emb_layer_norm_after\."), "emb_layer_norm_after."),
    (
        re.compile(r"^encoder\.layer\.(\d+)\.attention\.self\.query\."),
        r"layers.\1.self_attn.q_proj.",
    ),
    (re.compile(r"^encoder\.layer\.(\d+)\.attention\.self\.key\."), r"layers.\1.self_attn.k_proj."),
    (
        re.compile(r"^encoder\.layer\.(\d+)\.attention\.self\.value\."),
        r"layers.\1.self_attn.v_proj.",
    ),
    (
        re.compile(r"^encoder\.layer\.(\d+)\.attention\.output\.dense\."),
        r"layers.\1.self_attn.out_proj.",
    ),
    (
        re.compile(r"^encoder\.layer\.(\d+)\.attention\.LayerNorm\."),
        r"layers.\1.self_attn_layer_norm.",
    ),
    (re.compile(r"^encoder\.layer\.(\d+)\.intermediate\.dense\."), r"layers.\1.fc1."),
    (re.compile(r"^encoder\.layer\.(\d+)\.output\.dense\."), r"layers.\1.fc2."),
    (re.compile(r"^encoder\.layer\.(\d+)\.LayerNorm\."), r"layers.\1.final_layer_norm."),
)


def describe(layout: Layout, source: Path, said: Mapping[str, Any]) -> Description:
    """What the content of a .pt file, or a config.json, says about its model.

    Raises WeightsError that names the source.
    """
    return (
        _describe_fair_esm(source, said)
        if layout == "fair-esm"
        else _describe_hugging_face(source, said)
    )


def common_names(layout: Layout, architecture: str, name: str) -> tuple[str, ...]:
    """The common name of a tensor; none when it is not used."""
    if layout == "fair-esm":
        name = name.removeprefix("encoder.").removeprefix("sentence_encoder.")
        return () if _NOT_USED.match(name) else (name,)
    name = name.removeprefix("esm.")
    # Converters wrote untrained position embeddings into the rotary models' files too.
    untrained = architecture == "esm2" and name == "embeddings.position_embeddings.weight"
    if untrained or _NOT_USED_HF.match(name):
        return ()
    for pattern, replacement in _FROM_HF:
        name = pattern.sub(replacement, name)
    return (name,)


def _describe_fair_esm(path: Path, said: Mapping[str, Any]) -> Description:
    arguments = _arguments(said)
    if arguments is None:
        raise WeightsError(
            f"weights: {path} is no fair-esm checkpoint: it lacks 'model', or 'cfg' or 'args' "
            "beside it.",
            path=path,
        )
    kind = "esm2" if "cfg" in said else arguments.get("arch")
    if kind not in ("esm2", "roberta_large"):
        raise WeightsError(
            f"weights: {path} holds a model of the kind {kind!r}; only ESM-2, ESM-1b and ESM-1v "
            "are known.",
            path=path,
        )
    return Description(
        architecture="esm2" if kind == "esm2" else "esm1b",
        layers=_number(path, arguments, "layers"),
        dim=_number(path, arguments, "embed_dim"),
        heads=_number(path, arguments, "attention_heads"),
        token_dropout=bool(arguments.get("token_dropout", False)),
    )


def _arguments(said: Mapping[str, Any]) -> dict[str, Any] | None:
    """The training arguments of a checkpoint, without their `encoder_` prefixes; None if there are
    none.
    """
    found = said["cfg"].get("model") if isinstance(said.get("cfg"), dict) else said.get("args")
    if not isinstance(found, argparse.Namespace):
        return None
    return {name.removeprefix("encoder_"): value for name, value in vars(found).items()}


def _describe_hugging_face(folder: Path, said: Mapping[str, Any]) -> Description:
    if said.get("model_type") != "esm":
        raise WeightsError(
            f"weights: {folder} holds a model of the kind {said.get('model_type')!r}, not 'esm'.",
            path=folder,
        )
    path = folder / "config.json"
    return Description(
        architecture="esm2"
        if said.get("position_embedding_type", "absolute") == "rotary"
        else "esm1b",
        layers=_number(path, said, "num_hidden_layers"),
        dim=_number(path, said, "hidden_size"),
        heads=_number(path, said, "num_attention_heads"),
        token_dropout=_token_dropout(path, said),
    )


def _token_dropout(path: Path, said: Mapping[str, Any]) -> bool:
    found = said.get("token_dropout")
    if not isinstance(found, bool):  # Hugging Face writes it for all of these models
        raise WeightsError(
            f"weights: {path} does not say token_dropout (found {found!r}): it is damaged or "
            "incomplete.",
            path=path,
        )
    return found


def _number(path: Path, values: Mapping[str, Any], key: str) -> int:
    value = values.get(key)
    if type(value) is not int:
        raise WeightsError(
            f"weights: {path} does not say its model's {key} (found {value!r}): it is incomplete.",
            path=path,
        )
    return value
