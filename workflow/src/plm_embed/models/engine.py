"""The forward pass of every family over packed sequences, without padding between them.

All sequences of a batch lie one after another in one (T, D) matrix. Linear layers run over it in
slices of a fixed number of rows, attention runs per sequence. So every number of a sequence's
representation comes from operations whose shapes depend on that sequence alone, and its bits do not
depend on its batch.

The family's `Encoder` says what is computed. The residual stream, norms and rotary angles stay in
fp32 in every compute dtype. Shapes: T tokens of width D; H heads of d, together A; a feed-forward
of F.
"""

import ctypes
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from plm_embed.fingerprint import ComputeDtype
from plm_embed.kernels import attention, elementwise
from plm_embed.kernels.elementwise import Norm
from plm_embed.kernels.linear import Linear
from plm_embed.kernels.packed import Distances, Packed
from plm_embed.models import distances
from plm_embed.models.family import ALiBi, Encoder, Learned, Rotary, T5RelativeBias
from plm_embed.models.manifest import Manifest
from plm_embed.models.packed_batch import DTYPES, ROWS, Batch, pack
from plm_embed.models.registry import Model
from plm_embed.models.tokens import Ids

ARITHMETIC = {"cpu": "packed-2", "cuda": "packed-4"}
"""Version of the arithmetic by the kind of device; with the label of the attention kernel it is the
engine's name in the fingerprint.

It stands for equal bits in any batch, on one kind of device: on CPUs per machine and thread count,
on CUDA per GPU type and version of torch, and per kernels, which completion records name. Only the
kernel `math` does not promise them (`Fingerprint.batch_invariant`). Each job's self-test records
its result.
"""
LATE_BIASES = {"cpu": False, "cuda": True}
"""The biases of what is added to the residual stream may wait for the next norm, which reads the
stream anyway. On CUDA the sum is a part of the product, and a pass for its bias would cost ESM-2
650M a tenth of its speed, on paper.
"""


@dataclass(frozen=True)
class Layer:
    """Weights of one transformer block; x (T, in) -> (T, out) by (out, in).

    lacks: (D,) fp32, the sum of the biases that the residual stream lacks after it.
    """

    attention_norm: Norm  # D
    qkv: Linear  # (3 A, D)
    query_key_norms: tuple[Norm, Norm] | None  # A
    out: Linear  # (D, A)
    mlp_norm: Norm  # D
    gate: Linear | None  # (F, D)
    fc1: Linear  # (F, D)
    fc2: Linear  # (D, F)
    lacks: Tensor | None


@dataclass(frozen=True)
class BatchContext:
    """Facts of a batch that every layer needs: its precision, its kernels, and where its sequences
    lie.
    """

    dtype: torch.dtype
    fused: elementwise.Elementwise
    attend: attention.Kernel
    packed: Packed


