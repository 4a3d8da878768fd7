"""Matrices of one record: a row per residue, or a row per token and the letters that it stands
for.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import SPANS, has_matrix
from plm_embed.keys import Keys
from plm_embed.reading.rows import Rows, within
from plm_embed.sequence_windows import span_ends
from plm_embed.store.hdf5 import Array


class Matrices(ABC):
    """What has matrices in its rows."""

    path: Path

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """The representations that are there."""

    @abstractmethod
    def _residues(self, name: str, row: int) -> Array:
        """The matrix (L, D) of a row in a per-residue representation, as stored."""

    @abstractmethod
    def _known(self, name: str) -> str:
        """The name. PlmEmbedError when it is not there."""

    @abstractmethod
    def _rows_of_keys(self, keys: Iterable[str] | Keys) -> Rows: ...

    def matrix(self, row: int, name: str) -> Array:
        """The matrix (L, D) of a row in a representation with a row per residue or token; of
        `per_token_spans` integers (T, 2).
        """
        if not has_matrix(self._known(name)):
            raise PlmEmbedError(f"{name} has one vector per record: use rows([{row}])")
        found = self._residues(name, int(within(np.array([row]), len(self))[0]))
        return span_ends(found) if name == SPANS else found

    def per_residue_by_key(self, key: str, name: str | None = None) -> Array:
        """The matrix (L, D) of one key; `name` defaults to the first per-residue representation."""
        (row,) = self._rows_of_keys([key]).tolist()
        return self.matrix(row, self._of_kind("per_residue", name))

    def per_token_by_key(
        self, key: str, name: str | None = None
    ) -> tuple[Array, NDArray[np.int64]]:
        """The matrix (T, D) of one key, and the letters (T, 2) of each token: the first, and one
        past the last; `name` defaults to the first per-token representation.
        """
        (row,) = self._rows_of_keys([key]).tolist()
        return self._tokens(row, name)

    def _tokens(self, row: int, name: str | None) -> tuple[Array, NDArray[np.int64]]:
        name = self._of_kind("per_token", name)
        return self.matrix(row, name), self.matrix(row, SPANS)

    def _of_kind(self, kind: str, name: str | None) -> str:
        """`name`, or the first representation of a kind. PlmEmbedError when it is not there or of
        another kind.
        """
        names = [each for each in self.names if each.startswith(f"{kind}_l")]
        if not names:
            raise PlmEmbedError(
                f"{self.path}: has no {kind.replace('_', '-')} representation; it has "
                f"{', '.join(self.names)}",
                path=self.path,
                remedy="for the next run: `embedding.pooling: [mean, per_residue]`, or per_token "
                "where a token is several bases",
            )
        found = self._known(name or names[0])
        if not has_matrix(found):
            raise PlmEmbedError(f"{name} has one vector per record: use get([id])")
        if found not in names:
            raise PlmEmbedError(f"{name} is no {kind.replace('_', '-')} representation")
        return found
