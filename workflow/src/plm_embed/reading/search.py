"""Nearest neighbors: every row is compared, block by block, in bounded memory.

Rows are ranked in fp32, and the best of them once more in fp64: neighbors whose scores differ by
less than fp32 can tell (some 1e-6 of them) may come in another order, or make room for each other.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError, StoreError, whole_number
from plm_embed.io.threads import spread
from plm_embed.store.hdf5 import Array

if TYPE_CHECKING:
    from plm_embed.reading.open import Embeddings

Metric = Literal["cosine", "dot", "euclidean"]
SCORES: dict[Metric, str] = {"cosine": "similarity", "dot": "dot_product", "euclidean": "distance"}
"""Names of the scores in a table."""
BLOCK_ROWS = 1 << 12
"""Rows that are read and ranked at a time; 40 bytes for each of them and each query, at most."""
PIECE_BYTES = 5 << 18
"""Bytes of rows, as fp32, that are converted and compared at a time, in a core's cache."""
QUERIES_AT_ONCE = 256
"""More go through the rows in several passes."""
SPARE = 8
"""Candidates beside the k best: fp32 ranks them, fp64 has the last word."""
SURELY_FINITE = 2.0**32
"""Bound of a sum of squares: `as_float32` makes at least 65,536 of infinity and NaN."""


