"""What differs between families of models. Everything outside a family's own folder asks here."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from plm_embed.fingerprint import master_name
from plm_embed.models.encoder.description import Encoder
from plm_embed.models.tokenizer_file import Ids, Tokenize, TokenizerFile, Tokens
from plm_embed.sequence_windows import stored_spans
from plm_embed.sequences.alphabet import Alphabet

if TYPE_CHECKING:  # planning and reports count tokens, and wait for no torch
    import torch

    from plm_embed.models.manifest import Manifest

Layout = Literal["fair-esm", "hugging-face", "tensors"]
"""How a source holds weights: a .pt file of fair-esm, a folder with config.json and files of
tensors, or tensors alone, as one file or in a folder.
"""

Reference = Callable[
    ["Manifest", Mapping[str, "torch.Tensor"], Sequence[str], Sequence[int]],
    list[dict[int, "torch.Tensor"]],
]
"""Manifest, tensors, sequences and layers to the states of each sequence by layer."""

_ONE_EACH = np.ones(256, np.uint8)
"""How many letters a token has where each letter is one; special tokens do not count."""


@dataclass(frozen=True)
class Description:
    """What a source of weights says about its model; None for what it does not say."""

    architecture: str
    layers: int | None = None
    dim: int | None = None
    heads: int | None = None
    token_dropout: bool = False


def pooling_problems(pooling: Sequence[str], family: "Family", model: str) -> Iterator[str]:
    """What a model cannot do of what is asked for, in words."""
    if "bos" in pooling and not family.bos:
        yield f"embedding.pooling: bos: {model} has no <cls> token; choose mean or max"
    if "per_residue" in pooling and not family.token_per_letter:
        yield (
            f"embedding.pooling: per_residue: a token of {model} is several bases; choose "
            "per_token, which has a row for each token and says which bases it stands for"
        )
    if "per_token" in pooling and family.token_per_letter:
        yield f"embedding.pooling: per_token: a token of {model} is a residue; choose per_residue"


@dataclass(frozen=True)
class Family:
    """Models of one tokenizer that were published together.

    Importing one imports no torch; calling `reference` does.
    """

    name: str
    architecture: str
    """What a checkpoint can tell. Families of one architecture differ in nothing but their
    names.
    """
    alphabet: Alphabet
    leading: int
    """Special tokens before those of the sequence."""
    trailing: int
    """Special tokens after them."""
    max_residues: int | None
    """The longest sequence that the positions allow; None where there is no limit."""
    fill: int
    """The id behind the last sequence of a batch; any id of the table."""
    tokenizer: Tokenize | TokenizerFile
    """A function that makes one token of each letter, or the file of a checkpoint that decides."""
    encoder: Encoder
    """What is computed."""
    file: Layout
    """What a single file is, as its authors publish it."""
    describe: Callable[[Layout, Path, Mapping[str, Any]], Description]
    """What a source says about its model: a .pt file by its content, a folder by its
    config.json.
    """
    common_names: Callable[[Layout, str, str], tuple[str, ...]]
    """The engine's names for a tensor of a layout and an architecture: none if it is not used,
    several if its rows are shared out evenly among them.
    """
    mend: Callable[[dict[str, "torch.Tensor"]], dict[str, "torch.Tensor"]]
    """The tensors of a checkpoint as the authors' own program leaves them when it has read it."""
    reference: "Reference"
    """Representations (tokens, D) of each sequence after some layers, fp32, by code that shares
    nothing with the engine.
    """
    reference_name: str
    """Whose modules or formulas these are."""
    papers: tuple[str, ...]
    """What to cite."""
    license: str = "MIT"
    """Of the weights, as their publisher says it; a model may have one of its own."""
    bos: bool = True
    """Whether the first token is a <cls>, whose representation stands for the whole sequence."""
    letters_per_token: int = 1
    """How many letters a token has, as a rule, where a file decides the tokens."""
    max_tokens: int | None = None
    """The most tokens that the positions allow, where letters do not tell their number."""

    @property
    def extra_tokens(self) -> int:
        """Tokens of each piece that goes through the model, besides those of its residues."""
        return self.leading + self.trailing

    @property
    def token_per_letter(self) -> bool:
        """Whether each letter is a token, so that lengths tell the number of tokens."""
        return not isinstance(self.tokenizer, TokenizerFile)

    def tokens_of(self, tensors: Mapping[str, "torch.Tensor"]) -> Tokens:
        """What makes tokens of letters, for the weights that have these tensors."""
        found = self.tokenizer
        return (
            found.within(tensors) if isinstance(found, TokenizerFile) else Tokens(found, _ONE_EACH)
        )

    def spans(self, letters: "NDArray[np.uint8]", ids: Ids) -> "NDArray[np.float32]":
        """The letters of a sequence's own tokens, (T, 2) as `sequence_windows.stored_spans`.

        letters: how many each token has; ids: with special tokens.
        """
        stop = np.cumsum(letters[ids[slice(*self.residues(len(ids)))]], dtype=int)
        return stored_spans(np.concatenate(([0], stop[:-1])), stop)

    def tokens(self, residues: int, pieces: int = 1) -> int:
        """Tokens of `pieces` that have so many residues together: an estimate where letters do not
        tell their number.
        """
        return -(-residues // self.letters_per_token) + pieces * self.extra_tokens

    def residues(self, tokens: int) -> tuple[int, int]:
        """Which of a sequence's tokens are its letters': the first, and one past the last."""
        return self.leading, tokens - self.trailing

    @property
    def master(self) -> str:
        """The name of a master of this family and of its index, without .h5 or .parquet."""
        return master_name(self.name)
