"""Bounds on the distance of two computations of a vector, taken from the weights in use.

Trained weights amplify rounding, some much more than others. So when weights are prepared, the
reference path measures how far the rounding of each compute dtype alone moves the vectors of a few
probes. A device may be off by a small multiple of that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from plm_embed.errors import ConfigError
from plm_embed.fingerprint import ComputeDtype, StorageDtype

MULTIPLE = 3.0
"""Multiple of the distance that rounding alone makes. On CPUs, kernels that are right came to 2.1
times that distance at most: all families, random weights, scores up to 12 times as large.
"""
FLOOR: dict[ComputeDtype, float] = {
    "float32": 1e-5,
    "tfloat32": 1e-3,
    "bfloat16": 5e-3,
    "float16": 1e-3,
    "int8": 5e-3,
}
"""Distance that a device may have in any case: about what random weights show. A tanh GELU for the
exact one makes 6e-5 in float32.
"""
SCORE_FLOOR: dict[ComputeDtype, float] = {"float32": 1e-4, "tfloat32": 1e-2}
"""The same of a score, in nats; 0.05 for the others."""
STORED: dict[StorageDtype, float] = {"float16": 1e-3, "float32": 0.0, "bfloat16": 8e-3}
"""Distance that rounding to the storage dtype adds."""
NOTABLE = 0.999
"""A cosine below which rounding is worth a line to the user."""
REFUSED = 0.99
"""A cosine below which vectors are not worth computing."""


@dataclass(frozen=True)
class Rounding:
    """Distance by which the rounding of a compute dtype alone moves vectors of some weights: the
    worst of the probes, after the last layer.
    """

    mean: float
    """Relative L2 distance of a mean over residues from exact arithmetic."""
    tokens: float
    """Relative L2 of all tokens together."""
    cosine: float
    """Cosine of a mean and its exact value; 0 where it is not finite."""
    score: float | None = None
    """Distance in nats of a log-likelihood or an entropy; None without a head of the language
    model.
    """


Roundings = Mapping[str, Rounding]
"""Rounding by compute dtype."""

FALLBACK = "fallback: "
"""Words in the name of a kernel that serves in place of a better one; the reason follows."""


@dataclass(frozen=True)
class SelfTest:
    """Results of the test of a device with golden vectors; kept in completion records."""

    relative_error: float
    """The worst over the probes."""
    cosine: float
    """The worst over the probes."""
    batch_invariant: bool
    """True if a probe and a pair of 600 residues gave the same bits alone and with others, in the
    first rows of a batch, across the edge of two slices and in the last rows.
    """
    attention: str
    """Name of the kernel in use."""
    elementwise: str
    """Name of the kernel in use."""
    rounding: str = ""
    """Text of `remark` on the compute dtype and these weights."""
    score_error: float | None = None
    """The worst over the probes, in nats; None where no scores are computed."""


def bound(
    dtype: ComputeDtype,
    roundings: Roundings | None,
    kind: Literal["mean", "tokens", "score"] = "mean",
) -> float:
    """Return the largest distance from the reference that is right: relative L2 of a vector, or of
    the representation of tokens; of a score nats.
    """
    rounding = rounding_of(dtype, roundings)
    if kind == "score":
        return MULTIPLE * (rounding.score or 0.0) + SCORE_FLOOR.get(dtype, 0.05)
    return MULTIPLE * (rounding.mean if kind == "mean" else rounding.tokens) + FLOOR[dtype]


def remark(dtype: ComputeDtype, roundings: Roundings | None) -> str:
    """Say how far a compute dtype moves vectors of these weights; '' where that is not notable."""
    cosine = rounding_of(dtype, roundings).cosine
    if cosine >= NOTABLE:
        return ""
    return (
        f"{dtype} alone moves vectors of these weights to a cosine of {cosine:.4f} with exact "
        f"arithmetic; {_nearer(dtype, roundings)} is nearer"
    )


def check_dtype(dtype: ComputeDtype, roundings: Roundings | None, model: str) -> None:
    """Raise ConfigError where a compute dtype moves vectors of these weights too far."""
    cosine = rounding_of(dtype, roundings).cosine
    if cosine < REFUSED and dtype != "float32":
        raise ConfigError(
            f"embedding.compute_dtype: {dtype} is too coarse for these weights of {model}: it "
            f"moves vectors to a cosine of {cosine:.4f} with the exact ones, below {REFUSED}\n"
            f"set {_nearer(dtype, roundings)}",
            key="embedding.compute_dtype",
        )


def rounding_of(dtype: ComputeDtype, roundings: Roundings | None) -> Rounding:
    """Return what was measured, or what is usual where an earlier version prepared the weights."""
    usual = 3e-5 if dtype == "float32" else 1e-2
    return (roundings or {}).get(dtype, Rounding(mean=usual, tokens=usual, cosine=1.0))


def _nearer(dtype: ComputeDtype, roundings: Roundings | None) -> str:
    """Name the dtypes that are notably nearer, the fastest first."""
    faster: tuple[ComputeDtype, ...] = ("bfloat16", "float16", "tfloat32")
    if dtype == "int8":  # on a CPU
        faster = ("bfloat16",)
    names = [
        name for name in faster if name != dtype and rounding_of(name, roundings).cosine >= NOTABLE
    ]
    return f"{', '.join(names)} or float32" if names else "float32"
