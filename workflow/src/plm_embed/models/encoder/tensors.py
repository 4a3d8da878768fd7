"""The tensors of an encoder: names, which are fair-esm's without prefixes where it has them, and
shapes.
"""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from plm_embed.models.encoder.description import Learned, T5RelativeBias

if TYPE_CHECKING:
    from plm_embed.models.model import Model

_BEFORE = ("emb_layer_norm_before.weight", "emb_layer_norm_before.bias")


def tensor_shapes(model: "Model", found: Collection[str] = ()) -> dict[str, tuple[int, ...]]:
    """Names and shapes of every tensor that a model needs, and of those that it may have and that
    are `found`.
    """
    shapes = dict(_embedding(model, found))
    for layer in range(model.layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in _layer(model)}
    encoder = model.family.encoder
    if encoder.order == "pre":
        shapes |= _norm("emb_layer_norm_after", model.dim, encoder.final_norm_bias)
    return shapes


def _embedding(model: "Model", found: Collection[str]) -> Iterator[tuple[str, tuple[int, ...]]]:
    encoder = model.family.encoder
    yield "embed_tokens.weight", (encoder.rows, model.dim)
    if isinstance(encoder.positions, Learned):
        yield "embed_positions.weight", (encoder.positions.rows, model.dim)
    if isinstance(encoder.positions, T5RelativeBias):
        yield "embed_distances.weight", (encoder.positions.count, model.heads)
    if encoder.token_types:
        yield "embed_types.weight", (2, model.dim)
    if encoder.embedding_norm == "always" or (
        encoder.embedding_norm == "if found" and any(name in found for name in _BEFORE)
    ):
        yield from dict.fromkeys(_BEFORE, (model.dim,)).items()


def _layer(model: "Model") -> Iterator[tuple[str, tuple[int, ...]]]:
    encoder, dim, inner, hidden = model.family.encoder, model.dim, model.inner, model.hidden
    for name in ("self_attn_layer_norm", "final_layer_norm"):
        yield from _norm(name, dim, encoder.norm_bias).items()
    if encoder.query_key_norm:
        for part in "qk":
            yield f"self_attn.{part}_layer_norm.weight", (inner,)
    linear = {f"self_attn.{part}_proj": (inner, dim, encoder.attention_bias) for part in "qkv"}
    linear["self_attn.out_proj"] = dim, inner, encoder.attention_bias
    for name in ("fc1", "fc_gate") if encoder.gated else ("fc1",):
        linear[name] = hidden, dim, encoder.up_bias
    linear["fc2"] = dim, hidden, encoder.down_bias
    for name, (rows, columns, bias) in linear.items():
        yield f"{name}.weight", (rows, columns)
        if bias:
            yield f"{name}.bias", (rows,)


def _norm(name: str, dim: int, bias: bool) -> dict[str, tuple[int, ...]]:
    return {f"{name}.{kind}": (dim,) for kind in ("weight", "bias")[: 1 + bias]}
