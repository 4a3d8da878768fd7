"""The forward pass of every family over packed sequences, without padding between them.

All sequences of a batch lie one after another in one (T, D) matrix. Linear layers run over it in
slices of a fixed number of rows, attention runs per sequence. So every number of a sequence's
representation comes from operations whose shapes depend on that sequence alone, and its bits do not
depend on its batch.

The family's `Encoder` says what is computed. The residual stream, norms and rotary angles stay in
fp32 in every compute dtype. Shapes: T tokens of width D; H heads of d, together A; a feed-forward
of F.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from plm_embed.fingerprint import ComputeDtype
from plm_embed.kernels import attention, elementwise
from plm_embed.kernels.attention import Distances, Packed
from plm_embed.models import distances, layers
from plm_embed.models.family import ALiBi, Family, Ids, Learned, Rotary, T5RelativeBias
from plm_embed.models.layers import DTYPES, Layer
from plm_embed.models.registry import Model

ARITHMETIC = {"cpu": "packed-2", "cuda": "packed-4"}
"""Version of the arithmetic by the kind of device; with the label of the attention kernel it is the
engine's name in the fingerprint.

It stands for equal bits in any batch, on one kind of device: on CPUs per machine and thread count,
on CUDA per GPU type and version of torch, and per kernels, which completion records name. Only the
kernel `math` does not promise them (`Fingerprint.batch_invariant`). Each job's self-test records
its result.
"""

ROWS = {"cpu": 256, "cuda": 16384}
"""Rows of one matrix product. Fixed, because a library may choose another summation order for
another shape.
"""

LEAST_ROWS = {"cpu": 256, "cuda": 1024}
"""Rows that products shrink to where memory is short: with fewer, the last bits may differ."""

TOKENS = {"cpu": 2048, "cuda": 32768}
"""Largest token budget of a batch when none is asked for; a multiple of `ROWS`."""

Rows = Callable[[slice], Tensor]
"""Some rows of a (T, D) matrix in the compute dtype, made when they are needed."""


@dataclass(frozen=True)
class Batch:
    """Packed sequences: `tokens`, `positions` (T,) int32, T a multiple of `ROWS`.

    `lengths` count special tokens too; `boundaries` (n + 1,) int32 are their sums from 0 on,
    `segments` (3 n,) int64 are the tokens of each sequence before, among and after its residues; of
    pairs of chains (5 n,): before, of the first, of the linker, of the second, and after.
    """

    tokens: Tensor
    positions: Tensor
    boundaries: Tensor
    segments: Tensor
    lengths: tuple[int, ...]
    residues: tuple[tuple[int, int], ...]
    """Rows of each sequence's own tokens, which are no special ones, counted from its first: from,
    and one past the last. In a pair of chains they count without the linker.
    """
    linkers: tuple[tuple[int, int], ...] = ()
    """Rows of the linker in each pair of chains, likewise; none where there are no pairs."""
    masked: Tensor | None = None
    """(n,) int64, the row of the one token of each sequence that is masked, if they are."""

    def to(self, device: torch.device) -> "Batch":
        """Copy the batch to a device. Copies from pinned memory are queued, not waited for."""
        parts = {name: part for name, part in vars(self).items() if isinstance(part, Tensor)}
        moved: Any = {name: part.to(device, non_blocking=True) for name, part in parts.items()}
        return replace(self, **moved)

    def split(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """Cut (T, ...) into one (tokens, ...) view per sequence; what lies behind them is left
        out.
        """
        return torch.split(hidden[: sum(self.lengths)], list(self.lengths))


def pack(
    pieces: Sequence[Ids],
    family: Family,
    rows: int,
    *,
    pinned: bool = False,
    masked: Sequence[int] | None = None,
    linkers: Sequence[tuple[int, int]] = (),
) -> Batch:
    """Lay the tokens of sequences one after another in the CPU's memory, in this order.

    Zeros stand behind them up to whole slices of `rows`. `masked`: the residue of each that is
    replaced by the token <mask>; `linkers`: of pairs of chains, as in `Batch`. Pinned memory is
    copied to a device without waiting.
    """
    lengths = tuple(len(piece) for piece in pieces)
    ends = np.cumsum((0, *lengths), dtype=np.int32)
    total = -(-int(ends[-1]) // rows) * rows
    tokens = np.zeros(total, dtype=np.int32)
    positions = np.zeros(total, dtype=np.int32)
    for piece, start in zip(pieces, ends.tolist(), strict=False):
        tokens[start : start + len(piece)] = piece
        positions[start : start + len(piece)] = np.arange(len(piece))
    residues, segments = [], []
    for length, (low, high) in zip(lengths, linkers or [(0, 0)] * len(lengths), strict=True):
        first, stop = family.residues(length - (high - low))
        residues.append((first, stop))
        after = length - (high - low) - stop
        if linkers:
            segments += [first, low - first, high - low, stop - low, after]
        else:
            segments += [first, stop - first, after]
    parts = {"tokens": tokens, "positions": positions, "boundaries": ends}
    parts["segments"] = np.array(segments, dtype=np.int64)
    if masked is not None and family.head:
        firsts = np.array([first for first, _ in residues], dtype=np.int64)
        parts["masked"] = places = ends[:-1] + firsts + masked
        tokens[places] = family.head.mask
    tensors = {name: torch.from_numpy(array) for name, array in parts.items()}
    if pinned:
        tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
    return Batch(**tensors, lengths=lengths, residues=tuple(residues), linkers=tuple(linkers))


@dataclass(frozen=True)
class BatchContext:
    """Facts of a batch that every layer needs: its precision, its kernels, the rows of each matrix
    product, and where its sequences lie.
    """

    rows: list[slice]
    dtype: torch.dtype
    fused: elementwise.Elementwise
    kernel: attention.Kernel
    packed: Packed


class Engine:
    """A model on one device. Knows tokens and kernels; pooling, storage and policies stay
    outside.
    """

    def __init__(
        self,
        model: Model,
        tensors: Mapping[str, Tensor],
        device: torch.device,
        dtype: ComputeDtype,
        head: Mapping[str, Tensor] | None = None,
    ) -> None:
        """head: the tensors of the language model's head, which gives probabilities."""
        self.model, self.device, self.precision = model, device, dtype
        self.dtype = DTYPES[dtype]
        self.rows = ROWS[device.type]
        """Rows of one product. Equal bits in any batch are those of one number of rows."""
        self._family, self._encoder = model.family, model.family.encoder
        self._tokens = self._family.tokenizer.within(tensors)
        self.attention = kernel(model, device, dtype)
        self._fp32_attention = kernel(model, device, "float32")
        self.elementwise = elementwise.PLAIN
        if device.type == "cuda":
            self.elementwise = elementwise.choose(device, self.dtype, form(model))
        self._weights = layers.load(model, tensors, device, dtype, head)
        self._layers = self._weights.layers
        self._distances: Distances | None = None
        self.head = self._weights.head

    @torch.inference_mode()
    def log_probabilities(self, states: Tensor) -> Tensor:
        """Return the natural logarithms of the probabilities of all tokens, (T, V) fp32, by the
        head of the language model after the states (T, D) of the last layer.
        """
        assert self.head, "its head is not loaded"
        return torch.cat([self.head.log_probabilities(x) for x in torch.split(states, self.rows)])

    @torch.inference_mode()
    def token_scores(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Return the log-probability of each of the tokens (T,), and the entropy (nats) of the
        distribution at its place, (T, 2) fp32, after the states (T, D) of the last layer.
        """
        assert self.head, "its head is not loaded"
        scores, slices = [], torch.split(states, self.rows)
        for x, ids in zip(slices, torch.split(tokens, self.rows), strict=True):
            logs = self.head.log_probabilities(x)  # (rows, V)
            chosen = logs.gather(1, ids[:, None].long())[:, 0]
            scores.append(torch.stack([chosen, -(logs.exp() * logs).sum(1)], dim=1))
        return torch.cat(scores)

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
            if number == len(self._layers) and self._weights.norm_after is not None:
                states[number] = ctx.fused.norm(x, self._weights.norm_after, torch.float32)
            else:
                states[number] = x.clone() if layer.late_bias is None else x + layer.late_bias
        return states

    def _embed(self, batch: Batch) -> Tensor:
        weights, positions = self._weights, self._encoder.positions
        x = F.embedding(batch.tokens, weights.embedding)  # (T, D)
        if self._encoder.token_dropout:
            x = x * (1 - 0.15 * 0.8)  # training masked 15 % of the tokens and zeroed 80 % of these
            if batch.masked is not None:  # as in training, the others make up for the masked one
                lengths, total = batch.boundaries.diff(), sum(batch.lengths)
                x[batch.masked] = 0
                rates = torch.repeat_interleave(
                    lengths / (lengths - 1), lengths, output_size=total
                )  # (T,)
                x[:total] *= rates[:, None]
        if weights.positions is not None and isinstance(positions, Learned):
            x = x + F.embedding(batch.positions + positions.offset, weights.positions)
        if weights.types is not None:
            x = x + weights.types[0]
        if weights.norm_before is not None:
            x = elementwise.PLAIN.norm(x, weights.norm_before, torch.float32)
        return x

    def _block(self, layer: Layer, x: Tensor, y: Tensor, ctx: BatchContext) -> Tensor:
        """Run a transformer block over the residual stream x (T, D), which is changed in place:
        x + f(norm(x)), or norm(x + f(x)) where the norms follow the sums.

        y and the result: x in the compute dtype, as the second kind reads and leaves it.
        """
        norm, dtype = ctx.fused.norm, ctx.dtype
        if self._encoder.order == "pre":
            # slice by slice, so that the product finds its input in the cache
            self._attention(layer, x, lambda i: norm(x[i], layer.attention_norm, dtype), ctx)
            self._feed_forward(layer, x, lambda i: norm(x[i], layer.mlp_norm, dtype), ctx)
            return x
        self._attention(layer, x, y.__getitem__, ctx)
        y = norm(x, layer.attention_norm, dtype, keep=True)
        self._feed_forward(layer, x, y.__getitem__, ctx)
        return norm(x, layer.mlp_norm, dtype, keep=True)

    def _attention(self, layer: Layer, x: Tensor, y: Rows, ctx: BatchContext) -> None:
        """Add the attention of y (T, D) to x (T, D)."""
        heads, width = self.model.heads, self.model.inner
        qkv = x.new_empty((len(x), 3, heads, width // heads), dtype=ctx.dtype)  # (T, 3, H, d)
        rotary = None if ctx.kernel.rotates else ctx.packed.rotary
        for rows in ctx.rows:
            layer.qkv(y(rows), out=qkv[rows].view(-1, 3 * width))
            if layer.query_key_norms is not None or rotary is not None:
                angles = None if rotary is None else (rotary[0][rows], rotary[1][rows])
                ctx.fused.query_key(qkv[rows], layer.query_key_norms, angles)
        mixed = ctx.kernel.attend(qkv, ctx.packed)  # (T, A)
        for rows in ctx.rows:
            ctx.fused.add(x[rows], layer.out, mixed[rows])

    def _feed_forward(self, layer: Layer, x: Tensor, y: Rows, ctx: BatchContext) -> None:
        """Add the feed-forward of y (T, D) to x (T, D)."""
        for rows in ctx.rows:
            z = ctx.fused.up(y(rows), layer.fc1, layer.gate, self._encoder.activation)  # (rows, F)
            z = z.float() if layer.fc2.dtype == torch.float32 else z
            ctx.fused.add(x[rows], layer.fc2, z)

    def _context(self, batch: Batch, exact: bool) -> BatchContext:
        width = self.model.inner // self.model.heads
        positions, longest, rotary = self._encoder.positions, max(batch.lengths), None
        if isinstance(positions, Rotary):
            steps = torch.arange(0, width, 2, device=self.device).float() / width
            angle = torch.outer(batch.positions.float(), 1.0 / 10000**steps)  # (T, d / 2)
            rotary = angle.cos(), angle.sin()
        elif isinstance(positions, T5RelativeBias | ALiBi) and (
            self._distances is None or self._distances.table.shape[1] < 2 * longest - 1
        ):  # the table is kept, and grows with the sequences
            length = 1 << max(8, (longest - 1).bit_length())  # the next power of two
            table = (
                distances.alibi_bias(self.model.heads, length)
                if isinstance(positions, ALiBi) or self._weights.t5_bias is None
                else distances.t5_bias(self._weights.t5_bias, positions.farthest, length)
            )  # (H, 2 length - 1)
            scale = width**-0.5 if self._encoder.scaled_scores else 1.0
            self._distances = Distances(table.to(self.device), scale)
        packed = Packed(batch.lengths, batch.boundaries, self._distances, rotary)
        starts = range(0, len(batch.tokens), self.rows)
        rows = [slice(start, start + self.rows) for start in starts]
        if exact:
            fused, kernel = elementwise.PLAIN, self._fp32_attention
            return BatchContext(rows, torch.float32, fused, kernel, packed)
        return BatchContext(rows, self.dtype, self.elementwise, self.attention, packed)

    def tokenize(self, sequence: str) -> Ids:
        """Return the token ids of a normalized sequence with special tokens. May run in threads."""
        ids = self._tokens.tokenize(sequence)
        if self._family.token_per_letter and len(ids) != self._family.tokens(
            self._family.alphabet.length(sequence)
        ):
            raise RuntimeError("a sequence has another number of residue tokens than residues")
        return ids

    def own_tokens(self, sequence: str) -> Ids:
        """Return the token ids of a normalized sequence without special tokens."""
        ids = self.tokenize(sequence)
        return ids[slice(*self._family.residues(len(ids)))]

    def spans(self, ids: Ids) -> NDArray[np.float32]:
        """Return the letters of a sequence's own tokens, as `Family.spans`."""
        return self._family.spans(self._tokens.letters, ids)


def form(model: Model) -> elementwise.Form:
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


def kernel(model: Model, device: torch.device, dtype: ComputeDtype) -> attention.Kernel:
    """Choose the attention kernel for a model."""
    by_distance = isinstance(model.family.encoder.positions, T5RelativeBias | ALiBi)
    width = model.inner // model.heads
    return attention.choose(device, DTYPES[dtype], model.heads, width, by_distance)
