"""Tokens of k bases by table look-up, as the Nucleotide Transformer's vocab.txt numbers them.

The rule is that of `StandardTokenizer` in the authors' code (nucleotide_transformer/tokenizers.py):
from the left six bases are one token; where an N, an unknown letter or the end comes before the
sixth, each letter is a token of its own. An unknown letter is one <unk>: transformers' class joins
a row of them to one, and the authors' class for k-mers refuses them.
"""

import re
from itertools import product

import numpy as np
from numpy.typing import NDArray

from plm_embed.models.tokenizer_file import TokenizerFile, Tokens, decided

K = 6
BASES = "ATCG"
SINGLE = "ATCGN"
_DIGITS = np.full(256, len(BASES), dtype=np.uint8)  # of a number to the base 4; 4: none
_DIGITS[np.frombuffer(BASES.encode(), np.uint8)] = np.arange(len(BASES))


def _read(content: bytes) -> Tokens:
    words = content.decode("utf-8", "replace").split()
    numbers = {word: number for number, word in enumerate(words)}
    kmers = ["".join(bases) for bases in product(BASES, repeat=K)]
    needed = ["<unk>", "<pad>", "<mask>", "<cls>", *kmers, *SINGLE]
    if len(numbers) < len(words) or not numbers.keys() >= set(needed):
        raise ValueError("it is not a list of the 6-mers of A, T, C and G and of single letters")
    of_kmer = np.array([numbers[kmer] for kmer in kmers], dtype=np.uint16)
    of_letter = np.full(256, numbers["<unk>"], dtype=np.uint16)
    of_letter[np.frombuffer(SINGLE.encode(), np.uint8)] = [numbers[letter] for letter in SINGLE]
    start = np.array([numbers["<cls>"]], dtype=np.uint16)

    def tokenize(sequence: str) -> NDArray[np.uint16]:
        letters = np.frombuffer(sequence.encode("ascii"), np.uint8)
        found = [start]
        at = 0
        for stop in [*np.flatnonzero(_DIGITS[letters] == len(BASES)).tolist(), len(letters)]:
            kmers_end = stop - (stop - at) % K
            digits = _DIGITS[letters[at:kmers_end]].reshape(-1, K)
            found += [
                of_kmer[digits @ (len(BASES) ** np.arange(K)[::-1])],
                of_letter[letters[kmers_end : stop + 1]],
            ]
            at = stop + 1
        return np.concatenate(found)

    bases = np.ones(len(words), dtype=np.uint8)
    bases[of_kmer] = K
    return Tokens(tokenize, bases, decided(words))


def _spans(_content: bytes, sequence: str) -> list[tuple[int, int]]:
    """By the authors' expression."""
    return [found.span() for found in re.finditer(rf"[{BASES}]{{{K}}}|.", sequence)]


SIX_MERS = TokenizerFile("vocab.txt", _read, _spans)
