"""A linear layer for inference: on CPUs with oneDNN's prepacked weights where torch has any."""

import math
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
"""gelu is the exact one, by erf."""

VECTORS = 32
"""Numbers in two vectors of AVX-512, which torch takes at a time."""
SHARED_NUMBERS = 16384
"""From so many on torch shares out numbers among threads."""
_PLAIN: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
_ONEDNN: dict[Activation | None, tuple[str, str]] = {
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
}


class Linear:
    """y = x W^T + b, with an activation on request; x (n, in) -> (n, out), in the dtype of the
    weights.

    torch's default fp32 path on CPUs is MKL, which does not use AVX-512 on AMD; oneDNN does, and is
    2.3 x faster there. Its prepacked form is a private operator of torch (the one that
    torch.compile emits), hence the fall-back.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight (out, in), bias (out,)."""
        self.dtype = weight.dtype
        self.bias = bias
        self._weight: Tensor | None = weight
        self._packed: Tensor | None = None  # in oneDNN's own layout
        if weight.device.type == "cpu" and torch._C._has_mkldnn:
            with suppress(AttributeError, NotImplementedError, RuntimeError):  # not in this torch
                packed = torch.ops.mkldnn._reorder_linear_weight(weight)
                multiply = torch.ops.mkldnn._linear_pointwise
                if multiply(weight[:1], packed, None, "none", [], "").shape == (1, len(weight)):
                    self._weight, self._packed = None, packed

    def __call__(
        self, x: Tensor, activation: Activation | None = None, out: Tensor | None = None
    ) -> Tensor:
        """The result, without an activation written to `out` when there is one. x in fp32 has
        half-precision weights used in fp32.
        """
        y: Tensor
        if x.dtype != self.dtype:
            bias = None if self.bias is None else self.bias.to(x.dtype)
            y = F.linear(x, self.weight.to(x.dtype), bias)
        elif self._weight is None:
            post, algorithm = _ONEDNN[activation]
            y = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, post, [], algorithm)
            activation = None  # it is applied
        elif out is not None:
            if self.bias is None:
                return torch.mm(x, self._weight.t(), out=out)
            return torch.addmm(self.bias, x, self._weight.t(), out=out)
        elif activation == "relu" and hasattr(torch, "_addmm_activation"):
            # on CUDA cuBLASLt applies it before y is written; it asks for a bias
            bias = self._weight.new_zeros(len(self._weight)) if self.bias is None else self.bias
            y, activation = torch._addmm_activation(bias, x, self._weight.t()), None
        else:
            y = F.linear(x, self._weight, self.bias)
        y = y if activation is None else _PLAIN[activation](y)
        return y if out is None else out.copy_(y)

    def add_to(self, x: Tensor, y: Tensor) -> None:
        """x (n, out) fp32 becomes its sum with the result for y, on CUDA within the product: there
        the sum is no pass over memory. Biases and torch before 2.10 need one.
        """
        weight = self._weight
        same = x.dtype == y.dtype == self.dtype
        mixed = y.dtype == self.dtype and y.is_cuda and torch.__version__ >= "2.10"
        if weight is None or self.bias is not None or not (same or mixed):
            x += self(y)
        elif same:
            torch.addmm(x, y, weight.t(), out=x)
        else:
            torch.addmm(x, y, weight.t(), out_dtype=x.dtype, out=x)

    @property
    def weight(self) -> Tensor:
        """The weights (out, in)."""
        if self._weight is not None:
            return self._weight
        assert self._packed is not None
        plain: Tensor = self._packed.to_dense()
        return plain


class Int8Linear(Linear):
    """The same in 8-bit products, on CPUs: weights are scaled by output, inputs by row, x and the
    result are fp32.

    Integers are summed exactly, and a row's scale is its own: so no number depends on other rows.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.dtype, self.bias = torch.float32, bias
        scale, integers = to_int8(weight.float())
        self._scale = scale.t()  # (1, out)
        self._integers = integers.t()  # (in, out)

    def __call__(
        self, x: Tensor, activation: Activation | None = None, out: Tensor | None = None
    ) -> Tensor:
        scale, integers = to_int8(x)
        y = torch._int_mm(integers, self._integers).float()
        y = y.mul_(scale).mul_(self._scale)
        if self.bias is not None:
            y += self.bias
        if activation is not None:
            # torch computes the last few numbers of a thread's share by other code, with other last
            # bits: so rows that one thread computes, and all in vectors
            width = y.shape[1]
            unit = VECTORS // math.gcd(VECTORS, width)
            rows = unit * max(1, (SHARED_NUMBERS - 1) // (unit * width))
            for part in torch.split(y, rows):
                part.copy_(_PLAIN[activation](part))
        return y if out is None else out.copy_(y)

    def add_to(self, x: Tensor, y: Tensor) -> None:
        x += self(y)


def to_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a scale for each row of x (n, m), (n, 1), and the row over its scale in whole numbers
    from -127 to 127.
    """
    scale = x.abs().amax(1, keepdim=True).clamp_min_(torch.finfo(torch.float32).tiny * 127) / 127
    return scale, (x / scale).round_().to(torch.int8)


@cache
def int8_problem() -> str:
    """Return why 8-bit products cannot be used on this CPU; '' where they can.

    Without VNNI some libraries add pairs of products in 16 bits, which overflow.
    """
    size = 64
    x = torch.full((size, 4 * size), 127, dtype=torch.int8)
    signs = torch.where(torch.arange(size) % 2 == 0, 1, -1).to(torch.int8)
    try:
        products = torch._int_mm(x, (x * signs[:, None]).t())
    except (AttributeError, RuntimeError) as error:
        return str(error).splitlines()[0]
    exact = (4 * size * 127**2 * signs.int()).expand(size, size)
    return "" if torch.equal(products, exact) else "its sums of 8-bit products are not exact"
