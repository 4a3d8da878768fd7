"""Letters to token ids: a table of letters, or a file of the checkpoint that decides."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # families import no torch
    from torch import Tensor

Ids = NDArray[np.uint16]
_NONE = np.iinfo(np.uint16).max
Tokenize = Callable[[str], Ids]
"""Token ids of a normalized sequence, special tokens included: (prefix + n + suffix,)."""

TENSOR = "tokenizer"
"""The name of a tokenizer file's bytes among the tensors of a weights folder."""


class Tokens(NamedTuple):
    """The tokenizer of some weights, and the number of letters of each token by its id, which means
    nothing for special tokens.
    """

    tokenize: Tokenize
    letters: NDArray[np.uint8]
    sha256: str = ""
    """SHA-256 of the part of a file that decides the tokens, by `digest`: copies in circulation
    differ in other parts, such as the length at which they cut sequences off.
    """


def digest(*parts: object) -> str:
    """Return the SHA-256 of lists, objects and words, as JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Vocabulary:
    """One token per letter, or per residue and the state behind it. `letters` have the ids from
    `first` on; with `states` the pairs of the first letter and each of them, then those of the
    next. `prefix` and `suffix` are ids of special tokens.

    `unknown` is the id of the letters in `unknown_letters`; `read_as` has the letters that the
    authors have the model read as another one.
    """

    file: ClassVar[str] = ""
    """No file decides the tokens."""
    letters: str
    first: int
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    read_as: Mapping[str, str] = field(default_factory=dict)
    unknown_letters: str = ""
    unknown: int = 0
    states: str = ""

    def within(self, _: Mapping[str, "Tensor"]) -> Tokens:
        """Return the tokenizer, which no file decides. A letter without an id is a bug of who
        calls it: ValueError.
        """
        states = [*self.states.encode()] or [0]
        table = np.full((256, 256 if self.states else 1), _NONE, np.uint16)  # letters by states
        for letter in self.letters:
            number = self.letters.index(self.read_as.get(letter, letter))
            table[ord(letter), states] = self.first + len(states) * number + np.arange(len(states))
        for letter in self.unknown_letters:
            table[ord(letter), states] = self.unknown

        def tokenize(sequence: str) -> Ids:
            letters = np.frombuffer(sequence.encode("ascii"), np.uint8)
            ids = table[(letters[::2], letters[1::2]) if self.states else (letters, 0)]
            if (ids == _NONE).any():
                raise ValueError(f"not a normalized sequence: {sequence[:60]!r}")
            parts = self.prefix, ids, self.suffix
            return np.concatenate(parts, dtype=np.uint16, casting="unsafe")

        return Tokens(tokenize, np.ones(256, np.uint8))


@dataclass(frozen=True)
class TokenizerFile:
    """A file that lies beside the published weights. It is kept among the tensors, as bytes: so it
    goes wherever the weights go, and is part of their SHA-256.
    """

    file: str
    """Its name."""
    read: Callable[[bytes], Tokens]
    """The tokenizer that the content describes. ValueError, with what is wrong, if it is none."""
    prefix: tuple[str, ...]
    suffix: tuple[str, ...] = ()
    """Special tokens before and behind those of the sequence."""

    def within(self, tensors: Mapping[str, "Tensor"]) -> Tokens:
        """Return the tokenizer of the file among the tensors of a weights folder."""
        return self.read(tensors[TENSOR].numpy().tobytes())
