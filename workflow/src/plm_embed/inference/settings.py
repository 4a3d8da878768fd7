"""Settings of the embed job, without the libraries that carry them out: the parent of the workers
stays light.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from plm_embed.fingerprint import ComputeDtype, LongSequences, Pooling, StorageDtype, Strand


@dataclass(frozen=True)
class Settings:
    """What to compute (part of the fingerprint) and how to get there (not part of it).

    The command line takes its defaults from here; a test holds the configuration's schema to them.
    """

    layers: tuple[int, ...] = (-1,)
    """0 (the input of the first layer) to the number of layers; -1 is the last one."""
    pooling: tuple[Pooling, ...] = ("mean",)
    compute_dtype: ComputeDtype | Literal["auto"] = "auto"
    """auto: bfloat16 on GPUs that have it, else float32."""
    storage_dtype: StorageDtype = "float16"
    long_sequences: LongSequences = field(default_factory=LongSequences)
    strand: Strand = "as_given"
    device: Literal["auto", "cuda", "cpu"] = "auto"
    toks_per_batch: int = 0
    """Tokens per batch; 0: chosen for the device."""
    scratch: str = "auto"
    """Node-local folder for unfinished parts; auto: look for one; empty: write beside the store."""
    flush_minutes: float = 5.0
    """A part is written at least this often. More than 0."""
    threads: int = 1
    """CPU threads of the process."""
    reuse: tuple[Path, ...] = ()
    """Earlier masters and stores; see plm_embed.store.reuse."""
    bar: bool = True
    """Whether progress may be drawn on a terminal: several workers would draw over each other."""
