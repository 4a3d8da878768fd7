"""The letters that a record may have, and what becomes of the others.

They decide the key of a sequence. What a model makes of a letter is the matter of its tokens.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Alphabet:
    """Upper-case ASCII `letters` of a normalized sequence, in any order, and the signs beside
    them.
    """

    name: str
    letters: str
    unknown: str
    """The letter that may stand in for one that is not among `letters`."""
    gaps: str
    """Signs of an alignment, which stand for nothing."""
    stop: str
    """The sign that may end a record."""

    def is_clean(self, text: bytes | memoryview) -> bool:
        """Whether nothing but `letters` is in there; many times faster than `bytes.translate`."""
        codes = np.frombuffer(text, np.uint8)
        first, last, between = self._codes
        within = not len(codes) or (codes.min() >= first and codes.max() <= last)
        return bool(within) and not any((codes == other).any() for other in between)

    @cached_property
    def _codes(self) -> tuple[int, int, frozenset[int]]:
        """The first and the last letter, and what lies between them and is none."""
        codes = sorted(self.letters.encode("ascii"))
        return codes[0], codes[-1], frozenset(range(codes[0], codes[-1])).difference(codes)


PROTEIN = Alphabet("protein", "LAGVSERTIDPKQNFYMHWCXBUZO", unknown="X", gaps="-.", stop="*")
DNA = Alphabet("dna", "ACGTRYSWKMBDHVN", unknown="N", gaps="-.", stop="")
"""The four bases and IUPAC's letters for several of them; U is read as T before."""
