"""Nearest neighbors: every row is compared, block by block, in bounded memory.

Rows are ranked in fp32, and the best of them once more in fp64: neighbors whose scores differ by
less than fp32 can tell (some 1e-6 of them) may come in another order, or make room for each other.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError, StoreError, whole_number
from plm_embed.io.threads import spread
from plm_embed.store.hdf5 import Array, flat_rows

if TYPE_CHECKING:
    from plm_embed.reading.open import Embeddings

Metric = Literal["cosine", "dot", "euclidean"]
Neighbors = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Rows (q, k) of the k nearest of q queries, nearest first, and their scores (q, k)."""
SCORES: dict[Metric, str] = {"cosine": "similarity", "dot": "dot_product", "euclidean": "distance"}
"""Names of the scores in a table."""
BLOCK_ROWS = 1 << 10
"""Rows that are read and ranked at a time; 40 bytes for each of them and each query, at most."""
QUERIES_AT_ONCE = 256
"""More go through the rows in several passes."""
SPARE = 8
"""Candidates beside the k best: fp32 ranks them, fp64 has the last word."""


def nearest_rows(  # noqa: PLR0917
    embeddings: "Embeddings", queries: Array, k: int, metric: Metric, name: str, threads: int = 1
) -> Neighbors:
    """Compare queries (q, D) with every row of a pooled representation. k is at most the number of
    rows; of rows with equal scores the smaller number comes first.

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
    return rows, scores


def _candidates(  # noqa: PLR0917
    embeddings: "Embeddings", queries: Array, best: int, metric: Metric, name: str, threads: int
) -> NDArray[np.int64]:
    """Return the best rows of each query by fp32: (q, best), nearest first."""
    from threadpoolctl import threadpool_limits  # which only a search needs

    count, turned = len(queries), np.ascontiguousarray(queries.T)
    height = -(-min(BLOCK_ROWS, len(embeddings)) // 64) * 64

    def compare(start: int) -> NDArray[np.float32]:
        """Return (n, q) of a block of rows, larger for nearer ones; the part that all rows of a
        query have in common is left out.
        """
        stop = min(start + height, len(embeddings))
        # of one shape, whole groups of 64: so equal rows mostly have equal scores
        block = np.zeros((height, embeddings.dim), np.float32)
        _write_float32(embeddings.flat(name, np.arange(start, stop)), block[: stop - start])
        scores: NDArray[np.float32] = block @ turned
        squares = np.einsum("ij,ij->i", block, block)
        if not np.isfinite(squares).all():
            words = "holds numbers that are not finite, or whose squares are not"
            remedy = "run `plm-embed validate`"
            raise StoreError(f"{embeddings.path}: {words}", path=embeddings.path, remedy=remedy)
        if metric == "cosine":
            scores /= np.sqrt(np.where(squares > 0, squares, 1))[:, None]  # zeros are like nothing
        elif metric == "euclidean":
            scores -= squares[:, None] / 2  # -|x - y|^2 / 2 is x.y - y.y / 2 - x.x / 2
        return scores[: stop - start]

    query, row = np.repeat(np.arange(count), best), np.zeros(count * best, np.int64)
    score, worst = np.full(count * best, -np.inf, np.float32), np.full(count, -np.inf, np.float32)
    with threadpool_limits(1, user_api="blas"):  # products stay in the threads that ask for them
        starts = range(0, len(embeddings), BLOCK_ROWS)
        blocks = spread(compare, starts, threads) if threads > 1 else map(compare, starts)
        for start, scores in zip(starts, blocks, strict=True):
            place, whose = np.nonzero(scores > worst)
            query, row = np.concatenate([query, whose]), np.concatenate([row, start + place])
            score = np.concatenate([score, scores[place, whose]])
            order = np.lexsort((-score, query))  # stable: of equal scores the first rows stay
            rank = np.arange(len(order)) - np.searchsorted(query[order], query[order])
            order = order[rank < best]
            query, row, score = query[order], row[order], score[order]
            worst = score.reshape(count, best)[:, -1].copy()
    return row.reshape(count, best)


def _write_float32(values: Array, out: NDArray[np.float32]) -> None:
    """Write stored numbers as float32, and float16 by its bits: in their new places, a product
    corrects the exponents exactly. NumPy's own conversion takes seven times as long.
    """
    if values.dtype != np.float16 or (values.view(np.uint16) << 1).max() >= 0xF800:  # infinite, NaN
        out[...] = values
        return
    bits = out.view(np.int32)
    bits[...] = values.view(np.int16)
    bits <<= 13
    bits &= ~0x70000000  # copies of the sign
    out *= np.float32(2.0**112)


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
    (nearest, scores), rows = neighbors, lines["row"].to_numpy()
    first, last = (np.searchsorted(rows, nearest.ravel(), side) for side in ("left", "right"))
    place, k = np.repeat(np.arange(nearest.size), last - first), max(nearest.shape[1], 1)
    chosen = lines.take(pa.array(flat_rows(first, last - first)))
    columns = {
        "query": pa.array(list(queries), pa.string()).take(pa.array(place // k)),
        "rank": pa.array((place % k + 1).astype(np.int32)),
        SCORES[metric]: pa.array(scores.ravel()[place]),
    }
    names = [f"record_{name}" if name in columns else name for name in chosen.column_names]
    return pa.table(columns | dict(zip(names, chosen.columns, strict=True)))
