"""The forward pass of ESM-2, ESM-1b and ESM-1v over packed sequences, without padding between them.

All sequences of a batch lie one after another in one (T, D) matrix. Linear layers run over it in
slices of a fixed number of rows, attention runs per sequence. So every number of a sequence's
representation comes from operations whose shapes depend on that sequence alone, and its bits do not
depend on the batch it travels in.

The arithmetic is fair-esm 2.0.0's (`esm/model/esm2.py`, `esm/model/esm1.py`, `esm/modules.py`):
pre-layer-norm blocks, exact-erf GELU, embeddings scaled by 0.88 where the model was trained with
token dropout, rotary angles in fp32. Residual stream and layer norms stay in fp32 whatever the
compute dtype is.
"""

import ctypes
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from plm_embed.fingerprint import ComputeDtype
from plm_embed.kernels import attention, elementwise
from plm_embed.kernels.linear import Linear
from plm_embed.models.esm.tokens import PAD, tokenize
from plm_embed.models.manifest import Manifest
from plm_embed.models.packed import DTYPES, ROWS, Batch, pack

ARITHMETIC = "packed-1"
"""Version of the arithmetic; with the label of the attention kernel it is the engine's name in the
fingerprint.

It stands for equal bits in any batch, on one kind of device: on CPUs per machine and thread count,
on CUDA per GPU type, version of torch and the kernels that completion records name. Only the kernel
`math` does not promise them (`Fingerprint.batch_invariant`). Each job's self-test records what it
saw.
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
        """Move the tensors (canonical names, see `models.weights`) to `device` one by one, matrices
        in `dtype`.
        """
        self.manifest = manifest
        self.device = device
        self.precision = dtype
        self.dtype = DTYPES[dtype]
        self.rows = ROWS[device.type]
        self.attention = kernel(manifest, device, dtype)
        self._exact = (
            self.attention if self.dtype == torch.float32 else kernel(manifest, device, "float32")
        )
        self.elementwise = elementwise.choose(device, self.dtype, manifest.dim, manifest.heads)

        def matrix(name: str) -> Tensor:
            return tensors[name].to(device).to(self.dtype)  # the device converts faster

        def vector(name: str) -> Tensor:
            return tensors[name].to(device, torch.float32)

        def norm(name: str) -> tuple[Tensor, Tensor]:
            return vector(f"{name}.weight"), vector(f"{name}.bias")

        def linear(*names: str) -> Linear:
            weights, biases = (
                [matrix(f"{name}.{kind}") for name in names] for kind in ("weight", "bias")
            )
            made = Linear(weights[0] if len(names) == 1 else torch.cat(weights), torch.cat(biases))
            del weights
            _give_back()
            return made

        self._embedding = vector("embed_tokens.weight")
        self._positions = (
            vector("embed_positions.weight") if "embed_positions.weight" in tensors else None
        )
        self._norm_before = (
            norm("emb_layer_norm_before") if "emb_layer_norm_before.weight" in tensors else None
        )
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

    def cost(self, length: int) -> int:
        """Tokens of a sequence of `length` residues: what a token budget counts."""
        return self.manifest.family.tokens(length)

    def prepare(self, sequences: Sequence[str]) -> Batch:
        """Pack normalized sequences, in the order given, in the CPU's memory. May run in a thread
        beside `forward`.
        """
        pieces = [tokenize(sequence) for sequence in sequences]
        if [len(piece) for piece in pieces] != [self.cost(len(sequence)) for sequence in sequences]:
            raise RuntimeError("a sequence has another number of residue tokens than residues")
        residues = [self.manifest.family.residues(len(piece)) for piece in pieces]
        return pack(pieces, residues, self.rows, PAD, pinned=self.device.type == "cuda")

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
        rotary = self._rotary(batch.positions) if self._positions is None else None
        terms: list[Tensor] = []
        for number, layer in enumerate(self._layers[: max(layers)], start=1):
            terms = self._block(layer, x, terms, batch, rotary, exact)
            if number in layers:
                for rows in self._slices(x):
                    x[rows] += terms.pop(0)
                last = number == len(self._layers)
                found[number] = (
                    elementwise.norm(x, self._norm_after, torch.float32) if last else x.clone()
                )
        return found

    def _embed(self, batch: Batch) -> Tensor:
        x = F.embedding(batch.tokens, self._embedding)  # (T, D)
        if self.manifest.token_dropout:
            x = x * TOKEN_DROPOUT_SCALE
        if self._positions is not None:
            # learned positions count from PAD + 1 (esm/modules.py: LearnedPositionalEmbedding)
            x = x + F.embedding(batch.positions + PAD + 1, self._positions)
        return (
            x
            if self._norm_before is None
            else elementwise.norm(x, self._norm_before, torch.float32)
        )

    def _rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotary angles, (T, d / 2) fp32."""
        width = self.manifest.dim // self.manifest.heads
        frequency = 1.0 / (10000 ** (torch.arange(0, width, 2, device=self.device).float() / width))
        angle = torch.outer(positions.float(), frequency)
        return angle.cos(), angle.sin()

    def _slices(self, x: Tensor) -> list[slice]:
        return [slice(at, at + self.rows) for at in range(0, len(x), self.rows)]

    def _block(  # noqa: PLR0917
        self, layer: "_Layer", x: Tensor, terms: list[Tensor], batch: Batch,
        rotary: tuple[Tensor, Tensor] | None, exact: bool,
    ) -> list[Tensor]:  # fmt: skip
        """One transformer layer over the residual stream `x` (T, D), which is changed in place.

        `terms` are what is still to be added to the slices of x, none if nothing is: with the norm
        it is one pass over memory. They are used up; returns those that this layer leaves.
        """
        dtype = torch.float32 if exact else self.dtype
        attend = self._exact if exact else self.attention
        fused = elementwise.PLAIN if exact else self.elementwise
        shape = (3, self.manifest.heads, self.manifest.dim // self.manifest.heads)
        qkv = torch.empty((len(x), 3 * self.manifest.dim), dtype=dtype, device=self.device)
        for rows in self._slices(x):
            if terms:
                y = fused.add_norm(x[rows], terms.pop(0), layer.attention_norm, dtype)
            else:
                y = fused.norm(x[rows], layer.attention_norm, dtype)
            layer.qkv(y, out=qkv[rows])
            if rotary is not None:
                fused.rotate(qkv[rows].view(-1, *shape), rotary[0][rows], rotary[1][rows])
        attended = attend(qkv.view(-1, *shape), attention.Packed(batch.lengths, batch.boundaries))
        del qkv
        left = []
        for rows in self._slices(x):
            y = fused.add_norm(x[rows], layer.out(attended[rows]), layer.mlp_norm, dtype)
            left.append(layer.fc2(layer.fc1(y, gelu=True)))
        return left


@dataclass(frozen=True)
class _Layer:
    """Weights of one transformer layer; q, k and v in one matrix (3 D, D)."""

    attention_norm: tuple[Tensor, Tensor]
    qkv: Linear
    out: Linear
    mlp_norm: tuple[Tensor, Tensor]
    fc1: Linear
    fc2: Linear


def _give_back() -> None:
    """Return freed memory to the system: the C library would keep what each matrix took on its
    way.
    """
    with suppress(AttributeError, OSError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


def kernel(manifest: Manifest, device: torch.device, dtype: ComputeDtype) -> attention.Kernel:
    """The attention kernel for a model."""
    return attention.choose(device, DTYPES[dtype], manifest.heads, manifest.dim // manifest.heads)


def name(manifest: Manifest, device: torch.device, dtype: ComputeDtype) -> str:
    """The engine's name in the fingerprint: version of the arithmetic, label of the attention
    kernel.
    """
    return "-".join(filter(None, (ARITHMETIC, kernel(manifest, device, dtype).label)))
