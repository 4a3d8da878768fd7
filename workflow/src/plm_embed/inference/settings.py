"""Settings of the steps that compute, without the libraries that carry them out: the parent of the
workers stays light.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

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

if TYPE_CHECKING:
    from plm_embed.models.registry import Model

DeviceName = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of what to compute, which the fingerprint has too, and of how to compute it.

    In the configuration these are `embedding.*` and `residues.strand`; a profile sets how to
    compute.
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


def resolved(settings: Settings, model: "Model") -> Settings:
    """Return settings whose layers count from 0 and whose limits of lengths are those of the model.

    Of a model with a limit, as learned positions have, sequences that are longer are skipped unless
    the settings say otherwise. ConfigError, the first of `mistakes`, when it cannot do what they
    ask for.
    """
    if error := next(mistakes(settings, model), None):
        raise error
    layers = tuple(layer % (model.layers + 1) for layer in settings.layers)
    long = settings.long_sequences
    if model.family.max_residues and long.policy == "whole":
        long = LongSequences("skip", max(1, model.family.max_residues - len(settings.linker)))
    return replace(settings, layers=layers, long_sequences=long)


def mistakes(settings: Settings, model: "Model") -> Iterator[ConfigError]:
    """Yield an error for each setting that a model cannot follow."""
    from plm_embed.models.family import pooling_problems, score_problem  # loads NumPy
    from plm_embed.sequences.residues import ONE_STRAND

    outputs = settings.pooling or settings.scores  # which are computed alone, too
    for key, named in (("embedding.layers", settings.layers), ("embedding.pooling", outputs)):
        if not named:
            yield ConfigError(f"{key}: is empty", key=key, remedy="name at least one")
    layers, most, name, linker = settings.layers, model.layers, model.name, settings.linker
    inside = all(-most - 1 <= layer <= most for layer in layers)
    if not inside or len({layer % (most + 1) for layer in layers}) < len(layers):
        yield ConfigError(
            f"embedding.layers: {list(layers)}: {name} has layers 0 to {most}, -1 is the last",
            key="embedding.layers",
            remedy="name existing layers, each once",
        )
    for problem in pooling_problems(settings.pooling, model.family, name, linker):
        yield ConfigError(problem, key="embedding.pooling")
    if settings.scores and (problem := score_problem(model.family, name, linker)):
        yield ConfigError(problem, key="embedding.scores")
    if settings.strand == "canonical" and not model.family.alphabet.complements:
        yield ConfigError(ONE_STRAND, key="residues.strand")
    key, long = "embedding.long_sequences", settings.long_sequences
    limit = model.family.max_residues
    check_word(f"{key}.policy", long.policy, get_args(LongPolicy))
    for part, policies in (("max_residues", ("window", "crop", "skip")), ("overlap", ("window",))):
        value = whole_number(f"{key}.{part}", getattr(long, part))
        if value and long.policy not in policies:
            yield ConfigError(
                f"{key}.{part}: {value} has no effect with policy {long.policy}",
                key=f"{key}.{part}",
                remedy=f"choose {' or '.join(policies)}, or 0",
            )
            return
    if long.policy != "whole" and not 0 <= long.overlap < long.max_residues:
        yield ConfigError(
            f"{key}: policy {long.policy} needs max_residues above 0 and an overlap below it "
            f"(max_residues {long.max_residues}, overlap {long.overlap})",
            key=key,
        )
    elif linker and long.policy in ("window", "crop"):
        yield ConfigError(
            f"{key}.policy: {long.policy}: would part the chains of a pair; choose whole or skip",
            key=key,
        )
    elif limit and long.max_residues > (limit := max(1, limit - len(linker))):
        yield ConfigError(
            f"{key}: {name} takes at most {limit} residues",
            key=key,
            remedy=f"set max_residues to {limit} or less, with policy window, crop or skip",
        )
