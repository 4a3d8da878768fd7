"""The tensors of ESM-1b, ESM-1v and ESM-2: names and shapes."""

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plm_embed.models.registry import Model

VOCABULARY = 33  # rows of `embed_tokens`: the alphabet of `plm_embed.models.esm.tokens`
POSITIONS = (
    1026  # rows of `embed_positions` (ESM-1b, ESM-1v): 1,024 tokens after the padding index 1
)
_BEFORE = {"emb_layer_norm_before.weight", "emb_layer_norm_before.bias"}


def tensor_shapes(model: "Model", found: Collection[str] = ()) -> dict[str, tuple[int, ...]]:
    """Names and shapes of every tensor that the model needs, under fair-esm's names without
    prefixes.

    `emb_layer_norm_before` is among them if any of it was `found`: of ESM-1b and ESM-1v only some
    checkpoints have it.
    """
    dim = model.dim
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (VOCABULARY, dim)}
    if model.architecture == "esm1b":
        shapes["embed_positions.weight"] = (POSITIONS, dim)
    linear = {f"self_attn.{part}_proj": (dim, dim) for part in "qkv"} | {
        "self_attn.out_proj": (dim, dim)
    }
    linear |= {"fc1": (4 * dim, dim), "fc2": (dim, 4 * dim)}
    for layer in range(model.layers):
        for part, (rows, columns) in linear.items():
            shapes[f"layers.{layer}.{part}.weight"] = (rows, columns)
            shapes[f"layers.{layer}.{part}.bias"] = (rows,)
        for part in ("self_attn_layer_norm", "final_layer_norm"):
            shapes[f"layers.{layer}.{part}.weight"] = shapes[f"layers.{layer}.{part}.bias"] = (dim,)
    shapes["emb_layer_norm_after.weight"] = shapes["emb_layer_norm_after.bias"] = (dim,)
    if model.architecture == "esm1b" and not _BEFORE.isdisjoint(found):
        shapes |= dict.fromkeys(_BEFORE, (dim,))
    return shapes
