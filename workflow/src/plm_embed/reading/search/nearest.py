"""Nearest neighbors without an index: every row is compared, block by block, in bounded memory.

Rows are ranked in fp32, and the best of them once more in fp64: neighbors whose scores differ by
less than fp32 can tell (some 1e-6 of them) may come in another order, or make room for each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError, whole_number
from plm_embed.reading.rows import Rows
from plm_embed.reading.search.scan import Metric, Scan
from plm_embed.store.hdf5 import Array

if TYPE_CHECKING:
    from plm_embed.reading.vectors import Vectors

SCORES: dict[Metric, str] = {
    "cosine": "similarity",
    "dot": "dot_product",
    "euclidean": "distance",
}
"""What the score of each metric is called in a table."""
BLOCK_BYTES = 64 << 20
"""Of the candidates, as fp64, that are read at a time."""
QUERIES_AT_ONCE = 1024
"""More go through the rows in several passes: scores take 4 bytes for each query and row."""
_SPARE = 8
"""Candidates beside the k best: fp32 ranks them, fp64 has the last word."""
PROPOSED = 10
"""Candidates for each of the k best that an approximate index proposes."""


class Proposer(Protocol):
    """An approximate index."""

    def candidates(self, queries: NDArray[np.float32], count: int) -> Rows:
        """(q, count) rows that may be the nearest, -1 where it found fewer."""


class Neighbors(NamedTuple):
    """The k nearest rows of each of q queries, nearest first.

    rows: (q, k). scores: (q, k) fp64; cosine and dot product are larger for nearer rows, euclidean
    distances smaller. Of rows with equal scores the smaller number comes first.
    """

    rows: Rows
    scores: NDArray[np.float64]


def table(found: Neighbors, queries: Sequence[str], metric: Metric, lines: pa.Table) -> pa.Table:
    """A line for each record of each neighbor: query, rank (from 1), the score, and its columns.

    queries: the names of the q queries. lines: what is known of the rows that were found, sorted by
    its column `row`; several lines may have one row.
    """
    rows = lines["row"].to_numpy()
    first = np.searchsorted(rows, found.rows.ravel())
    counts = np.searchsorted(rows, found.rows.ravel(), side="right") - first
    place = np.repeat(np.arange(found.rows.size), counts)
    within = np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = lines.take(pa.array(np.repeat(first, counts) + within))
    k = max(found.rows.shape[1], 1)
    columns = {
        "query": pa.array(list(queries), pa.string()).take(pa.array(place // k)),
        "rank": pa.array((place % k + 1).astype(np.int32)),
        SCORES[metric]: pa.array(found.scores.ravel()[place]),
    }
    kept = {
        f"record_{name}" if name in columns else name: chosen[name] for name in chosen.column_names
    }
    return pa.table(columns | kept)


@dataclass(frozen=True)
class Search:
    """Looks for the k nearest rows of a pooled representation, by a metric: among all rows, or
    among those that an approximate index proposes.

    PlmEmbedError for a metric that is not known.
    """

    embeddings: "Vectors"
    k: int = 10
    metric: Metric = "cosine"
    name: str = "emb"
    index: Proposer | None = None

    def __post_init__(self) -> None:
        if self.metric not in get_args(Metric):
            raise PlmEmbedError(
                f"metric {self.metric!r}: it is one of {', '.join(get_args(Metric))}"
            )
        if whole_number("k", self.k) < 1:
            raise PlmEmbedError(f"k: {self.k} neighbors")

    def nearest(self, queries: Array) -> Neighbors:
        """Compare queries (q, D) with every row; k is at most the number of rows.

        PlmEmbedError for queries of another width, or with numbers that are not finite.
        """
        try:
            queries = np.atleast_2d(np.asarray(queries, dtype=np.float32))
        except (TypeError, ValueError):
            raise PlmEmbedError("queries are no array of numbers (q, D)") from None
        if queries.ndim != 2 or queries.shape[1] != self.embeddings.dim:
            raise PlmEmbedError(
                f"queries have the shape {queries.shape}, not (q, {self.embeddings.dim})"
            )
        if not np.isfinite(queries).all():
            raise PlmEmbedError("a query has numbers that are not finite")
        parts = [Neighbors(np.empty((0, self._k), np.int64), np.empty((0, self._k)))]
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            asked = queries[start : start + QUERIES_AT_ONCE]
            candidates = (
                self._proposed(asked, self.index) if self.index else self._candidates(asked)
            )
            parts += self._settled(asked, candidates)
        return Neighbors(*map(np.concatenate, zip(*parts, strict=True)))

    @property
    def _k(self) -> int:
        return min(self.k, len(self.embeddings))

    @property
    def width(self) -> int:
        """Candidates for each query."""
        return min((PROPOSED * self.k if self.index else self.k) + _SPARE, len(self.embeddings))

    def _proposed(self, queries: Array, index: Proposer) -> Rows:
        rows = index.candidates(queries, self.width)
        short = (rows < 0).any(axis=1)
        if short.any():
            rows[short] = self._candidates(queries[short])
        return rows

    def _candidates(self, queries: Array) -> Rows:
        return Scan(self.embeddings, self.name, self.metric, queries, self.width).best()

    def _settled(self, queries: Array, candidates: Rows) -> Iterator[Neighbors]:
        """Of each query; the candidates of as many queries as a block holds are read together."""
        at_once = max(BLOCK_BYTES // (8 * max(self.embeddings.dim, 1) * max(self.width, 1)), 1)
        for start in range(0, len(queries), at_once):
            rows = candidates[start : start + at_once]
            unique, back = np.unique(rows, return_inverse=True)
            vectors = self.embeddings.rows(unique.tolist(), self.name).astype(np.float64)
            asked = queries[start : start + at_once]
            for query, mine, places in zip(asked, rows, back.reshape(rows.shape), strict=True):
                yield self._settle(query, mine, vectors[places])

    def _settle(self, query: Array, rows: Rows, vectors: Array) -> Neighbors:
        """The k best of a query's candidates, compared once more in fp64: (1, k) each."""
        asked = query.astype(np.float64)
        scores = vectors @ asked
        if self.metric == "euclidean":
            scores = np.linalg.norm(vectors - asked, axis=1)
        elif self.metric == "cosine":
            lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(asked)
            scores = np.clip(scores / np.where(lengths > 0, lengths, 1), -1, 1)
        order = np.lexsort((rows, scores if self.metric == "euclidean" else -scores))[: self._k]
        return Neighbors(rows[None, order], scores[None, order])
