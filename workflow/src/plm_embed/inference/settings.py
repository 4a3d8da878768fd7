"""Settings of the steps that compute, without the libraries that carry them out: the parent of the
workers stays light.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from plm_embed.errors import ConfigError, whole_number
from plm_embed.fingerprint import (
    ComputeDtype,
    Fingerprint,
    LongPolicy,
    LongSequences,
    Pooling,
    Score,
    StorageDtype,
    Strand,
)
from plm_embed.wording import did_you_mean

DeviceName = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of what to compute, which the fingerprint has too, and of how to compute it.

    The configuration has them as `embedding.*` and `residues.strand`, `plm-embed embed` as options.
    """

    layers: tuple[int, ...] = (-1,)
    """0 is the input of the first layer, -1 the output of the last one."""
    pooling: tuple[Pooling, ...] = ("mean",)
    compute_dtype: Literal["auto"] | ComputeDtype = "auto"
    storage_dtype: StorageDtype = "float16"
    long_sequences: LongSequences = field(default_factory=LongSequences)
    strand: Strand = "as_given"
    scores: tuple[Score, ...] = ()
    linker: str = ""
    """Letters between the two chains of a pair; empty where sequences are single chains."""
    device: DeviceName = "auto"
    threads: int = 1
    """Threads of CPUs, shared by the workers."""
    toks_per_batch: int = 0
    """0: the device's default."""
    scratch: str = "auto"
    """A node-local folder for unfinished parts; auto: find one; '': write beside the store."""
    flush_minutes: float = 5.0
    """A part is written at least this often: a kill loses at most this much work."""
    per_residue_limit_gb: float = 100.0
    """A bucket that would make more per-residue output is refused."""
    bar: bool = True
    """Draw progress on a terminal; several workers would draw over each other."""

    @property
    def recipe(self) -> dict[str, Any]:
        """Settings of what to compute by the fields of the fingerprint, without a dtype `auto`,
        which is decided on the device.
        """
        return {name: value for name in RECIPE if (value := getattr(self, name)) != "auto"}


RECIPE = [part.name for part in fields(Fingerprint) if part.name in Settings.__dataclass_fields__]
"""Settings that are part of the fingerprint."""


def check_word(name: str, value: object, words: Sequence[str]) -> None:
    """Raise ConfigError unless a value is one of these words."""
    if value not in words:
        hint = did_you_mean(str(value), words)
        raise ConfigError(f"{name}: {value!r} is not one of {', '.join(words)}{hint}", key=name)


def within_limit(
    long: LongSequences, model: str, limit: int | None, linker: str = ""
) -> LongSequences:
    """Return the policy for long sequences of a model that takes at most `limit` residues, as
    models with learned positions do: `whole` then means that longer ones are skipped.

    The linker of pairs of chains takes its part of the limit, and no pair is cut.
    """
    key = "embedding.long_sequences"
    check_word(f"{key}.policy", long.policy, get_args(LongPolicy))
    for name, policies in (("max_residues", ("window", "crop", "skip")), ("overlap", ("window",))):
        value = whole_number(f"{key}.{name}", getattr(long, name))
        if value and long.policy not in policies:
            raise ConfigError(
                f"{key}.{name}: {value} has no effect with policy {long.policy}",
                key=f"{key}.{name}",
                remedy=f"choose {' or '.join(policies)}, or 0",
            )
    if long.policy != "whole" and not 0 <= long.overlap < long.max_residues:
        raise ConfigError(
            f"{key}: policy {long.policy} needs max_residues above 0 and an overlap below it "
            f"(max_residues {long.max_residues}, overlap {long.overlap})",
            key=key,
        )
    if linker and long.policy in ("window", "crop"):
        raise ConfigError(
            f"{key}.policy: {long.policy}: would part the chains of a pair; choose whole or skip",
            key=key,
        )
    if limit is not None:
        limit = max(1, limit - len(linker))
    if limit is None or (long.policy != "whole" and 0 < long.max_residues <= limit):
        return long
    if long == LongSequences("whole"):
        return LongSequences("skip", limit)
    raise ConfigError(
        f"{key}: {model} takes at most {limit} residues\n"
        f"set max_residues to {limit} or less, with policy window, crop or skip",
        key=key,
    )
