"""What a master and a store have in common for a reader: rows of vectors, in the order of their
sorted keys.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError, UnknownIdError, extra, whole_number
from plm_embed.fingerprint import Fingerprint, has_matrix
from plm_embed.keys import Keys
from plm_embed.reading.matrices import Matrices
from plm_embed.reading.rows import Rows, chosen, whole, within
from plm_embed.reading.search.nearest import Search, table
from plm_embed.reading.search.scan import Metric
from plm_embed.sequences.settings import OnError
from plm_embed.store.hdf5 import Array
from plm_embed.wording import some

if TYPE_CHECKING:
    import anndata
    import pyarrow as pa
    import torch


KEY_TEXT = re.compile("[0-9a-f]{64}")

Embedder = Callable[
    [Fingerprint, str, Any, str | Path | None, OnError], tuple[list[str], NDArray[np.float32]]
]
"""From a fingerprint, a representation, sequences, weights and what to do with a sequence that has
no vector, to names and vectors (q, D).
"""


class Vectors(Matrices):
    """Embeddings open for reading; a context manager. Vectors stay on disk until asked for.

    Row i belongs to key i; keys are sorted. `name` chooses a representation, such as "mean_l33";
    "emb" is the first pooled one. Numbers come as stored (float16 or float32; bfloat16 as float32).
    """

    embedder: Embedder | None = None
    """Computes vectors like these; None in the package's own readers, which look for nothing."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def __len__(self) -> int:
        """Rows: distinct sequences."""

    @abstractmethod
    def __contains__(self, name: object) -> bool:
        """Whether there is a vector for an id, or for a key where there are no ids."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """D, the number of values per vector."""

    @property
    @abstractmethod
    def fingerprint(self) -> Fingerprint:
        """What these vectors depend on."""

    @property
    @abstractmethod
    def keys(self) -> Keys:
        """SHA-256 of each row's sequence: S64 (n,), sorted."""

    @property
    @abstractmethod
    def lengths(self) -> NDArray[np.int32]:
        """Residues of each row's sequence (n,)."""

    @abstractmethod
    def get(self, ids: Iterable[str], name: str = "emb") -> Array:
        """Vectors (k, D) of these record ids, in the order asked for.

        UnknownIdError for ids that are not there; PlmEmbedError for one that records with different
        sequences share.
        """

    @abstractmethod
    def _locate(self, keys: Keys) -> Rows:
        """The row of each key, -1 for those that are not there."""

    @abstractmethod
    def _span(self, name: str, start: int, stop: int) -> Array:
        """Rows start to stop of a pooled representation."""

    @abstractmethod
    def _take(self, name: str, rows: Rows) -> Array:
        """These rows, in any order, of a pooled representation."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[Self], tuple[Path, Embedder | None]]:
        """Another process, such as a worker of a DataLoader, opens the file anew."""
        return type(self), (self.path.absolute(), self.embedder)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, D) of a pooled representation."""
        return len(self), self.dim

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.path}: {len(self):,} x "
            f"{self.dim}, {', '.join(self.names)}>"
        )

    def nearest(
        self,
        ids: Iterable[str] | None = None,
        *,
        vectors: Array | None = None,
        sequences: Any = None,
        k: int = 10,
        metric: Metric = "cosine",
        name: str = "emb",
        weights: str | Path | None = None,
        on_error: OnError = "raise",
        index: bool = False,
    ) -> "pa.Table":
        """The k nearest rows of each query, by comparison with every row, in bounded memory; with
        `index`, with those that the master's index proposes (`plm-embed index`).

        Queries are records of these ids (each finds itself first, but by dot), vectors (q, D), or
        sequences, given as to `plm_embed.embed`: they are embedded by the model and the settings of
        these embeddings, whose `weights` may have to be named. `on_error` as in `plm_embed.embed`:
        raise an InputError for a sequence that has no vector, or skip it with a warning.

        The table has, for each query (its id, or else its place among them: of vectors from 0, of
        sequences from 1), a line for each record of each neighbor: rank from 1, similarity
        (cosine), dot_product or distance (euclidean), row, and what the index says of the record.
        PlmEmbedError for an unknown metric, for queries of another width, or with numbers that are
        not finite.
        """
        if sum(each is not None for each in (ids, vectors, sequences)) != 1:
            raise PlmEmbedError("nearest: give one of ids, vectors and sequences")
        if sequences is None and weights is not None:
            raise PlmEmbedError(
                "nearest: weights are for sequences that are embedded", remedy="leave them out"
            )
        search = Search(self, k, metric, self._pooled(name))
        if index:
            from plm_embed.reading.search.approximate import Approximate

            search = replace(search, index=Approximate(self, metric, search.name))
        if ids is not None:
            labels = [ids] if isinstance(ids, str) or not isinstance(ids, Iterable) else list(ids)
            vectors = self.get(labels, name)
        elif sequences is not None:
            if self.embedder is None:
                raise RuntimeError(f"{self.path} was opened without an embedder")
            labels, vectors = self.embedder(
                self.fingerprint, search.name, sequences, weights, on_error
            )
        else:
            vectors = np.atleast_2d(np.asarray(vectors))
            labels = [str(place) for place in range(len(vectors))]
        found = search.nearest(vectors)
        return table(found, labels, metric, self._lines(np.unique(found.rows)))

    @abstractmethod
    def __iter__(self) -> Iterator[str]:
        """The ids of all records that have a vector, or the keys where there are no ids."""

    @abstractmethod
    def _of_name(self, name: str) -> Array:
        """The vector (D,) of an id, or of a key where there are no ids."""

    @abstractmethod
    def _lines(self, rows: Rows) -> "pa.Table":
        """What is known of these rows (increasing), sorted by the column `row`."""

    def by_key(self, keys: Iterable[str] | Keys, name: str = "emb") -> Array:
        """Vectors (k, D) of these keys, in the order asked for. UnknownIdError for keys that are
        not there.
        """
        if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
            raise PlmEmbedError("keys are a list: by_key([key])")
        return self._take(self._pooled(name), self._rows_of_keys(keys))

    def rows(self, rows: Sequence[int], name: str = "emb") -> Array:
        """Vectors (k, D) of these rows, in the order asked for; a range of them is read at once."""
        if isinstance(rows, range) and rows.step == 1 and 0 <= rows.start <= rows.stop <= len(self):
            return self._span(self._pooled(name), rows.start, rows.stop)
        return self._take(self._pooled(name), within(whole(np.asarray(rows)), len(self)))

    def __getitem__(self, rows: str | int | slice | NDArray[Any] | list[int]) -> Array:
        """Of "emb": a vector (D,) for an id (of a store: a key) or the number of a row, vectors
        (k, D) for a slice or an array of numbers.
        """
        if isinstance(rows, str):
            return self._of_name(rows)
        name = self._pooled("emb")
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                return self._span(name, start, max(start, stop))
            return self._take(name, np.arange(start, stop, step))
        if isinstance(rows, int | np.integer):
            at = int(within(np.array([rows]), len(self))[0])
            vector: Array = self._span(name, at, at + 1)[0]
            return vector
        return self._take(name, chosen(np.asarray(rows), len(self)))

    def iter_batches(self, rows: int = 4096, name: str = "emb") -> Iterator[tuple[Keys, Array]]:
        """All rows in order, as (keys (k,), vectors (k, D)) of at most `rows` rows."""
        for start in range(0, len(self), whole_number("rows", rows, above_zero=True)):
            stop = min(start + rows, len(self))
            yield self._keys_between(start, stop), self._span(self._pooled(name), start, stop)

    def to_numpy(self, name: str = "emb") -> Array:
        """All vectors of a pooled representation (n, D)."""
        return self._span(self._pooled(name), 0, len(self))

    def to_torch(self, name: str = "emb") -> "torch.Tensor":
        """All vectors of a pooled representation as a tensor (n, D)."""
        with extra():
            import torch
        return torch.from_numpy(self.to_numpy(name))

    @abstractmethod
    def to_anndata(self, name: str = "emb") -> "anndata.AnnData":
        """X (n, D): an observation for every record, or for every key where there are no
        records.
        """

    def _keys_between(self, start: int, stop: int) -> Keys:
        return self.keys[start:stop]

    def _rows_of_keys(self, keys: Iterable[str] | Keys) -> Rows:
        if not (isinstance(keys, np.ndarray) and keys.dtype == "S64"):
            texts = [key.decode("latin-1") if isinstance(key, bytes) else str(key) for key in keys]
            if wrong := [text for text in texts if not KEY_TEXT.fullmatch(text)]:
                raise UnknownIdError(
                    f"{self.path}: no vector for {some(wrong)}: a key is the SHA-256 of a "
                    "sequence, 64 digits 0-9 a-f",
                    path=self.path,
                )
            keys = np.array(texts, dtype="S64")
        rows = self._locate(keys)
        if (rows < 0).any():
            raise UnknownIdError(
                f"{self.path}: no vector for {some(keys[rows < 0].astype(str).tolist())}",
                path=self.path,
            )
        return rows

    def _known(self, name: str) -> str:
        if name not in (*self.names, "emb"):
            raise PlmEmbedError(
                f"{self.path}: has no representation {name}; it has {', '.join(self.names)}",
                path=self.path,
            )
        return name

    def _pooled(self, name: str) -> str:
        """`name`, or what "emb" stands for. PlmEmbedError when it is not there or has a matrix per
        row.
        """
        if isinstance(name, str) and has_matrix(name):
            raise PlmEmbedError(f"{name} has a matrix per record: use {_kind(name)}(id)")
        pooled = [each for each in self.names if not has_matrix(each)]
        if name == "emb" and not pooled:
            raise PlmEmbedError(
                f"{self.path}: has no pooled representation; it has {', '.join(self.names)}",
                path=self.path,
                remedy=f"for the next run: `embedding.pooling: [mean, {_kind(self.names[0])}]`",
            )
        return self._known(name)


def _kind(name: str) -> str:
    """Of a representation with a matrix per row."""
    return "per_token" if name.startswith("per_token_") else "per_residue"
