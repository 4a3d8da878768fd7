"""The published formulas of every family, in float64 or as a compute dtype rounds them.

In float64 they are the reference path of families without fair-esm. With a compute dtype they tell
how far its rounding alone moves the vectors of the very weights in use.

One sequence at a time, without padding, slices or kernels, and nothing shared with the engine but
the description of the family. Tests compare it with values of the authors' formulas, written out
family by family. The layers are loaded one after another, so that the memory needed is that of one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from plm_embed.fingerprint import ComputeDtype
from plm_embed.models.family import Activation, ALiBi, Encoder, Ids, Learned, Rotary, T5RelativeBias
from plm_embed.models.registry import Model

_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: x.clamp(min=0),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


@torch.inference_mode()
def all_states(
    model: Model,
    tensors: Mapping[str, Tensor],
    sequences: Sequence[str],
    layers: Sequence[int],
    rounding: ComputeDtype | None = None,
    *,
    masked: Sequence[int] | None = None,
) -> list[dict[int, Tensor]]:
    """Representations (tokens, D) of each sequence after each of `layers`, fp32.

    Without `rounding` in float64; with it in float32, where inputs and results of matrix products
    are rounded as this dtype does. `masked`: the residue of each sequence that is masked.
    """
    tokenize = model.family.tokenizer.within(tensors).tokenize
    tokens = [torch.from_numpy(tokenize(sequence).astype(np.int64)) for sequence in sequences]
    formulas = partial(_Formulas, model, model.family.encoder, tensors, rounding)
    outer, first = formulas(""), model.family.residues(0)[0]
    places = [None] * len(tokens) if masked is None else [first + place for place in masked]
    x = [outer.embed(row, place) for row, place in zip(tokens, places, strict=True)]  # (T, D) each
    states = [{0: row} if 0 in layers else {} for row in x]
    for number in range(1, max(layers) + 1):
        layer = formulas(f"layers.{number - 1}.")
        x = [layer.block(row, outer.biases(len(row))) for row in x]
        if number in layers:
            last = number == model.layers and "emb_layer_norm_after.weight" in tensors
            for by_layer, row in zip(states, x, strict=True):
                by_layer[number] = outer.norm("emb_layer_norm_after", row) if last else row
    return [{number: x.float() for number, x in by_layer.items()} for by_layer in states]


@torch.inference_mode()
def token_scores(model: Model, head: Mapping[str, Tensor], state: Tensor, ids: Ids) -> Tensor:
    """Return the log-probability of each residue and the entropy at its place, (L, 2) float64, by
    the head of the language model after the last layer's representation (tokens, D) of a sequence;
    ids (tokens,).
    """
    formulas, x = _Formulas(model, model.family.encoder, head, None, ""), state.double()
    if "dense.weight" in head:
        x = _ACTIVATIONS["gelu"](formulas.linear("dense", x))
    logs = torch.log_softmax(formulas.linear("out", formulas.norm("layer_norm", x)), -1)  # (T, V)
    chosen = logs.gather(1, torch.from_numpy(ids.astype(np.int64))[:, None])
    scores = torch.cat([chosen, -(logs.exp() * logs).sum(1, keepdim=True)], dim=1)
    return scores[slice(*model.family.residues(len(ids)))]


@dataclass(frozen=True)
class _Formulas:
    """The formulas over the tensors under a prefix, each read once, when it is first needed."""

    model: Model
    encoder: Encoder
    tensors: Mapping[str, Tensor]
    rounding: ComputeDtype | None
    prefix: str
    read: dict[str, Tensor] = field(default_factory=dict)

    def weight(self, name: str, rounded: bool = False) -> Tensor:
        """Return a tensor in the dtype of the formulas; 0 for a bias that the model lacks."""
        if name.endswith(".bias") and self.prefix + name not in self.tensors:
            return torch.zeros(())
        if name not in self.read:
            dtype = torch.float64 if self.rounding is None else torch.float32
            numbers = self.tensors[self.prefix + name].to(dtype)
            self.read[name] = self.round(numbers) if rounded else numbers
        return self.read[name]

    def round(self, x: Tensor, *, result: bool = False) -> Tensor:
        """Round an input of a product, or its result and an input of attention, which float32,
        tfloat32 and int8 keep.
        """
        if self.rounding in (None, "float32"):
            return x
        if self.rounding == "int8":  # by row: of an input a token's, of a weight an output's
            scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
            return x if result else torch.round(x / scale) * scale
        if self.rounding != "tfloat32":
            return x.to(getattr(torch, self.rounding)).float()
        # the exponent of float32, 10 of the 23 bits of its mantissa
        return x if result else ((x.view(torch.int32) + (1 << 12)) & ~((1 << 13) - 1)).view(x.dtype)

    def linear(self, name: str, x: Tensor) -> Tensor:
        if self.rounding == "float16" and name == "fc2" and self.encoder.fp32_down_proj:
            return x @ self.weight("fc2.weight").T + self.weight(f"{name}.bias")
        weight = self.weight(f"{name}.weight", rounded=True)
        return self.round(self.round(x) @ weight.T + self.weight(f"{name}.bias"), result=True)

    def norm(self, name: str, x: Tensor) -> Tensor:
        if self.encoder.norm == "layer":
            x = x - x.mean(-1, keepdim=True)
        x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.encoder.epsilon)
        return x * self.weight(f"{name}.weight") + self.weight(f"{name}.bias")

    def embed(self, tokens: Tensor, masked: int | None = None) -> Tensor:
        encoder, head = self.encoder, self.model.family.head
        if masked is not None and head:
            tokens = tokens.index_fill(0, torch.tensor(masked), head.mask)
        x = self.weight("embed_tokens.weight")[tokens]  # (T, D)
        if encoder.token_dropout:
            x = x * (1 - 0.15 * 0.8)
            if masked is not None:
                x[masked] = 0
                x = x / (1 - 1 / len(tokens))
        if isinstance(encoder.positions, Learned):
            first = encoder.positions.offset
            x = x + self.weight("embed_positions.weight")[first : first + len(tokens)]
        if encoder.token_types:
            x = x + self.weight("embed_types.weight")[0]
        if "emb_layer_norm_before.weight" in self.tensors:
            x = self.norm("emb_layer_norm_before", x)
        return x

    def block(self, x: Tensor, biases: Tensor | float) -> Tensor:
        """Run a transformer block over x (T, D), with biases (H, T, T) of scores."""
        layers, before = self.model.layers, self.encoder.order == "pre"
        shrink = math.sqrt(layers / (self.encoder.residual_layers or layers))
        first, second = "self_attn_layer_norm", "final_layer_norm"
        x = x + self.attention(self.norm(first, x) if before else x, biases) / shrink
        x = x if before else self.norm(first, x)
        y = self.norm(second, x) if before else x
        if self.encoder.gated:
            z = _ACTIVATIONS[self.encoder.activation](self.linear("fc_gate", y))
            z = z * self.linear("fc1", y)
        else:
            z = _ACTIVATIONS[self.encoder.activation](self.linear("fc1", y))
        x = x + self.linear("fc2", z) / shrink
        return x if before else self.norm(second, x)

    def attention(self, y: Tensor, biases: Tensor | float) -> Tensor:
        q, k, v = (self.linear(f"self_attn.{part}_proj", y) for part in "qkv")  # (T, A)
        if self.encoder.query_key_norm:
            q = self.norm("self_attn.q_layer_norm", q)
            k = self.norm("self_attn.k_layer_norm", k)
        shape = (len(y), self.model.heads, -1)
        q, k, v = (x.reshape(shape).transpose(0, 1) for x in (q, k, v))  # (H, T, d)
        if isinstance(self.encoder.positions, Rotary):
            q, k = (_rotate(x, self.encoder.positions.neighbors) for x in (q, k))
        q, k, v = (self.round(x, result=True) for x in (q, k, v))
        scores = q @ k.transpose(1, 2)  # (H, T, T)
        if self.encoder.scaled_scores:
            scores = scores / math.sqrt(q.shape[-1])
        shares = torch.softmax((scores + biases).to(y.dtype), -1)
        mixed = self.round(shares, result=True) @ v
        return self.linear("self_attn.out_proj", mixed.transpose(0, 1).reshape(len(y), -1))

    def biases(self, length: int) -> Tensor | float:
        """(H, T, T) by the published formulas in floating point."""
        positions, places = self.encoder.positions, torch.arange(length)
        distance = places[None] - places[:, None]  # key - query
        if isinstance(positions, T5RelativeBias):
            half = positions.count // 2
            exact = half // 2
            ratio = (distance.abs().clamp(min=1) / exact).double().log() / math.log(
                positions.farthest / exact
            )
            # 1e-9: at a power the logarithm may round below the whole number that it is
            far = (exact + ratio * (half - exact) + 1e-9).long().clamp(max=half - 1)
            index = torch.where(distance.abs() < exact, distance.abs(), far) + (distance > 0) * half
            return self.weight("embed_distances.weight")[index].permute(2, 0, 1)
        if isinstance(positions, ALiBi):
            return -_slopes(self.model.heads)[:, None, None] * distance.abs()
        return 0.0


def _rotate(x: Tensor, neighbors: bool) -> Tensor:
    """Rotate (H, T, d) by the positions: the halves of each head against each other, or
    neighbors.
    """
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.outer(torch.arange(x.shape[1], dtype=torch.float64), frequency)
    left, right = (x[..., ::2], x[..., 1::2]) if neighbors else (x[..., :half], x[..., half:])
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    rotated = left * cosine - right * sine, right * cosine + left * sine
    return torch.stack(rotated, -1).flatten(-2) if neighbors else torch.cat(rotated, -1)


def _slopes(heads: int) -> Tensor:
    power = 2 ** math.floor(math.log2(heads))
    slopes: Tensor = 2.0 ** (-8 / power * torch.arange(1, power + 1, dtype=torch.float64))
    if power == heads:
        return slopes
    return torch.cat((slopes, _slopes(2 * power)[0::2][: heads - power]))
