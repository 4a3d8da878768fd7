"""The time of a forward pass on a GPU, on paper: each kernel takes the longer of its arithmetic, at
the rate of its kind, and its bytes, at the bandwidth of the memory.

The kernels and their bytes are those that the engine launches on CUDA in bfloat16;
tests/unit/planning/test_gpu_time.py compares them with what it does. Float32 goes by the same
kernels, without the masks that it needs for biases by distance. No torch here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from plm_embed.models.family import ALiBi, Encoder, Rotary, T5RelativeBias
from plm_embed.models.registry import Model

ROWS = 16384
"""Rows of one product, which read the same weights once (`models.packed_batch.ROWS`)."""


@dataclass(frozen=True)
class Kernel:
    """What one kind of kernel does to one token.

    flops: floating-point operations; bytes: read and written; depth: columns of a product's
    operands, over which it sums; length: keys of a query.
    """

    name: str
    kind: Literal["product", "attention", "biased attention", "pass"]
    flops: float
    bytes: float
    depth: int = 0
    length: float = 0.0


@dataclass(frozen=True)
class Rates:
    """What a GPU reaches, in FLOP/s and bytes/s.

    product: of endless products; with sums of `depth` columns, half of it. attention, biased: of
    endless sequences; with `keys` keys, half of it.
    """

    product: float
    attention: float
    biased: float
    memory: float
    depth: float
    keys: float

    def seconds(self, kernel: Kernel) -> float:
        """The longer of arithmetic and memory."""
        computing = 0.0
        if kernel.kind == "product":
            computing = kernel.flops / self.product * (1 + self.depth / kernel.depth)
        elif kernel.kind != "pass":
            rate = self.attention if kernel.kind == "attention" else self.biased
            computing = kernel.flops / rate * (1 + self.keys / kernel.length)
        return max(computing, kernel.bytes / self.memory)

    def matrix_rate(self) -> float:
        """Of a product of 8192 by 8192 by 8192, the measure of others as shares of it."""
        return self.product / (1 + self.depth / 8192)


def rates(table: Mapping[str, Any], gpu: str, dtype: str) -> Rates:
    """Of a GPU of gpus.yaml in a dtype."""
    found, kernels = table["gpus"][gpu], table["kernels"]
    product = found["peaks"][dtype] * 1e12 * found["matrix"]
    return Rates(
        product,
        product * found["attention"],
        product * found["attention"] * kernels["biased"],
        found["bandwidth"] * 1e9 * kernels["copy"],
        found["depth"],
        kernels["keys"],
    )


def seconds_per_token(model: Model, length: float, size: int, at: Rates) -> float:
    """Of a token among `length`, by numbers of `size` bytes."""
    layers = sum(at.seconds(each) for each in of_a_layer(model, length, size))
    return model.layers * layers + sum(at.seconds(each) for each in around(model, size))


def of_a_layer(model: Model, length: float, size: int) -> Iterator[Kernel]:
    """What one layer does to a token. The residual stream is fp32: 4 bytes each time that it is
    read or written.
    """
    encoder, dim, inner, hidden = model.family.encoder, model.dim, model.inner, model.hidden
    kept = 4 if encoder.order == "post" else 0
    yield Kernel("norms", "pass", 0, 2 * dim * (4 + size + kept))
    yield _product("q, k and v", dim, 3 * inner, size)
    if encoder.query_key_norm or isinstance(encoder.positions, Rotary):
        angles = 4 * inner // model.heads if isinstance(encoder.positions, Rotary) else 0
        yield Kernel("norm and angles of q and k", "pass", 0, 4 * inner * size + angles)
    by_distance = isinstance(encoder.positions, T5RelativeBias | ALiBi)
    yield Kernel(
        "attention",
        "biased attention" if by_distance else "attention",
        4 * length * inner,
        4 * inner * size,
        length=length,
    )
    yield _product("attention's output", inner, dim, size, summed=True)
    yield from _up(encoder, dim, hidden, size)
    yield _product("down", hidden, dim, size, summed=True)


def around(model: Model, size: int) -> Iterator[Kernel]:
    """What a token costs before the first layer and after the last one."""
    dim, encoder = model.dim, model.family.encoder
    yield Kernel("embedding", "pass", 0, 16 * dim)
    if encoder.order == "post" and size < 4:
        yield Kernel("to half precision", "pass", 0, dim * (4 + size))
    yield Kernel("last norm or copy", "pass", 0, dim * 8)


def _product(name: str, columns: int, rows: int, size: int, summed: bool = False) -> Kernel:
    """`summed`: it is added to the residual stream, which is read and written."""
    moved = size * (columns + columns * rows / ROWS) + (8 if summed else size) * rows
    return Kernel(name, "product", 2 * columns * rows, moved, depth=columns)


def _up(encoder: Encoder, dim: int, hidden: int, size: int) -> Iterator[Kernel]:
    """Into the feed-forward, as far as the product that leaves it."""
    names = ("gate", "up") if encoder.gated else ("up",)
    if not encoder.gated and encoder.activation == "relu":  # cuBLASLt applies it
        yield _product("up", dim, hidden, size)
    else:
        for name in names:
            yield _product(name, dim, hidden, size)
        yield Kernel("activation", "pass", 0, (len(names) + 1) * hidden * size)
