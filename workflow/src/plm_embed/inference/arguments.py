"""What a caller in Python may ask for, checked before weights are downloaded or loaded for it."""

from typing import Literal, NamedTuple, get_args

import torch

from plm_embed.errors import ConfigError, whole_number
from plm_embed.fingerprint import ComputeDtype, LongSequences, Pooling, Strand
from plm_embed.inference.resolve import resolved
from plm_embed.inference.settings import Settings, known
from plm_embed.io.threads import cores
from plm_embed.kernels.devices import choose_device, choose_dtype
from plm_embed.models.family import Family
from plm_embed.models.registry import Model
from plm_embed.sequences.settings import OnError, ResiduePolicy


class Machine(NamedTuple):
    """What computes, and in which numbers. `threads` None leaves torch's setting."""

    device: torch.device
    dtype: ComputeDtype
    threads: int | None


def machine(
    device: Literal["auto", "cpu", "cuda"],
    dtype: ComputeDtype | Literal["auto"],
    threads: int | None,
) -> Machine:
    """ConfigError for what is not known; DeviceError for a GPU that cannot be used."""
    known("device", device, ("auto", "cpu", "cuda"))
    known("dtype", dtype, ("auto", *get_args(ComputeDtype)))
    if threads is not None:
        threads = min(whole_number("threads", threads, above_zero=True), cores())
    chosen = choose_device(device)
    return Machine(chosen, choose_dtype(dtype, chosen), threads)


def residue_policy(family: Family, strand: Strand) -> ResiduePolicy:
    """ConfigError for a strand that sequences of this family do not have."""
    known("strand", strand, get_args(Strand))
    return ResiduePolicy(alphabet=family.alphabet.name, strand=strand)


def asked(
    pooling: Pooling,
    layer: int,
    long_sequences: LongSequences | None,
    strand: Strand,
    dtype: ComputeDtype | Literal["auto"] = "auto",
) -> Settings:
    """Of one kind of vectors, as a campaign's that stores float32. ConfigError for what no model
    can do.
    """
    known("pooling", pooling, get_args(Pooling))
    if not isinstance(long_sequences, LongSequences | None):
        raise ConfigError("long_sequences: a plm_embed.LongSequences", key="long_sequences")
    if pooling == "per_token" and strand == "canonical":
        raise ConfigError(
            "per_token with strand canonical: nothing here says which sequences were turned",
            key="pooling",
        )
    return Settings(
        layers=(whole_number("layer", layer),),
        pooling=(pooling,),
        compute_dtype=dtype,
        storage_dtype="float32",
        long_sequences=long_sequences or LongSequences(),
        strand=strand,
    )


def check_call(model: Model, wanted: Settings, on_error: OnError) -> None:
    """ConfigError for vectors that a model cannot give."""
    known("on_error", on_error, get_args(OnError))
    residue_policy(model.family, wanted.strand)
    resolved(wanted, model, model.name)
