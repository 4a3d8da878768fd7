"""The published formulas of every family, in float64 or as a compute dtype rounds them.

In float64 they are the reference path of families without fair-esm. With a compute dtype they tell
how far its rounding alone moves the vectors of the very weights in use.

One sequence at a time, without padding, slices or kernels, and nothing shared with the engine but
the description of the family. Tests compare it with values of the authors' formulas, written out
family by family. The layers are loaded one after another, so that the memory needed is that of one.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from plm_embed.fingerprint import ComputeDtype
from plm_embed.models.family import (
    Activation,
    ALiBi,
    Encoder,
    Learned,
    Rotary,
    T5RelativeBias,
)
from plm_embed.models.manifest import Manifest

_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: x.clamp(min=0),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


@torch.inference_mode()
def all_states(
    manifest: Manifest,
    tensors: Mapping[str, Tensor],
    sequences: Sequence[str],
    layers: Sequence[int],
    rounding: ComputeDtype | None = None,
) -> list[dict[int, Tensor]]:
    """Representations (tokens, D) of each sequence after each of `layers`, fp32.

    Without `rounding` in float64; with it in float32, where inputs and results of matrix products
    are rounded as this dtype does.
    """
    encoder = manifest.family.encoder
    tokenize = manifest.family.tokens_of(tensors).tokenize
    tokens = [torch.from_numpy(tokenize(sequence).astype(np.int64)) for sequence in sequences]
    outer = _Part(tensors, "", rounding)
    states = [_embed(manifest, outer, row) for row in tokens]
    found = [{0: state} if 0 in layers else {} for state in states]
    for number in range(1, max(layers) + 1):
        part = _Part(tensors, f"layers.{number - 1}.", rounding)
        states = [_layer(manifest, outer, part, state) for state in states]
        if number in layers:
            last = number == manifest.layers and outer.holds("emb_layer_norm_after")
            for kept, state in zip(found, states, strict=True):
                kept[number] = (
                    _norm(encoder, outer, "emb_layer_norm_after", state) if last else state
                )
    return [{number: state.float() for number, state in kept.items()} for kept in found]


def round_to(dtype: ComputeDtype, x: Tensor) -> Tensor:
    """Round numbers in float32 to a compute dtype; they stay float32."""
    if dtype == "tfloat32":  # the exponent of float32, 10 of the 23 bits of its mantissa
        return ((x.view(torch.int32) + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)
    return x if dtype == "float32" else x.to(getattr(torch, dtype)).float()


class _Part(dict[str, Tensor]):
    """Tensors under a prefix in the dtype of the arithmetic, each read once, when it is first
    needed; weights of products are rounded.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], prefix: str, rounding: ComputeDtype | None
    ) -> None:
        super().__init__()
        self._tensors, self._prefix, self._rounding = tensors, prefix, rounding
        self._dtype = torch.float64 if rounding is None else torch.float32

    def __missing__(self, name: str) -> Tensor:
        self[name] = self._tensors[self._prefix + name].to(self._dtype)
        return self[name]

    def rounded(self, x: Tensor) -> Tensor:
        """Round an input of a linear layer."""
        return x if self._rounding is None else round_to(self._rounding, x)

    def stored(self, x: Tensor) -> Tensor:
        """Round a result of a product or an input of attention, which float32 and tfloat32 keep."""
        return x if self._rounding == "tfloat32" else self.rounded(x)

    def holds(self, name: str) -> bool:
        return f"{self._prefix}{name}.weight" in self._tensors

    def linear(self, name: str, x: Tensor, wide: bool = False) -> Tensor:
        """Multiply by a matrix; with `wide`, float16 rounds nothing of it."""
        weight = f"{name}.weight"
        if wide and self._rounding == "float16":
            return x @ self[weight].T + self.bias(name)
        x = self.rounded(x)
        if weight not in self:
            self[weight] = self.rounded(self[weight])
        return self.stored(x @ self[weight].T + self.bias(name))

    def bias(self, name: str) -> Tensor | float:
        return self[f"{name}.bias"] if f"{self._prefix}{name}.bias" in self._tensors else 0.0


def _embed(manifest: Manifest, part: _Part, tokens: Tensor) -> Tensor:
    encoder = manifest.family.encoder
    x = part["embed_tokens.weight"][tokens]
    if manifest.token_dropout:
        x = x * (1 - 0.15 * 0.8)
    if isinstance(encoder.positions, Learned):
        first = encoder.positions.offset
        x = x + part["embed_positions.weight"][first : first + len(tokens)]
    if encoder.token_types:
        x = x + part["embed_types.weight"][0]
    if part.holds("emb_layer_norm_before"):
        x = _norm(encoder, part, "emb_layer_norm_before", x)
    return x


