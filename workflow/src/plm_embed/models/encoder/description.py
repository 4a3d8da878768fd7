"""What an encoder computes, as data: one frozen description per family. No torch here.

Every model is embedding -> N x (attention, feed-forward), each with a norm and a residual sum.
What differs between families is a field below; what differs within one (layers, widths) is the
model's. Sources of the constants are named where a family is described.
"""

from dataclasses import dataclass
from typing import Literal

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
"""gelu: the exact one, by erf. gelu_tanh: its approximation. silu: x times its logistic."""


@dataclass(frozen=True)
class Rotary:
    """Rotary angles of base 10,000 on q and k, the halves of each head against each other."""


@dataclass(frozen=True)
class Learned:
    """A table of `rows` learned positions, added to the embedding; the first token has row
    `offset`.
    """

    rows: int
    offset: int = 0


@dataclass(frozen=True)
class T5RelativeBias:
    """T5's relative positions: a learned bias per head and bucket of distance, shared by all
    layers.

    Half of the `count` buckets are for keys behind the query. In each half the first half are exact
    distances, the others grow by a constant factor up to `farthest`, and the last holds the rest.
    """

    count: int
    farthest: int = 128


@dataclass(frozen=True)
class ALiBi:
    """ALiBi without direction: the bias is minus a fixed slope per head times the distance."""


@dataclass(frozen=True)
class Encoder:
    """The arithmetic of a family."""

    rows: int
    """Of the embedding table."""
    positions: Rotary | Learned | T5RelativeBias | ALiBi
    token_types: bool = False
    """Whether the embedding's sum has row 0 of a table of two token types."""
    embedding_norm: Literal["never", "always", "if found"] = "never"
    """Whether a norm follows the embedding; with `if found` the checkpoint decides."""
    order: Literal["pre", "post"] = "pre"
    """pre: x + f(norm(x)), and a norm after the last layer. post: norm(x + f(x)), and none."""
    norm: Literal["layer", "rms"] = "layer"
    norm_bias: bool = True
    """Of the layers' norms; an RMS norm has none."""
    final_norm_bias: bool = True
    epsilon: float = 1e-5
    attention_bias: bool = True
    """Whether q, k, v and the output projection have biases."""
    query_key_norm: bool = False
    """Norms of the same kind, without bias, of q and of k over all heads together, before the
    rotation.
    """
    scaled_scores: bool = True
    """Whether scores are divided by the root of a head's width."""
    activation: Activation = "gelu"
    gated: bool = False
    """Whether the activated half is multiplied by another projection."""
    up_bias: bool = True
    """Of the projections into the feed-forward."""
    down_bias: bool = True
    residual_layers: int | None = None
    """Where given, both branches are divided by sqrt(layers / residual_layers)."""
    fp32_down_proj: bool = False
    """Whether the feed-forward's last matrix stays in fp32 when the others are in float16, which
    could not hold its products.
    """

    def branch_factor(self, layers: int) -> float:
        """What the output of attention and of the feed-forward is multiplied by."""
        return 1.0 if self.residual_layers is None else (self.residual_layers / layers) ** 0.5
