"""The forward pass of every family over packed sequences, without padding between them.

All sequences of a batch lie one after another in one (T, D) matrix. Linear layers run over it in
slices of a fixed number of rows, attention runs per sequence. So every number of a sequence's
representation comes from operations whose shapes depend on that sequence alone, and its bits do not
depend on the batch it travels in.

What is computed is in the family's `Encoder`. Residual stream, norms and rotary angles stay in fp32
whatever the compute dtype is.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from plm_embed.fingerprint import ComputeDtype
from plm_embed.kernels import attention, elementwise
from plm_embed.kernels.packed import Distances, Packed
from plm_embed.models.encoder import distances
from plm_embed.models.encoder.description import Buckets, Learned, Rotary, Slopes
from plm_embed.models.encoder.layers import Layer, Loader
from plm_embed.models.manifest import Manifest
from plm_embed.models.model import Model
from plm_embed.models.packed_batch import DTYPES, ROWS, Batch, pack
from plm_embed.models.tokenizer_file import Ids

ARITHMETIC = {"cpu": "packed-2", "cuda": "packed-3"}
"""Version of the arithmetic by the kind of device; with the label of the attention kernel it is the
engine's name in the fingerprint.

It stands for equal bits in any batch, on one kind of device: on CPUs per machine and thread count,
on CUDA per GPU type and version of torch, and per kernels, which completion records name. Only the
kernel `math` does not promise them (`Fingerprint.batch_invariant`). Each job's self-test records
what it saw.
"""

TOKEN_DROPOUT_SCALE = 1 - 0.15 * 0.8
"""Training masked 15 % of the tokens and zeroed 80 % of those; without masks the embedding is
scaled by 0.88.
"""


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
        """Move the tensors (see `models.encoder.tensors`) to `device` one by one, matrices in
        `dtype`.
        """
        self.manifest = manifest
        self.device = device
        self.precision = dtype
        self.dtype = DTYPES[dtype]
        self.rows = ROWS[device.type]
        """Of a product. Equal bits in any batch are those of one number of rows."""
        self._family = manifest.family
        self._tokens = self._family.tokens_of(tensors)
        self._encoder = encoder = self._family.encoder
        factor = encoder.branch_factor(manifest.layers)
        load = Loader(tensors, device, self.dtype, encoder)

        self._embedding = load.vector("embed_tokens.weight")
        self._positions = (
            load.vector("embed_positions.weight")
            if isinstance(encoder.positions, Learned)
            else None
        )
        self._buckets = (
            load.vector("embed_distances.weight")
            if isinstance(encoder.positions, Buckets)
            else None
        )
        self._type = load.vector("embed_types.weight")[0] if encoder.token_types else None
        self._norm_before = load.norm("emb_layer_norm_before")
        self._layers = [load.layer(f"layers.{i}", factor) for i in range(manifest.layers)]
        self._norm_after = load.norm("emb_layer_norm_after")
        self._inner = manifest.inner
        self._distances: Distances | None = None
        self.attention = kernel(manifest, device, dtype)
        self._exact = (
            self.attention if self.dtype == torch.float32 else kernel(manifest, device, "float32")
        )
        self.elementwise = elementwise.choose(device, self.dtype, form(manifest))

    def tokenize(self, sequence: str) -> Ids:
        """Token ids of a normalized sequence, special tokens included. May run in threads."""
        found = self._tokens.tokenize(sequence)
        family = self._family
        if family.token_per_letter and len(found) != family.tokens(len(sequence)):
            raise RuntimeError("a sequence has another number of residue tokens than residues")
        return found

    def spans(self, ids: Ids) -> NDArray[np.float32]:
        """The letters of a sequence's own tokens, as `Family.spans`."""
        return self._family.spans(self._tokens.letters, ids)

    def pack(self, pieces: Sequence[Ids]) -> Batch:
        """Pack tokenized sequences, in the order given, in the CPU's memory. May run in a thread
        beside `forward`.
        """
        residues = [self._family.residues(len(piece)) for piece in pieces]
        pinned = self.device.type == "cuda"
        return pack(pieces, residues, self.rows, self._family.fill, pinned=pinned)

    def prepare(self, sequences: Sequence[str]) -> Batch:
        """Tokenize and pack normalized sequences."""
        return self.pack([self.tokenize(sequence) for sequence in sequences])

    @torch.inference_mode()
    def forward(
        self, batch: Batch, layers: Collection[int], exact: bool = False
    ) -> dict[int, Tensor]:
        """Representations (T, D), fp32, after each of `layers`: 0 is the embedding, the last has
        the final norm.

        `exact` computes in fp32 with the weights at hand, for what overflows in half precision.
        """
        batch = batch.to(self.device)
        found: dict[int, Tensor] = {}
        x = self._embed(batch)
        if 0 in layers:
            found[0] = x.clone()
        attend = self._exact if exact else self.attention
        distances = self._distances_for(max(batch.lengths))
        rotary = (
            self._rotary(batch.positions) if isinstance(self._encoder.positions, Rotary) else None
        )
        before, within = (None, rotary) if attend.rotates else (rotary, None)
        way = _Way(
            torch.float32 if exact else self.dtype,
            elementwise.PLAIN if exact else self.elementwise,
            attend,
            Packed(batch.lengths, batch.boundaries, distances, within),
            before,
        )
        slices = self._slices(x) if self._encoder.order == "post" else []
        ready = [x[rows].to(way.dtype) for rows in slices]
        for number, layer in enumerate(self._layers[: max(layers)], start=1):
            self._layer(layer, x, ready, way)
            if number in layers:
                found[number] = self._representation(number, x, way)
        return found

    def _representation(self, number: int, x: Tensor, way: "_Way") -> Tensor:
        """What the residual stream `x` is after a layer: that and what it lacks, or the last norm
        of it.
        """
        if self._norm_after is None:
            return x.clone()
        if number == len(self._layers):
            return way.fused.norm(x, self._norm_after, torch.float32)
        missing = self._layers[number].attention_norm.missing
        return x.clone() if missing is None else x + missing

    def _embed(self, batch: Batch) -> Tensor:
        x = F.embedding(batch.tokens, self._embedding)  # (T, D)
        if self.manifest.token_dropout:
            x = x * TOKEN_DROPOUT_SCALE
        if self._positions is not None and isinstance(self._encoder.positions, Learned):
            x = x + F.embedding(batch.positions + self._encoder.positions.offset, self._positions)
        if self._type is not None:
            x = x + self._type
        return (
            x
            if self._norm_before is None
            else elementwise.norm(x, self._norm_before, torch.float32)
        )

    def _rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotary angles, (T, d / 2) fp32."""
        width = self._inner // self.manifest.heads
        frequency = 1.0 / (10000 ** (torch.arange(0, width, 2, device=self.device).float() / width))
        angle = torch.outer(positions.float(), frequency)
        return angle.cos(), angle.sin()

    def _distances_for(self, longest: int) -> Distances | None:
        """Biases for sequences of so many tokens; the table is kept, and grows with them."""
        positions, held = self._encoder.positions, self._distances
        if held is not None and held.table.shape[1] >= 2 * longest - 1:
            return held
        length, heads = distances.padded(longest), self.manifest.heads
        if self._buckets is not None and isinstance(positions, Buckets):
            table = distances.bucket_biases(self._buckets, positions.farthest, length)
        elif isinstance(positions, Slopes):
            table = distances.slope_biases(heads, length)
        else:
            return None
        scale = (self._inner // heads) ** -0.5 if self._encoder.scaled_scores else 1.0
        self._distances = Distances(table.to(self.device), scale)
        return self._distances

    def _slices(self, x: Tensor) -> list[slice]:
        return [slice(at, at + self.rows) for at in range(0, len(x), self.rows)]

    def _layer(self, layer: Layer, x: Tensor, ready: list[Tensor], way: "_Way") -> None:
        """One layer over the residual stream `x` (T, D), which is changed in place: x + f(norm(x)),
        or norm(x + f(x)) where the norms follow the sums.

        `ready` in the second case: each slice of x in the compute dtype, which the norm wrote.
        """
        qkv = self._room(x, way)
        for at, rows in enumerate(self._slices(x)):
            y = ready[at] if ready else way.fused.norm(x[rows], layer.attention_norm, way.dtype)
            self._project(layer, y, qkv, rows, way)
        attended = self._attend(qkv, way)
        del qkv
        for at, rows in enumerate(self._slices(x)):
            way.fused.add(x[rows], layer.out, attended[rows])
            by = layer.attention_norm if ready else layer.mlp_norm
            y = way.fused.norm(x[rows], by, way.dtype, keep=bool(ready))
            way.fused.add(x[rows], layer.fc2, self._hidden(layer, y, way))
            if ready:
                ready[at] = way.fused.norm(x[rows], layer.mlp_norm, way.dtype, keep=True)

    def _room(self, x: Tensor, way: "_Way") -> Tensor:
        return torch.empty((len(x), 3 * self._inner), dtype=way.dtype, device=self.device)

    def _project(self, layer: Layer, y: Tensor, qkv: Tensor, rows: slice, way: "_Way") -> None:
        """Write q, k and v of some rows, normed and rotated where the family does that."""
        heads = self.manifest.heads
        layer.qkv(y, out=qkv[rows])
        if layer.query_key_norms is not None or way.rotary is not None:
            shaped = qkv[rows].view(-1, 3, heads, self._inner // heads)
            angles = None if way.rotary is None else (way.rotary[0][rows], way.rotary[1][rows])
            way.fused.query_key(shaped, layer.query_key_norms, angles)

    def _attend(self, qkv: Tensor, way: "_Way") -> Tensor:
        heads = self.manifest.heads
        return way.attend(qkv.view(-1, 3, heads, self._inner // heads), way.packed)

    def _hidden(self, layer: Layer, y: Tensor, way: "_Way") -> Tensor:
        hidden = way.fused.up(y, layer.fc1, layer.gate, self._encoder.activation)
        return hidden.float() if layer.fc2.dtype == torch.float32 else hidden


@dataclass(frozen=True)
class _Way:
    """How a batch is computed: precision, kernels, where its sequences lie, and its rotary angles
    where attention does not rotate.
    """

    dtype: torch.dtype
    fused: elementwise.Elementwise
    attend: attention.Kernel
    packed: Packed
    rotary: tuple[Tensor, Tensor] | None


def form(model: Model | Manifest) -> elementwise.Form:
    """What its layers ask of the kernels between products."""
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
    """The attention kernel for a model."""
    by_distance = isinstance(manifest.family.encoder.positions, Buckets | Slopes)
    width = manifest.inner // manifest.heads
    return attention.choose(device, DTYPES[dtype], manifest.heads, width, by_distance)


def name(manifest: Manifest, device: torch.device, dtype: ComputeDtype) -> str:
    """The engine's name in the fingerprint: version of the arithmetic, label of the attention
    kernel.
    """
    return "-".join(filter(None, (ARITHMETIC[device.type], kernel(manifest, device, dtype).label)))
