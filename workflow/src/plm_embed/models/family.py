"""What differs between families of models. Everything outside a family's own folder asks here."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from plm_embed.fingerprint import ComputeDtype, master_name
from plm_embed.sequences.alphabet import Alphabet

if TYPE_CHECKING:  # planning and reports count tokens, and wait for no torch
    import torch

    from plm_embed.models.manifest import Manifest
    from plm_embed.models.packed import Engine
    from plm_embed.models.registry import Model

Layout = Literal["fair-esm", "hugging-face"]
"""How a source holds weights: a .pt file of fair-esm, or a folder with config.json, safetensors."""


@dataclass(frozen=True)
class Description:
    """What a source of weights says about its model."""

    architecture: str
    layers: int
    dim: int
    heads: int
    token_dropout: bool


@dataclass(frozen=True)
class Family:
    """Models of one tokenizer that were published together.

    Importing one imports no torch; `engine`, `engine_name` and `reference` do when they are called.
    """

    name: str
    architecture: str
    """What a checkpoint can tell. Families of one architecture differ in nothing but their
    names.
    """
    alphabet: Alphabet
    leading: int
    """Special tokens before the residues."""
    trailing: int
    """Special tokens after them."""
    max_residues: int | None
    """The longest sequence that the positions allow; None where there is no limit."""
    tokenize: Callable[[str], NDArray[np.uint8]]
    """Token ids of a normalized sequence, special tokens included: (L + leading + trailing,)."""
    describe: Callable[[Layout, Path, Mapping[str, Any]], Description]
    """What a source says about its model: a .pt file by its content, a folder by its
    config.json.
    """
    common_name: Callable[[Layout, str, str], str | None]
    """The engine's name for a tensor of a layout and an architecture; None if it is not used."""
    tensor_shapes: Callable[["Model", Collection[str]], dict[str, tuple[int, ...]]]
    """Names and shapes of the tensors that a model must have, and of those that it may have and
    has.
    """
    mend: Callable[[dict[str, "torch.Tensor"]], dict[str, "torch.Tensor"]]
    """The tensors of a checkpoint as the authors' own program leaves them when it has read it."""
    engine: Callable[
        ["Manifest", Mapping[str, "torch.Tensor"], "torch.device", ComputeDtype], "Engine"
    ]
    """A model on a device."""
    engine_name: Callable[["Manifest", "torch.device", ComputeDtype], str]
    """The engine's name in the fingerprint."""
    reference: Callable[
        ["Manifest", Mapping[str, "torch.Tensor"], Sequence[str], Sequence[int]],
        list[dict[int, "torch.Tensor"]],
    ]
    """Representations (tokens, D) of each sequence after some layers, by the authors' modules in
    fp32.
    """

    @property
    def extra_tokens(self) -> int:
        """Tokens of each piece that goes through the model, besides those of its residues."""
        return self.leading + self.trailing

    def tokens(self, residues: int, pieces: int = 1) -> int:
        """Tokens of `pieces` that have so many residues together."""
        return residues + pieces * self.extra_tokens

    def residues(self, tokens: int) -> tuple[int, int]:
        """Which of a sequence's tokens are residues: the first, and one past the last."""
        return self.leading, tokens - self.trailing

    @property
    def master(self) -> str:
        """The name of a master of this family and of its index, without .h5 or .parquet."""
        return master_name(self.name)
