"""The weights of an encoder's layers, as the engine has them on its device."""

import ctypes
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from plm_embed.kernels.elementwise import Norm
from plm_embed.kernels.linear import Linear
from plm_embed.models.encoder.description import Encoder


@dataclass(frozen=True)
class Layer:
    """Weights of one layer; q, k and v in one matrix (3 inner, D)."""

    attention_norm: Norm
    qkv: Linear
    query_key_norms: tuple[Norm, Norm] | None
    out: Linear
    mlp_norm: Norm
    gate: Linear | None
    fc1: Linear
    fc2: Linear


@dataclass(frozen=True)
class Loader:
    """Moves tensors (see `models.encoder.tensors`) to `device` one by one, matrices in `dtype`.

    left: the biases that the residual stream lacks after the layers loaded so far, which come in
    order. The next norm, which reads the stream anyway, adds their sum.
    """

    tensors: Mapping[str, Tensor]
    device: torch.device
    dtype: torch.dtype
    encoder: Encoder
    left: list[Tensor] = field(default_factory=list)

    @property
    def late(self) -> bool:
        """Whether norms add the biases of what is added to the stream: on CUDA, where that is a
        part of the product.
        """
        return self.device.type == "cuda"

    def layer(self, name: str, factor: float) -> Layer:
        """The layer of this name; what its branches add to the residuals is times `factor`."""
        attention = f"{name}.self_attn"
        # half precision can't hold what T5 makes here: its authors keep this matrix in fp32
        wide = self.encoder.wide_down and self.dtype == torch.float16
        out, down = f"{attention}.out_proj", f"{name}.fc2"
        left, first, second = self.left, self._late(out, factor), self._late(down, factor)
        missing = _sum(left), _sum(left + first)
        if self.encoder.order == "pre":
            left.extend(first + second)
        else:  # each norm makes the stream anew
            missing = _sum(first), _sum(second)
        return Layer(
            attention_norm=self._norm(f"{name}.self_attn_layer_norm", missing[0]),
            qkv=self.linear(*(f"{attention}.{part}_proj" for part in "qkv")),
            query_key_norms=(
                (self._norm(f"{attention}.q_layer_norm"), self._norm(f"{attention}.k_layer_norm"))
                if self.encoder.query_key_norm
                else None
            ),
            out=self.linear(out, factor=factor, bias=not self.late),
            mlp_norm=self._norm(f"{name}.final_layer_norm", missing[1]),
            gate=self.linear(f"{name}.fc_gate") if self.encoder.gated else None,
            fc1=self.linear(f"{name}.fc1"),
            fc2=self.linear(
                down,
                factor=factor,
                dtype=torch.float32 if wide else self.dtype,
                bias=not self.late,
            ),
        )

    def vector(self, name: str) -> Tensor:
        """A tensor in fp32."""
        return self.tensors[name].to(self.device, torch.float32)

    def norm(self, name: str) -> Norm | None:
        """The norm of this name, if the model has it."""
        return self._norm(name, _sum(self.left)) if f"{name}.weight" in self.tensors else None

    def _norm(self, name: str, missing: Tensor | None = None) -> Norm:
        bias = self.vector(f"{name}.bias") if f"{name}.bias" in self.tensors else None
        rms = self.encoder.norm == "rms"
        return Norm(self.vector(f"{name}.weight"), bias, self.encoder.epsilon, rms, missing)

    def _late(self, name: str, factor: float) -> list[Tensor]:
        """The bias of this linear layer, in fp32, if it has one and norms add it."""
        bias = f"{name}.bias"
        found = self.late and bias in self.tensors
        return [self._matrix(bias, torch.float32, factor)] if found else []

    def linear(
        self,
        *names: str,
        factor: float = 1.0,
        dtype: torch.dtype | None = None,
        bias: bool = True,
    ) -> Linear:
        """The linear layers of these names as one, times `factor`."""
        weights, biases = (
            [
                self._matrix(f"{name}.{kind}", dtype or self.dtype, factor)
                for name in names
                if f"{name}.{kind}" in self.tensors
            ]
            for kind in ("weight", "bias")
        )
        made = Linear(
            weights[0] if len(names) == 1 else torch.cat(weights),
            torch.cat(biases) if biases and bias else None,
        )
        del weights
        _give_back()
        return made

    def _matrix(self, name: str, dtype: torch.dtype, factor: float) -> Tensor:
        found = self.tensors[name].to(self.device)  # the device converts faster
        return (found if factor == 1.0 else found.float() * factor).to(dtype)


def _sum(vectors: list[Tensor]) -> Tensor | None:
    return torch.stack(vectors).sum(0) if vectors else None


def _give_back() -> None:
    """Return freed memory to the system: the C library would keep what each matrix took on its
    way.
    """
    with suppress(AttributeError, OSError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
