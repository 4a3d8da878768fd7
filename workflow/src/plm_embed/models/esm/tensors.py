"""The tensors of ESM-1b, ESM-1v and ESM-2: names, shapes, and what other layouts call them."""

import re

from plm_embed.models.registry import Model

_BEFORE = {"emb_layer_norm_before.weight", "emb_layer_norm_before.bias"}
_NOT_USED = re.compile(r"lm_head\.|contact_head\.|layers\.\d+\.self_attn\.rot_emb\.inv_freq$")
_NOT_USED_HF = re.compile(
    r"lm_head\.|contact_head\.|pooler\.|embeddings\.position_ids$"
    r"|encoder\.layer\.\d+\.attention\.self\.rotary_embeddings\.inv_freq$"
)
_FROM_HF = (
    (re.compile(r"^embeddings\.word_embeddings\."), "embed_tokens."),
    (re.compile(r"^embeddings\.position_embeddings\."), "embed_positions."),
    (re.compile(r"^embeddings\.layer_norm\."), "emb_layer_norm_before."),
    (re.compile(r"^encoder\.emb_layer_norm_after\."), "emb_layer_norm_after."),
    (re.compile(r"^encoder\.layer\.(\d+)\.attention\.self\.query\."), r"layers.\1.self_attn.q_proj."),
    (re.compile(r"^encoder\.layer\.(\d+)\.attention\.self\.key\."), r"layers.\1.self_attn.k_proj."),
    (re.compile(r"^encoder\.layer\.(\d+)\.attention\.self\.value\."), r"layers.\1.self_attn.v_proj."),
    (re.compile(r"^encoder\.layer\.(\d+)\.attention\.output\.dense\."), r"layers.\1.self_attn.out_proj."),
    (re.compile(r"^encoder\.layer\.(\d+)\.attention\.LayerNorm\."), r"layers.\1.self_attn_layer_norm."),
    (re.compile(r"^encoder\.layer\.(\d+)\.intermediate\.dense\."), r"layers.\1.fc1."),
    (re.compile(r"^encoder\.layer\.(\d+)\.output\.dense\."), r"layers.\1.fc2."),
    (re.compile(r"^encoder\.layer\.(\d+)\.LayerNorm\."), r"layers.\1.final_layer_norm."),
)


def _common_name(name: str) -> str:
    for pattern, replacement in _FROM_HF:
        common, found = pattern.subn(replacement, name)
        if found:
            return common
    return name


VOCABULARY = 33  # rows of `embed_tokens`: the alphabet of `plm_embed.models.esm.tokens`
POSITIONS = 1026  # rows of `embed_positions` (ESM-1b, ESM-1v): 1,024 tokens after the padding index 1


def tensor_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Names and shapes of every tensor that the model needs, under fair-esm's names without prefixes.

    `emb_layer_norm_before` is not among them: of ESM-1b and ESM-1v only some checkpoints have it.
    """
    dim = model.dim
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (VOCABULARY, dim)}
    if model.architecture == "esm1b":
        shapes["embed_positions.weight"] = (POSITIONS, dim)
    linear = {f"self_attn.{part}_proj": (dim, dim) for part in "qkv"} | {"self_attn.out_proj": (dim, dim)}
    linear |= {"fc1": (4 * dim, dim), "fc2": (dim, 4 * dim)}
    for layer in range(model.layers):
        for part, (rows, columns) in linear.items():
            shapes[f"layers.{layer}.{part}.weight"] = (rows, columns)
            shapes[f"layers.{layer}.{part}.bias"] = (rows,)
        for part in ("self_attn_layer_norm", "final_layer_norm"):
            shapes[f"layers.{layer}.{part}.weight"] = shapes[f"layers.{layer}.{part}.bias"] = (dim,)
    shapes["emb_layer_norm_after.weight"] = shapes["emb_layer_norm_after.bias"] = (dim,)
    return shapes
