"""The weights of a model on one device: matrices in the compute dtype, everything else in fp32.

Widths: D of the residual stream, A of all heads together, F of the feed-forward.
"""

import ctypes
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from plm_embed.fingerprint import ComputeDtype
from plm_embed.kernels.elementwise import PLAIN, Norm
from plm_embed.kernels.linear import Int8Linear, Linear
from plm_embed.models.family import Rotary
from plm_embed.models.registry import Model

DTYPES: dict[ComputeDtype, torch.dtype] = {
    "float32": torch.float32,
    "tfloat32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.float32,
}
"""Dtype, under int8, of all but the inputs and weights of products."""

LATE_BIASES = {"cpu": False, "cuda": True}
"""The biases of what is added to the residual stream may wait for the next norm, which reads the
stream anyway. On CUDA the sum is a part of the product, and a pass for its bias would cost ESM-2
650M a tenth of its speed, on paper.
"""


@dataclass(frozen=True)
class Layer:
    """Weights of one transformer block; x (T, in) -> (T, out) by (out, in).

    late_bias: (D,) fp32, the sum of the biases that the residual stream lacks after the block.
    """

    attention_norm: Norm  # D
    qkv: Linear  # (3 A, D)
    query_key_norms: tuple[Norm, Norm] | None  # A
    out: Linear  # (D, A)
    mlp_norm: Norm  # D
    gate: Linear | None  # (F, D)
    fc1: Linear  # (F, D)
    fc2: Linear  # (D, F)
    late_bias: Tensor | None


@dataclass(frozen=True)
class Weights:
    """All weights of a model. Parts that its family lacks are None."""

    embedding: Tensor  # (rows, D)
    positions: Tensor | None  # (rows, D)
    types: Tensor | None  # (2, D)
    t5_bias: Tensor | None  # (buckets, H)
    norm_before: Norm | None  # D
    layers: list[Layer]
    norm_after: Norm | None  # D
    head: "LMHead | None"


@dataclass(frozen=True)
class LMHead:
    """The head of a masked language model, in fp32 whatever the compute dtype; V tokens."""

    dense: Linear | None  # (D, D)
    norm: Norm  # D
    out: Linear  # (V, D)

    def log_probabilities(self, x: Tensor) -> Tensor:
        """Return the logarithms of the probabilities of all tokens, (n, V), fp32, after the last
        layer's output x (n, D) fp32.
        """
        if self.dense is not None:
            x = self.dense(x, "gelu")
        return torch.log_softmax(self.out(PLAIN.norm(x, self.norm, torch.float32)), dim=-1)


def load(
    model: Model,
    tensors: Mapping[str, Tensor],
    device: torch.device,
    precision: ComputeDtype,
    head: Mapping[str, Tensor] | None = None,
) -> Weights:
    """Move tensors (see `checkpoints.tensor_shapes`) to `device` one by one, and those of the
    `head` of the language model (see `family.Head`).
    """
    encoder = model.family.encoder
    factor = (encoder.residual_layers / model.layers) ** 0.5 if encoder.residual_layers else 1.0
    dtype, kind = DTYPES[precision], Int8Linear if precision == "int8" else Linear
    pre, late = encoder.order == "pre", LATE_BIASES[device.type]
    neighbors = isinstance(encoder.positions, Rotary) and encoder.positions.neighbors

    def matrix(name: str, dtype: torch.dtype = torch.float32, factor: float = 1.0) -> Tensor:
        tensor = tensors[name]
        if neighbors and re.search(r"\.[qk]_(proj|layer_norm)\.", name):
            # the rows of q and k in the order in which the halves of each head are rotated: scores
            # are the same in any order
            pairs = tensor.view(model.heads, -1, 2, *tensor.shape[1:])  # (H, d / 2, 2, ...)
            tensor = pairs.transpose(1, 2).reshape(tensor.shape)
        tensor = tensor.to(device)  # which converts faster
        return (tensor if factor == 1.0 else tensor.float() * factor).to(dtype)

    def vector(name: str, factor: float = 1.0) -> Tensor | None:
        return matrix(name, factor=factor) if name in tensors else None

    def norm(name: str, late_bias: Tensor | None = None) -> Norm:
        weight, bias = matrix(f"{name}.weight"), vector(f"{name}.bias")
        return Norm(weight, bias, encoder.epsilon, encoder.norm == "rms", late_bias)

    def linear(
        *names: str, dtype: torch.dtype = dtype, factor: float = 1.0, biased: bool = True
    ) -> Linear:
        """Load linear layers as one, times `factor`."""
        weights = [matrix(f"{name}.weight", dtype, factor) for name in names]
        weight = torch.cat(weights) if len(weights) > 1 else weights[0]
        del weights
        stored = [f"{name}.bias" for name in names if biased and f"{name}.bias" in tensors]
        biases = [matrix(name, dtype, factor) for name in stored]
        layer = kind(weight, torch.cat(biases) if biases else None)
        del weight
        with suppress(AttributeError, OSError):  # another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)  # it would keep what each matrix took on its way
        return layer

    fp32_down = encoder.fp32_down_proj and dtype == torch.float16
    layers: list[Layer] = []
    late_bias = None  # of the blocks so far
    for name in (f"layers.{number}" for number in range(model.layers)):
        attention, out, down = f"{name}.self_attn", f"{name}.self_attn.out_proj", f"{name}.fc2"
        first, second = (vector(f"{part}.bias", factor) if late else None for part in (out, down))
        block = Layer(
            attention_norm=norm(f"{name}.self_attn_layer_norm", late_bias if pre else first),
            qkv=linear(*(f"{attention}.{part}_proj" for part in "qkv")),
            query_key_norms=(
                (norm(f"{attention}.q_layer_norm"), norm(f"{attention}.k_layer_norm"))
                if encoder.query_key_norm
                else None
            ),
            out=linear(out, factor=factor, biased=not late),
            mlp_norm=norm(f"{name}.final_layer_norm", _sum(late_bias, first) if pre else second),
            gate=linear(f"{name}.fc_gate") if encoder.gated else None,
            fc1=linear(f"{name}.fc1"),
            fc2=linear(
                down, dtype=torch.float32 if fp32_down else dtype, factor=factor, biased=not late
            ),
            late_bias=_sum(late_bias, first, second) if pre else None,
        )
        late_bias = block.late_bias
        layers.append(block)
    lm_head = None
    if head is not None:
        parts = {name: head[name].to(device, torch.float32) for name in head}
        weight, bias = parts["layer_norm.weight"], parts.get("layer_norm.bias")
        lm_head = LMHead(
            Linear(parts["dense.weight"], parts["dense.bias"]) if "dense.weight" in parts else None,
            Norm(weight, bias, encoder.epsilon, encoder.norm == "rms"),
            Linear(parts["out.weight"], parts["out.bias"]),
        )
    before, after = "emb_layer_norm_before", "emb_layer_norm_after"
    return Weights(
        matrix("embed_tokens.weight"),
        vector("embed_positions.weight"),
        vector("embed_types.weight"),
        vector("embed_distances.weight"),
        norm(before) if f"{before}.weight" in tensors else None,
        layers,
        norm(after, late_bias) if f"{after}.weight" in tensors else None,
        lm_head,
    )


def _sum(*vectors: Tensor | None) -> Tensor | None:
    present = [vector for vector in vectors if vector is not None]
    return torch.stack(present).sum(0) if present else None
