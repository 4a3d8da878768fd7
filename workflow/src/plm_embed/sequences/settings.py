"""Settings of the steps that read sequences, without the libraries that carry them out."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from plm_embed.errors import ConfigError
from plm_embed.fingerprint import AlphabetName, StrandSetting
from plm_embed.sequences.tables import Table
from plm_embed.setting import Setting

OnError = Literal["raise", "skip"]
"""What to do with a sequence without a vector, where sequences are given in memory."""
LEAST_MEMORY_MB = 500
ONE_STRAND = "residues.strand: canonical: the model reads proteins, which have no other strand"
NO_UNKNOWN = "residues.unknown: substitute: no 3Di state stands for an unknown one; choose skip"


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
        from plm_embed.sequences.alphabet import ALPHABETS  # NumPy

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
