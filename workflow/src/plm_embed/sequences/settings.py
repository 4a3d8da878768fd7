"""Settings of the steps that read sequences, without the libraries that carry them out."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from plm_embed.errors import ConfigError
from plm_embed.fingerprint import AlphabetName, StrandSetting
from plm_embed.sequences.alphabet import ALPHABETS
from plm_embed.setting import Setting

OnError = Literal["raise", "skip"]
"""What to do with a sequence without a vector, where sequences are given in memory."""
LEAST_MEMORY_MB = 500
ONE_STRAND = "residues.strand: canonical: the model reads proteins, which have no other strand"
NO_UNKNOWN = "residues.unknown: substitute: no 3Di state stands for an unknown one; choose skip"
_RESULTS = {
    *("id", "cache_key", "key", "row", "length", "source", "number"),
    *("header", "status", "reason", "detail", "events"),
}
"""Columns that the index or records.parquet have by themselves."""


@dataclass(frozen=True)
class Table:
    """The columns of CSV, TSV and Parquet inputs: the id, the residues, and those to keep. FASTA
    ignores it.
    """

    id: Annotated[str, Setting("Column with the record id (tables only).", option="id-column")] = (
        "id"
    )
    sequence: Annotated[
        str,
        Setting("Column with the residues (tables only).", option="sequence-column"),
    ] = "sequence"
    keep: Annotated[
        tuple[str, ...],
        Setting("Column to carry into the index (tables only; repeatable)."),
    ] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.id, self.sequence, *self.keep)))


def taken(name: str) -> str:
    """Return why a column of this name cannot be carried into the results, or ''."""
    if name in _RESULTS:
        return "the results have a column of their own of this name; leave it out or rename yours"
    if name == "sequence":
        return "the steps call the normalized residues so; rename your column to keep it"
    return ""


@dataclass(frozen=True, kw_only=True)
class ResiduePolicy:
    """What to do with a record that holds letters beyond the alphabet (`unknown`) or alignment gaps
    (`gaps`), and whether a sequence and its reverse complement are one (`strand`: canonical).

    ConfigError for strands of proteins, and where no letter stands for an unknown one.
    """

    alphabet: Annotated[
        AlphabetName,
        Setting("What the model reads."),
    ] = "protein"
    unknown: Annotated[
        Literal["skip", "substitute"],
        Setting(
            "Letters outside the alphabet: skip the record, or substitute X (of DNA N).",
            key="residues.unknown",
            option="unknown-residues",
        ),
    ] = "skip"
    gaps: Annotated[
        Literal["remove", "skip"],
        Setting("'-' and '.': remove them, or skip the record.", key="residues.gaps"),
    ] = "remove"
    strand: StrandSetting = "as_given"

    def __post_init__(self) -> None:
        if self.strand == "canonical" and not ALPHABETS[self.alphabet].complements:
            raise ConfigError(ONE_STRAND, key="residues.strand")
        if self.unknown == "substitute" and not ALPHABETS[self.alphabet].unknown:
            raise ConfigError(NO_UNKNOWN, key="residues.unknown")


@dataclass(frozen=True)
class Reading:
    """How sequence files are read, and how many buckets their sequences are shared out to."""

    buckets: Annotated[
        int,
        Setting("Number of buckets.", key="buckets", least=1, most=20_000),
    ] = 4
    table: Table = field(default_factory=Table)
    policy: ResiduePolicy = field(default_factory=ResiduePolicy)


@dataclass(frozen=True)
class Memory:
    """What a step that reads sequences may use."""

    memory_mb: Annotated[int, Setting("Memory to stay within.", least=LEAST_MEMORY_MB)] = 2000