class Neighbors(NamedTuple):
    """The k nearest rows of each of q queries, nearest first.

    rows: (q, k). scores: (q, k) fp64; cosine and dot product are larger for nearer rows, euclidean
    distances smaller. Of rows with equal scores the smaller number comes first.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]


def nearest_rows(  # noqa: PLR0917
    embeddings: "Embeddings", queries: Array, k: int, metric: Metric, name: str, threads: int = 1
) -> Neighbors:
    """Compare queries (q, D) with every row of a pooled representation; k is at most the number of
    rows.

    PlmEmbedError for an unknown metric, and for queries of another width or with numbers that are
    not finite; StoreError for such rows.
    """
    if metric not in get_args(Metric):
        raise PlmEmbedError(f"metric: {metric!r} is not one of {', '.join(get_args(Metric))}")
    k = min(whole_number("k", k, above_zero=True), len(embeddings))
    whole_number("threads", threads, above_zero=True)
    queries = np.atleast_2d(np.asarray(queries, dtype=np.float32))
    if queries.ndim != 2 or queries.shape[1] != embeddings.dim:
        raise PlmEmbedError(f"queries have the shape {queries.shape}, not (q, {embeddings.dim})")
    if not np.isfinite(queries).all():
        raise PlmEmbedError("a query has numbers that are not finite")
    rows, scores = np.empty((len(queries), k), np.int64), np.empty((len(queries), k))
    width = min(k + SPARE, len(embeddings))
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        some = queries[start : start + QUERIES_AT_ONCE]
        candidates = _candidates(embeddings, some, width, metric, name, threads)
        for place, near in enumerate(candidates, start):
            exact = _exact(queries[place], embeddings.rows(near, name), metric)
            order = np.lexsort((near, exact if metric == "euclidean" else -exact))[:k]
            rows[place], scores[place] = near[order], exact[order]
    return Neighbors(rows, scores)


def _candidates(  # noqa: PLR0917
    embeddings: "Embeddings", queries: Array, best: int, metric: Metric, name: str, threads: int
) -> NDArray[np.int64]:
    """Return the best rows of each query by fp32: (q, best), nearest first."""
    from threadpoolctl import threadpool_limits  # which only a search needs

    count, dim = len(queries), embeddings.dim
    # of one shape, in which equal rows have equal scores: whole groups of 64
    piece = min(max(PIECE_BYTES // (4 * dim) // 64, 1) * 64, BLOCK_ROWS)
    turned = np.array(queries.T, order="C")
    if metric == "euclidean":
        turned *= 2  # 2 x.y - y.y: the part of -|x - y|^2 that differs from row to row

    def compare(start: int) -> NDArray[np.float32]:
        """Return (n, q) of a block of rows, larger for nearer ones; the part that all rows of a
        query have in common is left out.
        """
        vectors = embeddings.rows(range(start, min(start + BLOCK_ROWS, len(embeddings))), name)
        height = -(-len(vectors) // piece) * piece
        scores, squares = np.empty((height, count), np.float32), np.empty(height, np.float32)
        block = np.zeros((piece, dim), np.float32)
        for first in range(0, len(vectors), piece):
            some = slice(first, first + piece)
            as_float32(vectors[some], block[: len(vectors) - first])
            np.matmul(block, turned, out=scores[some])
            np.einsum("ij,ij->i", block, block, out=squares[some])
        doubtful = not squares.max(initial=0) < SURELY_FINITE  # also of NaN
        if doubtful and not (np.isfinite(vectors).all() and np.isfinite(squares).all()):
            raise StoreError(
                f"{embeddings.path}: holds numbers that are not finite, or whose squares are not",
                remedy="run `plm-embed validate`",
                path=embeddings.path,
            )
        if metric == "cosine":
            scores /= np.sqrt(np.where(squares > 0, squares, 1))[:, None]  # zeros are like nothing
        elif metric == "euclidean":
            scores -= squares[:, None]
        return scores[: len(vectors)]

    query, row = np.repeat(np.arange(count), best), np.zeros(count * best, np.int64)
    score, worst = np.full(count * best, -np.inf, np.float32), np.full(count, -np.inf, np.float32)
    with threadpool_limits(1, user_api="blas"):  # products stay in the threads that ask for them
        starts = range(0, len(embeddings), BLOCK_ROWS)
        blocks = spread(compare, starts, threads) if threads > 1 else map(compare, starts)
        for start, scores in zip(starts, blocks, strict=True):
            better = np.flatnonzero(scores > worst)
            if not len(better):
                continue
            place, whose = np.divmod(better, count)
            query, row = np.concatenate([query, whose]), np.concatenate([row, start + place])
            score = np.concatenate([score, scores.ravel()[better]])
            order = np.lexsort((-score, query))  # stable: of equal scores the first rows stay
            rank = np.arange(len(order)) - np.searchsorted(query[order], query[order])
            order = order[rank < best]
            query, row, score = query[order], row[order], score[order]
            worst = score.reshape(count, best)[:, -1].copy()
    return row.reshape(count, best)


_SIGN_AND_REST = np.int32(0x8FFFE000 - 2**32)
_BIASES_APART = np.float32(2.0**112)  # 127 - 15


def as_float32(values: Array, out: NDArray[np.float32]) -> None:
    """Write stored numbers, all finite, as float32 into `out`.

    Half precision by shifting its bits to their places, and correcting the exponent by a product,
    which is exact: NumPy's own conversion takes six times as long (20 ms against 3 for 17 M numbers
    on an AMD EPYC).
    """
    if values.dtype != "<f2":
        out[...] = values
        return
    shifted = out.view(np.int32)
    shifted[...] = np.ascontiguousarray(values).view(np.int16)
    shifted <<= 13
    shifted &= _SIGN_AND_REST
    out *= _BIASES_APART


def _exact(query: Array, vectors: Array, metric: Metric) -> NDArray[np.float64]:
    """Return the scores (n,) of a query (D,) and vectors (n, D), by fp64."""
    query, vectors = query.astype(np.float64), vectors.astype(np.float64)
    scores: NDArray[np.float64] = vectors @ query
    if metric == "euclidean":
        scores = np.linalg.norm(vectors - query, axis=1)
    elif metric == "cosine":
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
        scores = np.clip(scores / np.where(lengths > 0, lengths, 1), -1, 1)
    return scores


def neighbor_table(
    neighbors: Neighbors, queries: Sequence[str], metric: Metric, lines: pa.Table
) -> pa.Table:
    """Return a line for each record of each neighbor: query, rank (from 1), the score, and its
    columns.

    queries: the names of the q queries. lines: what is known of the rows, sorted by the column
    `row`; several lines may have one row.
    """
    rows = lines["row"].to_numpy()
    first = np.searchsorted(rows, neighbors.rows.ravel())
    counts = np.searchsorted(rows, neighbors.rows.ravel(), side="right") - first
    place = np.repeat(np.arange(neighbors.rows.size), counts)
    within = np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = lines.take(pa.array(np.repeat(first, counts) + within))
    k = max(neighbors.rows.shape[1], 1)
    columns = {
        "query": pa.array(list(queries), pa.string()).take(pa.array(place // k)),
        "rank": pa.array((place % k + 1).astype(np.int32)),
        SCORES[metric]: pa.array(neighbors.scores.ravel()[place]),
    }
    details = {
        f"record_{name}" if name in columns else name: chosen[name] for name in chosen.column_names
    }
    return pa.table(columns | details)
