"""The forward pass of ESM-2, ESM-1b and ESM-1v over packed sequences, without padding between them.

All sequences of a batch lie one after another in one (T, D) matrix. Linear layers run over it in slices of a fixed
number of rows, attention runs per sequence. So every number of a sequence's representation comes from operations whose
shapes depend on that sequence alone, and its bits do not depend on the batch it travels in.

The arithmetic is fair-esm 2.0.0's (`esm/model/esm2.py`, `esm/model/esm1.py`, `esm/modules.py`): pre-layer-norm blocks,
exact-erf GELU, embeddings scaled by 0.88 where the model was trained with token dropout, rotary angles in fp32.
Residual stream and layer norms stay in fp32 whatever the compute dtype is.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from plm_embed.fingerprint import ComputeDtype
from plm_embed.linear import Linear
from plm_embed.tokens import PAD, tokenize
from plm_embed.weights import Manifest

NAME = "packed-1"
"""Version of the arithmetic; part of the fingerprint.

Equal bits in any batch are promised on CPUs, per machine and thread count. On CUDA the attention kernel may split its
work by what else is in the call; the self-test of each job records whether its probes came out equal.
"""

ROWS = {"cpu": 512, "cuda": 4096}
"""Rows of one matrix product. Fixed, because a library may choose another summation order for another shape."""

TOKENS = {"cpu": 2048, "cuda": 32768}
"""Token budget of a batch when none is asked for; a multiple of `ROWS`."""

TOKEN_DROPOUT_SCALE = 1 - 0.15 * 0.8
"""Training masked 15 % of the tokens and zeroed 80 % of those; without masks the embedding is scaled by 0.88."""

LAYER_NORM_EPS = 1e-5
DTYPES: dict[ComputeDtype, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class Batch:
    """Packed sequences: `tokens`, `positions` (T,), T a multiple of `ROWS`; `lengths` count `<cls>` and `<eos>` too."""

    tokens: Tensor
    positions: Tensor
    lengths: tuple[int, ...]


class Engine:
    """A model on one device. Knows tokens and kernels; pooling, storage and policies stay outside."""

    def __init__(
        self, manifest: Manifest, tensors: dict[str, Tensor], device: torch.device, dtype: ComputeDtype
    ) -> None:
        """Move the tensors (canonical names, see `plm_embed.weights`) to `device`, matrices in `dtype`."""
        self.manifest = manifest
        self.device = device
        self.dtype = DTYPES[dtype]
        self.rows = ROWS[device.type]

        def matrix(name: str) -> Tensor:
            return tensors[name].to(device, self.dtype)

        def vector(name: str) -> Tensor:
            return tensors[name].to(device, torch.float32)

        def norm(name: str) -> tuple[Tensor, Tensor]:
            return vector(f"{name}.weight"), vector(f"{name}.bias")

        def linear(*names: str) -> Linear:
            weight = torch.cat([matrix(f"{name}.weight") for name in names])
            return Linear(weight, torch.cat([matrix(f"{name}.bias") for name in names]))

        self._embedding = vector("embed_tokens.weight")
        self._positions = vector("embed_positions.weight") if "embed_positions.weight" in tensors else None
        self._norm_before = norm("emb_layer_norm_before") if "emb_layer_norm_before.weight" in tensors else None
        self._norm_after = norm("emb_layer_norm_after")
        self._layers = [
            _Layer(
                attention_norm=norm(f"layers.{i}.self_attn_layer_norm"),
                qkv=linear(*(f"layers.{i}.self_attn.{part}_proj" for part in "qkv")),
                out=linear(f"layers.{i}.self_attn.out_proj"),
                mlp_norm=norm(f"layers.{i}.final_layer_norm"),
                fc1=linear(f"layers.{i}.fc1"),
                fc2=linear(f"layers.{i}.fc2"),
            )
            for i in range(manifest.layers)
        ]

    def prepare(self, sequences: Sequence[str]) -> Batch:
        """Pack normalised sequences, in the order given."""
        pieces = [tokenize(sequence) for sequence in sequences]
        lengths = tuple(len(piece) for piece in pieces)
        total = -(-sum(lengths) // self.rows) * self.rows
        tokens = np.full(total, PAD, dtype=np.int64)
        positions = np.zeros(total, dtype=np.int64)
        start = 0
        for piece in pieces:
            stop = start + len(piece)
            tokens[start:stop] = piece
            positions[start:stop] = np.arange(len(piece))
            start = stop
        return Batch(
            tokens=torch.from_numpy(tokens).to(self.device, non_blocking=True),
            positions=torch.from_numpy(positions).to(self.device, non_blocking=True),
            lengths=lengths,
        )

    @torch.inference_mode()
    def forward(self, batch: Batch, layers: Collection[int]) -> dict[int, Tensor]:
        """Representations (T, D), fp32, after each of `layers`: 0 is the embedding, the last has the final norm."""
        found: dict[int, Tensor] = {}
        x = self._embed(batch)
        if 0 in layers:
            found[0] = x.clone()
        rotary = self._rotary(batch.positions) if self._positions is None else None
        for number, layer in enumerate(self._layers[: max(layers)], start=1):
            self._block(layer, x, batch.lengths, rotary)
            if number in layers and number < len(self._layers):
                found[number] = x.clone()
        if len(self._layers) in layers:
            found[len(self._layers)] = _norm(x, self._norm_after)
        return found

    def split(self, batch: Batch, hidden: Tensor) -> tuple[Tensor, ...]:
        """Cut (T, D) into one (L + 2, D) view per sequence."""
        return torch.split(hidden[: sum(batch.lengths)], list(batch.lengths))

    def _embed(self, batch: Batch) -> Tensor:
        x = self._embedding[batch.tokens]  # (T, D)
        if self.manifest.token_dropout:
            x = x * TOKEN_DROPOUT_SCALE
        if self._positions is not None:
            # learned positions count from PAD + 1 (esm/modules.py: LearnedPositionalEmbedding)
            x = x + self._positions[batch.positions + PAD + 1]
        return x if self._norm_before is None else _norm(x, self._norm_before)

    def _rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotary angles, (T, 1, 1, d / 2) fp32."""
        width = self.manifest.dim // self.manifest.heads
        frequency = 1.0 / (10000 ** (torch.arange(0, width, 2, device=self.device).float() / width))
        angle = torch.outer(positions.float(), frequency)[:, None, None, :]
        return angle.cos(), angle.sin()

    def _block(
        self, layer: "_Layer", x: Tensor, lengths: tuple[int, ...], rotary: tuple[Tensor, Tensor] | None
    ) -> None:
        """One transformer layer, added to the residual stream `x` (T, D) in place."""
        shape = (3, self.manifest.heads, self.manifest.dim // self.manifest.heads)
        qkv = torch.empty((len(x), *shape), dtype=self.dtype, device=self.device)
        for at in range(0, len(x), self.rows):
            rows = slice(at, at + self.rows)
            qkv[rows] = layer.qkv(_norm(x[rows], layer.attention_norm).to(self.dtype)).view(-1, *shape)
            if rotary is not None:
                _rotate(qkv[rows, :2], rotary[0][rows], rotary[1][rows])
        attended = torch.zeros((len(x), self.manifest.dim), dtype=self.dtype, device=self.device)
        attend(qkv, lengths, attended)  # the unused tail stays zero
        for at in range(0, len(x), self.rows):
            rows = slice(at, at + self.rows)
            x[rows] += layer.out(attended[rows])
            x[rows] += layer.fc2(layer.fc1(_norm(x[rows], layer.mlp_norm).to(self.dtype), gelu=True))


@dataclass(frozen=True)
class _Layer:
    """Weights of one transformer layer; q, k and v in one matrix (3 D, D)."""

    attention_norm: tuple[Tensor, Tensor]
    qkv: Linear
    out: Linear
    mlp_norm: tuple[Tensor, Tensor]
    fc1: Linear
    fc2: Linear


def attend(qkv: Tensor, lengths: tuple[int, ...], out: Tensor) -> None:
    """Attention within each sequence: qkv (T, 3, H, d) -> out (T, D), up to the end of the last sequence.

    Neighbours of equal length share one call; the packer sorts by length, so there are few calls and no masks.
    """
    start = at = 0
    while at < len(lengths):
        length = lengths[at]
        run = 1
        while at + run < len(lengths) and lengths[at + run] == length:
            run += 1
        stop = start + run * length
        query, key, value = qkv[start:stop].view(run, length, *qkv.shape[1:]).permute(2, 0, 3, 1, 4)  # (run, H, L, d)
        result = F.scaled_dot_product_attention(query, key, value)
        out[start:stop] = result.transpose(1, 2).reshape(stop - start, -1)
        start, at = stop, at + run


def _rotate(qk: Tensor, cosine: Tensor, sine: Tensor) -> None:
    """Rotate the halves of each head, in fp32 and in place (esm/rotary_embedding.py): qk (T, 2, H, d)."""
    first, second = qk.chunk(2, dim=-1)
    left, right = first.float(), second.float()
    rotated = left * cosine - right * sine, right * cosine + left * sine
    first.copy_(rotated[0])
    second.copy_(rotated[1])


def _norm(x: Tensor, weight_and_bias: tuple[Tensor, Tensor]) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], *weight_and_bias, LAYER_NORM_EPS)