class Engine:
    """A model on one device. Knows tokens and kernels; pooling, storage and policies stay
    outside.
    """

    def __init__(
        self,
        manifest: Manifest,
        tensors: Mapping[str, Tensor],
        device: torch.device,
        dtype: ComputeDtype,
    ) -> None:
        """Move the tensors (see `checkpoints.tensor_shapes`) to `device` one by one, matrices in
        `dtype`.
        """
        self.manifest, self.device, self.precision = manifest, device, dtype
        self.dtype = DTYPES[dtype]
        self.rows = ROWS[device.type]
        """Rows of one product. Equal bits in any batch are those of one number of rows."""
        self._family, self._encoder = manifest.family, manifest.family.encoder
        self._tokens = self._family.tokens_of(tensors)
        self._distances: Distances | None = None
        self.attention = kernel(manifest, device, dtype)
        self._fp32_attention = kernel(manifest, device, "float32")
        self.elementwise = elementwise.choose(device, self.dtype, form(manifest))

        load = _Loader(tensors, device, self.dtype, self._encoder, manifest.heads)
        factor = self._encoder.branch_factor(manifest.layers)
        self._embedding = load.vector("embed_tokens.weight")  # (rows, D)
        self._positions = load.optional("embed_positions.weight")  # (rows, D)
        self._types = load.optional("embed_types.weight")  # (2, D)
        self._t5_bias = load.optional("embed_distances.weight")  # (buckets, H)
        self._norm_before = load.optional_norm("emb_layer_norm_before")
        self._layers: list[Layer] = []
        lacks = None
        for number in range(manifest.layers):
            self._layers.append(load.layer(f"layers.{number}", factor, lacks))
            lacks = self._layers[-1].lacks
        self._norm_after = load.optional_norm("emb_layer_norm_after", lacks)

    @torch.inference_mode()
    def forward(
        self, batch: Batch, layers: Collection[int], exact: bool = False
    ) -> dict[int, Tensor]:
        """Representations (T, D), fp32, after each of `layers`: 0 is the embedding, the last has
        the final norm.

        `exact` computes in fp32 with the weights at hand, for what overflows in half precision.
        """
        batch = batch.to(self.device)
        ctx = self._context(batch, exact)
        x = self._embed(batch)  # (T, D)
        y = x.to(ctx.dtype) if self._encoder.order == "post" else x  # (T, D)
        states = {0: x.clone()} if 0 in layers else {}
        for number, layer in enumerate(self._layers[: max(layers)], start=1):
            y = self._block(layer, x, y, ctx)
            if number not in layers:
                continue
            if number == len(self._layers) and self._norm_after is not None:
                states[number] = ctx.fused.norm(x, self._norm_after, torch.float32)
            else:
                states[number] = x.clone() if layer.lacks is None else x + layer.lacks
        return states

    def _embed(self, batch: Batch) -> Tensor:
        x = F.embedding(batch.tokens, self._embedding)  # (T, D)
        if self.manifest.token_dropout:
            # training masked 15 % of the tokens and zeroed 80 % of these
            x = x * (1 - 0.15 * 0.8)
        if self._positions is not None and isinstance(self._encoder.positions, Learned):
            x = x + F.embedding(batch.positions + self._encoder.positions.offset, self._positions)
        if self._types is not None:
            x = x + self._types[0]
        if self._norm_before is not None:
            x = elementwise.norm(x, self._norm_before, torch.float32)
        return x

    def _block(self, layer: Layer, x: Tensor, y: Tensor, ctx: BatchContext) -> Tensor:
        """Run a transformer block over the residual stream x (T, D), which is changed in place:
        x + f(norm(x)), or norm(x + f(x)) where the norms follow the sums.

        y and the result: x in the compute dtype, as the second kind reads and leaves it.
        """
        norm, dtype = ctx.fused.norm, ctx.dtype
        if self._encoder.order == "pre":
            self._attention(layer, x, norm(x, layer.attention_norm, dtype), ctx)
            self._feed_forward(layer, x, norm(x, layer.mlp_norm, dtype), ctx)
            return x
        self._attention(layer, x, y, ctx)
        y = norm(x, layer.attention_norm, dtype, keep=True)
        self._feed_forward(layer, x, y, ctx)
        return norm(x, layer.mlp_norm, dtype, keep=True)

    def _attention(self, layer: Layer, x: Tensor, y: Tensor, ctx: BatchContext) -> None:
        """Add the attention of y (T, D) to x (T, D)."""
        heads, width = self.manifest.heads, self.manifest.inner
        qkv = y.new_empty((len(y), 3, heads, width // heads))  # (T, 3, H, d)
        rotary = None if ctx.attend.rotates else ctx.packed.rotary
        for rows in self._slices(y):
            layer.qkv(y[rows], out=qkv[rows].view(-1, 3 * width))
            if layer.query_key_norms is not None or rotary is not None:
                angles = None if rotary is None else (rotary[0][rows], rotary[1][rows])
                ctx.fused.query_key(qkv[rows], layer.query_key_norms, angles)
        mixed = ctx.attend(qkv, ctx.packed)  # (T, A)
        for rows in self._slices(x):
            ctx.fused.add(x[rows], layer.out, mixed[rows])

    def _feed_forward(self, layer: Layer, x: Tensor, y: Tensor, ctx: BatchContext) -> None:
        """Add the feed-forward of y (T, D) to x (T, D)."""
        for rows in self._slices(x):
            z = ctx.fused.up(y[rows], layer.fc1, layer.gate, self._encoder.activation)  # (rows, F)
            z = z.float() if layer.fc2.dtype == torch.float32 else z
            ctx.fused.add(x[rows], layer.fc2, z)

    def _slices(self, x: Tensor) -> list[slice]:
        return [slice(start, start + self.rows) for start in range(0, len(x), self.rows)]

    def _context(self, batch: Batch, exact: bool) -> BatchContext:
        rotary = None
        if isinstance(self._encoder.positions, Rotary):
            width = self.manifest.inner // self.manifest.heads
            steps = torch.arange(0, width, 2, device=self.device).float() / width
            angle = torch.outer(batch.positions.float(), 1.0 / 10000**steps)  # (T, d / 2)
            rotary = angle.cos(), angle.sin()
        bias = self._bias_by_distance(max(batch.lengths))
        packed = Packed(batch.lengths, batch.boundaries, bias, rotary)
        if exact:
            return BatchContext(torch.float32, elementwise.PLAIN, self._fp32_attention, packed)
        return BatchContext(self.dtype, self.elementwise, self.attention, packed)

    def _bias_by_distance(self, longest: int) -> Distances | None:
        """Biases for sequences of so many tokens; the table is kept, and grows with them."""
        positions, heads, kept = self._encoder.positions, self.manifest.heads, self._distances
        if kept is not None and kept.table.shape[1] >= 2 * longest - 1:
            return kept
        length = distances.padded(longest)
        if self._t5_bias is not None and isinstance(positions, T5RelativeBias):
            table = distances.t5_bias(self._t5_bias, positions.farthest, length)
        elif isinstance(positions, ALiBi):
            table = distances.alibi_bias(heads, length)
        else:
            return None
        scale = (self.manifest.inner // heads) ** -0.5 if self._encoder.scaled_scores else 1.0
        self._distances = Distances(table.to(self.device), scale)
        return self._distances

    def tokenize(self, sequence: str) -> Ids:
        """Return the token ids of a normalized sequence with special tokens. May run in threads."""
        ids = self._tokens.tokenize(sequence)
        if self._family.token_per_letter and len(ids) != self._family.tokens(len(sequence)):
            raise RuntimeError("a sequence has another number of residue tokens than residues")
        return ids

    def spans(self, ids: Ids) -> NDArray[np.float32]:
        """Return the letters of a sequence's own tokens, as `Family.spans`."""
        return self._family.spans(self._tokens.letters, ids)

    def pack(self, pieces: Sequence[Ids]) -> Batch:
        """Pack tokenized sequences, in this order, in the CPU's memory. May run in a thread
        beside `forward`.
        """
        residues = [self._family.residues(len(piece)) for piece in pieces]
        pinned = self.device.type == "cuda"
        return pack(pieces, residues, self.rows, pinned=pinned)

    def prepare(self, sequences: Sequence[str]) -> Batch:
        """Tokenize and pack normalized sequences."""
        return self.pack([self.tokenize(sequence) for sequence in sequences])


@dataclass(frozen=True)
class _Loader:
    """Moves tensors to `device` one by one, matrices in `dtype`."""

    tensors: Mapping[str, Tensor]
    device: torch.device
    dtype: torch.dtype
    encoder: Encoder
    heads: int

    def layer(self, name: str, factor: float, lacks: Tensor | None) -> Layer:
        """Load a layer. What its branches add to the residual stream is times `factor`; the stream
        `lacks` biases of the layers before.
        """
        attention, pre = f"{name}.self_attn", self.encoder.order == "pre"
        out, down = f"{attention}.out_proj", f"{name}.fc2"
        late = LATE_BIASES[self.device.type]
        first, second = (
            self.matrix(f"{part}.bias", torch.float32, factor)
            if late and f"{part}.bias" in self.tensors
            else None
            for part in (out, down)
        )
        # half precision cannot hold what T5 makes here: its authors keep this matrix in fp32
        fp32 = self.encoder.fp32_down_proj and self.dtype == torch.float16
        return Layer(
            attention_norm=self.norm(f"{name}.self_attn_layer_norm", lacks if pre else first),
            qkv=self.linear(*(f"{attention}.{part}_proj" for part in "qkv")),
            query_key_norms=(
                (self.norm(f"{attention}.q_layer_norm"), self.norm(f"{attention}.k_layer_norm"))
                if self.encoder.query_key_norm
                else None
            ),
            out=self.linear(out, factor=factor, biased=not late),
            mlp_norm=self.norm(f"{name}.final_layer_norm", _sum(lacks, first) if pre else second),
            gate=self.linear(f"{name}.fc_gate") if self.encoder.gated else None,
            fc1=self.linear(f"{name}.fc1"),
            fc2=self.linear(down, factor=factor, fp32=fp32, biased=not late),
            lacks=_sum(lacks, first, second) if pre else None,
        )

    def vector(self, name: str) -> Tensor:
        """Load a tensor in fp32."""
        return self._rows(name).to(self.device, torch.float32)

    def optional(self, name: str) -> Tensor | None:
        return self.vector(name) if name in self.tensors else None

    def norm(self, name: str, missing: Tensor | None = None) -> Norm:
        """Load a norm of what lacks the biases `missing`."""
        weight, bias = self.vector(f"{name}.weight"), self.optional(f"{name}.bias")
        return Norm(weight, bias, self.encoder.epsilon, self.encoder.norm == "rms", missing)

    def optional_norm(self, name: str, missing: Tensor | None = None) -> Norm | None:
        return self.norm(name, missing) if f"{name}.weight" in self.tensors else None

    def linear(
        self, *names: str, factor: float = 1.0, fp32: bool = False, biased: bool = True
    ) -> Linear:
        """Load the linear layers of these names as one, times `factor`."""
        dtype = torch.float32 if fp32 else self.dtype

        def stack(kind: str) -> Tensor | None:
            held = [f"{name}.{kind}" for name in names if f"{name}.{kind}" in self.tensors]
            parts = [self.matrix(name, dtype, factor) for name in held]
            return torch.cat(parts) if len(parts) > 1 else parts[0] if parts else None

        weight = stack("weight")
        assert weight is not None
        linear = Linear(weight, stack("bias") if biased else None)
        del weight
        with suppress(AttributeError, OSError):  # another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)  # it would keep what each matrix took on its way
        return linear

    def matrix(self, name: str, dtype: torch.dtype, factor: float) -> Tensor:
        tensor = self._rows(name).to(self.device)  # the device converts faster
        return (tensor if factor == 1.0 else tensor.float() * factor).to(dtype)

    def _rows(self, name: str) -> Tensor:
        """Read a tensor. Where neighbors are rotated, the rows that make queries and keys are put
        in the order in which the halves of each head are: scores are the same in any order.
        """
        tensor = self.tensors[name]
        positions = self.encoder.positions
        neighbors = isinstance(positions, Rotary) and positions.neighbors
        if not neighbors or not re.search(r"\.[qk]_(proj|layer_norm)\.", name):
            return tensor
        pairs = tensor.view(self.heads, -1, 2, *tensor.shape[1:])  # (H, d / 2, 2, ...)
        return pairs.transpose(1, 2).reshape(tensor.shape)


def _sum(*vectors: Tensor | None) -> Tensor | None:
    held = [vector for vector in vectors if vector is not None]
    return torch.stack(held).sum(0) if held else None


def form(model: Model | Manifest) -> elementwise.Form:
    """Describe what a model's layers ask of the kernels between products."""
    encoder = model.family.encoder
    return elementwise.Form(
        model.dim,
        model.heads,
        encoder.activation,
        inner=model.inner,
        gated=encoder.gated,
        biased=encoder.up_bias,
        rms=encoder.norm == "rms",
        epsilon=encoder.epsilon,
        normed=encoder.query_key_norm,
        turned=isinstance(encoder.positions, Rotary),
    )


def kernel(manifest: Manifest, device: torch.device, dtype: ComputeDtype) -> attention.Kernel:
    """Choose the attention kernel for a model."""
    by_distance = isinstance(manifest.family.encoder.positions, T5RelativeBias | ALiBi)
    width = manifest.inner // manifest.heads
    return attention.choose(device, DTYPES[dtype], manifest.heads, width, by_distance)


def name(manifest: Manifest, device: torch.device, dtype: ComputeDtype) -> str:
    """Return the engine's name in the fingerprint: version of the arithmetic, label of the
    attention kernel.
    """
    return "-".join(filter(None, (ARITHMETIC[device.type], kernel(manifest, device, dtype).label)))
