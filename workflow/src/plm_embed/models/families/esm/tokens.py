"""Residues to token ids and back: the alphabet that ESM-1b, ESM-1v and ESM-2 share.

Source: `esm/data.py: Alphabet.from_architecture("ESM-1b")` of fair-esm 2.0.0.
"""

import numpy as np

CLS, PAD, EOS, UNK, MASK = 0, 1, 2, 3, 32
VOCABULARY = 33  # rows of the embedding table
LETTERS = "LAGVSERTIDPKQNFYMHWCXBUZO"
"""Letters by their ids, which begin at 4; '.' and '-' follow, which are gaps and never embedded."""
LEADING = TRAILING = 1
"""Special tokens around the residues: `<cls>` and `<eos>`."""

_LOOKUP = np.full(256, UNK, dtype=np.uint8)
_LOOKUP[np.frombuffer(LETTERS.encode(), dtype=np.uint8)] = np.arange(
    4, 4 + len(LETTERS), dtype=np.uint8
)


def tokenize(sequence: str) -> np.ndarray:
    """Token ids of a normalized sequence, `<cls>` and `<eos>` included: uint8 (L + 2,).

    One token per residue, by table look-up; a letter outside `LETTERS` is a bug of the caller.
    """
    residues = _LOOKUP[np.frombuffer(sequence.encode("ascii"), dtype=np.uint8)]
    if (residues == UNK).any():
        raise ValueError(f"not a normalized sequence: {sequence[:60]!r}")
    tokens = np.empty(len(sequence) + 2, dtype=np.uint8)
    tokens[0], tokens[1:-1], tokens[-1] = CLS, residues, EOS
    return tokens
