"""How near two computations of one vector have to be, and how near they were."""

from dataclasses import dataclass

from plm_embed.fingerprint import StorageDtype

RELATIVE_L2: dict[StorageDtype, float] = {"float16": 1e-3, "float32": 1e-4, "bfloat16": 8e-3}
"""How far a vector computed in float32 may lie from the reference: mostly the rounding to the
storage type.
"""

COSINE = 0.9999
"""Bound in half precision on the cosine of a vector and its reference, for a model that this
version does not know; families have their own.
"""

FALLBACK = "fallback: "
"""In the name of a kernel that serves in place of a better one; the reason follows."""


@dataclass(frozen=True)
class SelfTest:
    """What the test of a device with golden vectors measured; kept in completion records."""

    relative_error: float
    """The worst over the probes."""
    cosine: float
    """The worst over the probes."""
    batch_invariant: bool
    """Whether probes, and a pair of 600 residues, gave the same bits alone and in company."""
    attention: str
    """Name of the kernel in use."""
    elementwise: str
    """Name of the kernel in use."""
