"""The file of a checkpoint that decides its tokens, where letters and their table do not.

It is kept among the tensors, as bytes: so it goes wherever the weights go, and their SHA-256, which
is in the fingerprint, is its own too.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # families import no torch
    from torch import Tensor

Ids = NDArray[np.uint8] | NDArray[np.uint16]
Tokenize = Callable[[str], Ids]
"""Token ids of a normalized sequence, special tokens included: (leading + n + trailing,)."""

TENSOR = "tokenizer"
"""The name of the file's bytes among the tensors of a weights folder."""


class Tokens(NamedTuple):
    """What makes tokens of letters, and how many letters each of the tokens stands for, by its id;
    of special tokens the number says nothing.
    """

    tokenize: Tokenize
    letters: NDArray[np.uint8]
    sha256: str = ""
    """Of what decides the tokens in a file, by `decided`: copies in circulation differ in what does
    not, such as the length at which they cut sequences off.
    """


def decided(*parts: object) -> str:
    """The SHA-256 of lists, objects and words, as JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class TokenizerFile:
    """A file that lies beside the published weights."""

    name: str
    read: Callable[[bytes], Tokens]
    """What the content says. ValueError, with what is wrong with it, if it is not such a file."""
    spans: Callable[[bytes, str], list[tuple[int, int]]]
    """The first letter of each of a sequence's tokens and one past its last, by other means than
    those of `read`, so that one can prove the other.
    """

    def spans_within(self, tensors: Mapping[str, "Tensor"], sequence: str) -> list[tuple[int, int]]:
        """`spans` by the file among the tensors of a weights folder."""
        return self.spans(tensors[TENSOR].numpy().tobytes(), sequence)

    def within(self, tensors: Mapping[str, "Tensor"]) -> Tokens:
        """What the file among the tensors of a weights folder says."""
        return self.read(tensors[TENSOR].numpy().tobytes())
