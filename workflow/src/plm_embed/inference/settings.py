"""Settings of the embed job, without the libraries that carry them out: the parent of the workers
stays light.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from plm_embed.fingerprint import ComputeDtype, LongSequences, Pooling, StorageDtype


@dataclass(frozen=True)
class Settings:
    """What to compute (part of the fingerprint) and how to get there (not part of it)."""

    layers: tuple[int, ...] = (-1,)
    pooling: tuple[Pooling, ...] = ("mean",)
    compute_dtype: ComputeDtype | Literal["auto"] = "auto"
    storage_dtype: StorageDtype = "float16"
    long_sequences: LongSequences = field(default_factory=LongSequences)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    toks_per_batch: int = 0
    scratch: str = "auto"
    flush_minutes: float = 5.0
    threads: int = 1
    reuse: tuple[Path, ...] = ()
    """Earlier masters and stores; see plm_embed.reuse."""
    bar: bool = True
    """Whether progress may be drawn on a terminal: several workers would draw over each other."""