def _norm(encoder: Encoder, part: _Part, name: str, x: Tensor) -> Tensor:
    if encoder.norm == "layer":
        x = x - x.mean(-1, keepdim=True)
    x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + encoder.epsilon)
    return x * part[f"{name}.weight"] + part.bias(name)


def _layer(manifest: Manifest, outer: _Part, part: _Part, x: Tensor) -> Tensor:
    encoder = manifest.family.encoder
    shrink = math.sqrt(manifest.layers / (encoder.residual_layers or manifest.layers))

    def attention(y: Tensor) -> Tensor:
        q, k, v = (part.linear(f"self_attn.{name}_proj", y) for name in "qkv")
        if encoder.query_key_norm:
            q = _norm(encoder, part, "self_attn.q_layer_norm", q)
            k = _norm(encoder, part, "self_attn.k_layer_norm", k)
        shape = (len(y), manifest.heads, -1)
        q, k, v = (each.reshape(shape).transpose(0, 1) for each in (q, k, v))  # (H, T, d)
        if isinstance(encoder.positions, Rotary):
            q, k = (_turned(part, encoder.positions.neighbors) for part in (q, k))
        q, k, v = map(part.stored, (q, k, v))
        scores = q @ k.transpose(1, 2)
        if encoder.scaled_scores:
            scores = scores / math.sqrt(q.shape[-1])
        scores = (scores + _biases(manifest, outer, len(y))).to(y.dtype)
        shares = part.stored(torch.softmax(scores, -1))
        mixed = (shares @ v).transpose(0, 1).reshape(len(y), -1)
        return part.linear("self_attn.out_proj", mixed) / shrink

    def feed_forward(y: Tensor) -> Tensor:
        activation = _ACTIVATIONS[encoder.activation]
        if encoder.gated:
            y = activation(part.linear("fc_gate", y)) * part.linear("fc1", y)
        else:
            y = activation(part.linear("fc1", y))
        return part.linear("fc2", y, wide=encoder.fp32_down_proj) / shrink

    for name, branch in (
        ("self_attn_layer_norm", attention),
        ("final_layer_norm", feed_forward),
    ):
        if encoder.order == "pre":
            x = x + branch(_norm(encoder, part, name, x))
        else:
            x = _norm(encoder, part, name, x + branch(x))
    return x


def _turned(x: Tensor, neighbors: bool) -> Tensor:
    """Rotate (H, T, d) by the positions: the halves of each head against each other, or
    neighbors.
    """
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.outer(torch.arange(x.shape[1], dtype=torch.float64), frequency)
    left, right = (x[..., ::2], x[..., 1::2]) if neighbors else (x[..., :half], x[..., half:])
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    turned = left * cosine - right * sine, right * cosine + left * sine
    return torch.stack(turned, -1).flatten(-2) if neighbors else torch.cat(turned, -1)


def _biases(manifest: Manifest, outer: _Part, length: int) -> Tensor | float:
    """(H, T, T) by the published formulas in floating point."""
    positions = manifest.family.encoder.positions
    at = torch.arange(length)
    distance = at[None] - at[:, None]  # key - query
    if isinstance(positions, T5RelativeBias):
        half = positions.count // 2
        exact = half // 2
        ratio = (distance.abs().clamp(min=1) / exact).double().log() / math.log(
            positions.farthest / exact
        )
        # 1e-9: at a power the logarithm may round below the whole number that it is
        far = (exact + ratio * (half - exact) + 1e-9).long().clamp(max=half - 1)
        index = torch.where(distance.abs() < exact, distance.abs(), far) + (distance > 0) * half
        return outer["embed_distances.weight"][index].permute(2, 0, 1)
    if isinstance(positions, ALiBi):
        return -_slopes(manifest.heads)[:, None, None] * distance.abs()
    return 0.0


def _slopes(heads: int) -> Tensor:
    power = 2 ** math.floor(math.log2(heads))
    found: Tensor = 2.0 ** (-8 / power * torch.arange(1, power + 1, dtype=torch.float64))
    if power == heads:
        return found
    return torch.cat((found, _slopes(2 * power)[0::2][: heads - power]))
