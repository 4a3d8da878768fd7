"""The letters that a record may have, and what becomes of the others.

They decide the key of a sequence. What a model makes of a letter is the matter of its tokens.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from string import ascii_uppercase

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import InputError
from plm_embed.fingerprint import AlphabetName


@dataclass(frozen=True)
class Alphabet:
    """Upper-case ASCII `letters` of a normalized sequence, in any order, and the signs beside
    them.
    """

    name: AlphabetName
    letters: str
    unknown: str
    """The letter that may stand in for one that is not among `letters`; none if empty."""
    gaps: str
    """Signs of an alignment, which stand for nothing."""
    stop: str = ""
    """The sign that may end a record; none if empty."""
    complements: str = ""
    """What faces each of `letters` on the other strand; empty where there is none."""
    uracil: str = ""
    """The letter that U is read as; empty where U is a letter like the others."""

    def is_clean(self, text: bytes | memoryview) -> bool:
        """Whether nothing but `letters` is in there; many times faster than `bytes.translate`."""
        codes = np.frombuffer(text, np.uint8)
        first, last, between = self._codes
        within = not len(codes) or (codes.min() >= first and codes.max() <= last)
        return bool(within) and not any((codes == other).any() for other in between)

    def others(self, text: bytes | memoryview) -> NDArray[np.bool_]:
        """Which bytes are none of `letters`."""
        codes = np.frombuffer(text, np.uint8)
        first, last, between = self._codes
        found = (codes < first) | (codes > last)
        for other in between:
            found |= codes == other
        return found

    def reverse_complement(self, sequence: str) -> str:
        """The other strand of a normalized sequence, read in its own direction."""
        return sequence.translate(self._complement)[::-1]

    @cached_property
    def each(self) -> frozenset[str]:
        """The letters, one by one."""
        return frozenset(self.letters)

    @cached_property
    def _codes(self) -> tuple[int, int, frozenset[int]]:
        """The first and the last letter, and what lies between them and is none."""
        codes = sorted(self.letters.encode("ascii"))
        return codes[0], codes[-1], frozenset(range(codes[0], codes[-1])).difference(codes)

    @cached_property
    def _complement(self) -> dict[int, int]:
        return str.maketrans(self.letters, self.complements)


PROTEIN = Alphabet("protein", "LAGVSERTIDPKQNFYMHWCXBUZO", unknown="X", gaps="-.", stop="*")
DNA = Alphabet(
    "dna",
    "ACGTRYSWKMBDHVN",
    unknown="N",
    gaps="-.",
    complements="TGCAYRSWMKVHDBN",
    uracil="T",
)
"""The four bases and IUPAC's letters for several of them."""
STATES = Alphabet("3di", "ACDEFGHIKLMNPQRSTVWY", unknown="", gaps="-.")
"""Foldseek's 3Di states of a protein's structure, one per residue, which share the letters of
residues.
"""
ALPHABETS: dict[AlphabetName, Alphabet] = {each.name: each for each in (PROTEIN, DNA, STATES)}
_WORDS = {"protein": "proteins", "3di": "3Di states"}

_LETTERS = 100_000  # looked at of an input
_OF_A_RECORD = 1_000  # so that one odd record decides nothing
_ENOUGH = 100  # to tell by; peptides of a few letters may be called ACGT
_SAYING_NOTHING = "NX"  # asparagine and any base; any residue and a masked base
_BASES = ("A", "C", "G", "TU")
_NO_BASE = "EFILPQ"  # a third of a protein's letters, and none of IUPAC's for bases
_NUCLEOTIDES, _EACH_BASE, _PROTEIN = 0.9, 0.01, 0.1  # shares


def are_words(texts: Sequence[str]) -> bool:
    """Whether a column has short texts in lower case that repeat, as labels do: of at least 20
    texts fewer than half distinct, and most shorter than 20 letters.
    """
    lengths = sorted(map(len, texts))
    lower = sum(text != text.upper() for text in texts)
    return (
        len(texts) >= 20
        and 2 * len(set(texts)) < len(texts)
        and lengths[len(texts) // 2] < 20
        and 2 * lower > len(texts)
    )


class LetterCheck:
    """Whether the first records of an input are of another kind than its model reads.

    Nucleotides: at least 9 in 10 letters are bases, and 1 in 100 is each of the four, since a
    protein of few kinds of residues, such as antifreeze AAT repeats, may lack some. Proteins: at
    least 1 in 10 letters is one that no base has. N and X say nothing, nor do less than 100 others.
    Residues and 3Di states have the same letters: nothing tells one from the other.
    """

    def __init__(self, alphabet: Alphabet, path: Path | None = None) -> None:
        """`path` of the input if it is a file."""
        self._alphabet, self._path = alphabet, path
        self._counts: Counter[str] = Counter()

    @property
    def wanted(self) -> bool:
        """Whether there is need to look at more records."""
        return self._counts.total() < _LETTERS

    def look(self, residues: Sequence[str]) -> None:
        """Look at the next records, in letters of either case. InputError when they are of the
        other kind.
        """
        for raw in residues:
            if not self.wanted:
                break
            self._counts.update(raw[:: len(raw) // _OF_A_RECORD + 1].upper())
        self._check()

    def _check(self) -> None:
        telling = set(ascii_uppercase).difference(_SAYING_NOTHING)
        total = sum(self._counts[letter] for letter in telling)
        if total < _ENOUGH:
            return
        each = [sum(self._counts[letter] for letter in base) for base in _BASES]
        bases, others = sum(each), sum(self._counts[letter] for letter in _NO_BASE)
        nucleotides = bases >= _NUCLEOTIDES * total and min(each) >= _EACH_BASE * total
        of_letters = f"of {total:,} letters looked at"
        name = self._path or "the sequences"
        if self._alphabet is not DNA and nucleotides:
            read = _WORDS[self._alphabet.name]
            raise InputError(
                f"{name}: these are nucleotides, and the model reads {read}: "
                f"{bases / total:.0%} {of_letters} are A, C, G, T or U",
                path=self._path,
                remedy="choose a model of DNA, or give the proteins that they encode"
                + (", as Foldseek's 3Di strings" if self._alphabet is STATES else ""),
            )
        if self._alphabet is DNA and others >= _PROTEIN * total:
            raise InputError(
                f"{name}: these are proteins, and the model reads DNA: "
                f"{others / total:.0%} {of_letters} are E, F, I, L, P or Q, which are no bases",
                path=self._path,
                remedy="choose a model of proteins, or give the genes",
            )
