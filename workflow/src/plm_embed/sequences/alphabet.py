"""The letters that a record may have, and the policy for others. They decide the key of a sequence;
what a model makes of a letter is the matter of its tokens.
"""

from dataclasses import dataclass, replace
from typing import Literal

from plm_embed.errors import ConfigError
from plm_embed.fingerprint import AlphabetName, Strand

SEPARATOR = ":"
"""The sign between the two chains of a pair, which is no letter of any alphabet."""


@dataclass(frozen=True)
class Alphabet:
    """Upper-case ASCII `letters` of a normalized sequence, in any order, and the signs beside
    them.
    """

    name: AlphabetName
    letters: str
    unknown: str
    """The letter that may stand in for one that is not among `letters`; none if empty."""
    gaps: str = "-."
    """Signs of an alignment, which stand for nothing."""
    stop: str = ""
    """The sign that may end a record; none if empty."""
    complements: str = ""
    """Letter that faces each of `letters` on the other strand; '' where there is none."""
    uracil: str = ""
    """The letter that U is read as; empty where U is a letter like the others."""
    pairs: bool = False
    """Sequences are pairs of chains with the separator between them."""
    states: str = ""
    """The lower-case letters of which one follows each residue; none if empty."""
    letters_of_residue: int = 1
    """Letters of a normalized sequence for each residue."""

    def length(self, sequence: str) -> int:
        """Return the number of residues of a normalized sequence, or of both chains of a pair."""
        return (len(sequence) - sequence.count(SEPARATOR)) // self.letters_of_residue

    def reverse_complement(self, sequence: str) -> str:
        """Return the other strand of a normalized sequence, read in its own direction."""
        return sequence.translate(str.maketrans(self.letters, self.complements))[::-1]


PROTEIN = Alphabet("protein", "LAGVSERTIDPKQNFYMHWCXBUZO", unknown="X", stop="*")
PAIR = replace(PROTEIN, name="protein_pair", pairs=True)
"""Two chains of proteins, in their order, as in EVQL:DIQM."""
DNA = Alphabet("dna", "ACGTRYSWKMBDHVN", "N", complements="TGCAYRSWMKVHDBN", uracil="T")
"""The four bases and IUPAC's letters for several of them."""
STATES = Alphabet("3di", "ACDEFGHIKLMNPQRSTVWY", unknown="")
"""Foldseek's 3Di states of a protein's structure, one per residue, which share the letters of
residues.
"""
PROTEIN_3DI = Alphabet(
    "protein_3di",
    f"{PROTEIN.letters}#",
    unknown="#",
    states=f"{STATES.letters.lower()}#",
    letters_of_residue=2,
)
"""Residues that are each followed by the 3Di state of its structure, as in MdEvVp; # is an unknown
one of either.
"""
ALPHABETS: dict[AlphabetName, Alphabet] = {
    alphabet.name: alphabet for alphabet in (PROTEIN, PAIR, DNA, STATES, PROTEIN_3DI)
}
ONE_STRAND = "residues.strand: canonical: the model reads proteins, which have no other strand"


@dataclass(frozen=True, kw_only=True)
class ResiduePolicy:
    """Policy for a record that holds letters beyond the alphabet (`unknown`) or alignment gaps
    (`gaps`), and whether a sequence and its reverse complement are one (`strand`: canonical).

    ConfigError for strands of proteins, and where no letter stands for an unknown one.
    """

    alphabet: AlphabetName = "protein"
    unknown: Literal["skip", "substitute"] = "skip"
    gaps: Literal["remove", "skip"] = "remove"
    strand: Strand = "as_given"

    def __post_init__(self) -> None:
        if self.strand == "canonical" and not ALPHABETS[self.alphabet].complements:
            raise ConfigError(ONE_STRAND, key="residues.strand")
        if self.unknown == "substitute" and not ALPHABETS[self.alphabet].unknown:
            raise ConfigError(
                "residues.unknown: substitute: no 3Di state stands for an unknown one; choose skip",
                key="residues.unknown",
            )
