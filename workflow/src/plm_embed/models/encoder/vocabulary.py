"""Tokens by table look-up: one per letter, between fixed special tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Vocabulary:
    """`letters` have the ids from `first` on; `prefix` and `suffix` are ids of special tokens.

    `read_as` has the letters that the authors have the model read as another one.
    """

    letters: str
    first: int
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    read_as: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _ids(self) -> NDArray[np.uint8]:
        """The id of each byte; 255 where there is none."""
        ids = np.full(256, 255, dtype=np.uint8)
        for letter in self.letters:
            shown = self.read_as.get(letter, letter)
            ids[ord(letter)] = self.first + self.letters.index(shown)
        return ids

    @cached_property
    def _around(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The special tokens before and after."""
        return np.array(self.prefix, dtype=np.uint8), np.array(self.suffix, dtype=np.uint8)

    def tokenize(self, sequence: str) -> NDArray[np.uint8]:
        """Ids of a normalized sequence, special tokens included: (prefix + L + suffix,).

        A letter without an id is a bug of the caller.
        """
        ids = self._ids[np.frombuffer(sequence.encode("ascii"), dtype=np.uint8)]
        if (ids == 255).any():
            raise ValueError(f"not a normalized sequence: {sequence[:60]!r}")
        before, after = self._around
        return np.concatenate((before, ids, after))
