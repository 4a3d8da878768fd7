"""An approximate index of a master, for more than some ten million rows: FAISS proposes candidates,
and `nearest` compares these exactly, so that scores are never approximate, only which rows are
found.

Rows fall into about sqrt(n) cells, and each is kept in four bits per number (IVF and RaBitQ: Gao
and Long, Proc. ACM Manag. Data 2, 167, 2024, doi:10.1145/3654970), which needs no training but of
the cells. The file lies beside the master, with a note that says of which master it is, and how
many of the true neighbors it found in a trial.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError, StoreError, extra
from plm_embed.io.files import atomic_path
from plm_embed.io.json_files import read_sealed, write_sealed
from plm_embed.io.progress import progress
from plm_embed.reading.master import Embeddings
from plm_embed.reading.rows import Rows
from plm_embed.reading.search.nearest import PROPOSED, Search
from plm_embed.reading.search.scan import Metric
from plm_embed.reading.vectors import Vectors
from plm_embed.store.float32 import as_float32
from plm_embed.store.hdf5 import Array

LEAST = 1000
"""Rows to train on; what an index saves shows at a thousand times as many."""
TRIAL, TRIED = 10, 200
"""Recall is measured on so many neighbors of so many rows."""
FEW = "rows are compared in no time; an index is for millions of them: search without one"
_PER_CELL = 40  # rows to train on; FAISS wants 39
_ROWS = 1 << 14
_SEED = 7


@dataclass(frozen=True)
class Note:
    """What an index is of, and how good it is.

    master: the master's `identity`. recall: the share of the TRIAL nearest rows of TRIED rows that
    it found when it looked into `probed` of its `cells`. bytes: its size.
    """

    master: str
    representation: str
    metric: Metric
    cells: int
    probed: int
    recall: float
    bytes: int


def index_file(embeddings: Embeddings) -> Path:
    """Where the index of a master lies; its note has .json at the end."""
    return embeddings.path.with_suffix(".faiss")


def _note_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


class Approximate:
    """The index of a master, open for questions.

    StoreError when there is none, when it is damaged, or of another master, representation or
    metric.
    """

    def __init__(self, embeddings: Vectors, metric: Metric, name: str) -> None:
        if not isinstance(embeddings, Embeddings):
            raise PlmEmbedError(f"{embeddings.path}: a store has no index", path=embeddings.path)
        path, name = index_file(embeddings), embeddings.resolved(name)
        if not path.is_file() and len(embeddings) < LEAST:
            raise PlmEmbedError(
                f"{embeddings.path}: {len(embeddings):,} {FEW}", path=embeddings.path
            )
        make = f"plm-embed index {embeddings.path}"
        again = f"make it again: {make}"
        note = read_sealed(_note_file(path), Note, "the note of an index", f"make it: {make}")
        if not path.is_file() or path.stat().st_size != note.bytes:
            raise StoreError(f"{path}: missing, or cut short", path=path, remedy=again)
        if note.master != embeddings.identity:
            raise StoreError(f"{path}: the index of another master", path=path, remedy=again)
        if (note.metric, note.representation) != (metric, name):
            raise StoreError(
                f"{path}: an index for {note.metric} of {note.representation}, not for {metric} "
                f"of {name}",
                path=path,
                remedy=f"{again} --metric {metric} --name {name}, or search without it",
            )
        with extra():
            import faiss
        self._index: Any
        try:
            self._index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP)
        except RuntimeError as error:
            raise StoreError(f"{path}: damaged ({error})", path=path, remedy=again) from None
        faiss.extract_index_ivf(self._index).nprobe = note.probed
        self._metric = metric

    def candidates(self, queries: NDArray[np.float32], count: int) -> Rows:
        """(q, count) rows that may be the nearest, -1 where it found fewer."""
        return _asked(self._index, _prepared(queries, self._metric), count)


def build(path: Path, metric: Metric = "cosine", name: str = "emb", recall: float = 0.95) -> Note:
    """Make the index of the master at `path`, in the memory of its codes and of a sample of rows.

    recall: so many cells are probed as it takes to find this share of the true neighbors in the
    trial. PlmEmbedError for few rows, and for the metric dot, by which cells have no sense.
    """
    with extra():
        import faiss
    if metric == "dot":
        raise PlmEmbedError(
            "an index is for cosine or euclidean", remedy="by dot, search without one"
        )
    with Embeddings(path) as embeddings:
        count, dim = embeddings.shape
        if count < LEAST:
            raise PlmEmbedError(f"{embeddings.path}: {count:,} {FEW}", path=embeddings.path)
        search = Search(embeddings, TRIAL + 1, metric, embeddings.resolved(name))
        cells = 1 << round(np.log2(count) / 2)
        # rotated at random, so that no number means more than another
        index: Any = faiss.index_factory(dim, f"RR{dim},IVF{cells},RaBitQ4", faiss.METRIC_L2)
        inside = faiss.extract_index_ivf(index)
        inside.cp.min_points_per_centroid = 1  # no warnings
        random = np.random.default_rng(_SEED)
        sample = random.choice(count, min(count, cells * _PER_CELL), replace=False)
        vectors = embeddings.rows(np.sort(sample).tolist(), search.name)
        index.train(_prepared(as_float32(vectors), metric))
        with progress("index", count, "rows") as meter:
            for _, block in embeddings.iter_batches(_ROWS, search.name):
                index.add(_prepared(as_float32(block), metric))
                meter.advance(len(block))
        found = _trial(index, inside, search, random, recall)
        final = index_file(embeddings)
        _note_file(final).unlink(missing_ok=True)
        # by a path, a full disk would be a RuntimeError of its own
        with atomic_path(final) as temporary, temporary.open("wb") as file:
            writer = faiss.PyCallbackIOWriter(file.write)  # type: ignore[attr-defined]
            faiss.write_index(index, writer)
        size = final.stat().st_size
        note = Note(
            embeddings.identity, search.name, metric, cells, int(inside.nprobe), found, size
        )
        write_sealed(_note_file(final), note)
        return note


def _trial(
    index: Any, inside: Any, search: Search, random: np.random.Generator, wanted: float
) -> float:
    """The recall, after `inside.nprobe` was raised until it is at least as wanted, or all cells are
    probed. A row itself, which any index finds, does not count.
    """
    count = len(search.embeddings)
    rows = np.sort(random.choice(count, min(TRIED, count), replace=False))
    queries = as_float32(search.embeddings.rows(rows.tolist(), search.name))
    true = search.nearest(queries).rows
    for probed in _doubling(inside.nlist):
        inside.nprobe = probed
        proposed = _asked(index, _prepared(queries, search.metric), PROPOSED * TRIAL)
        hits, total = 0, 0
        for row, nearest, candidates in zip(rows, true, proposed, strict=True):
            others = nearest[nearest != row][:TRIAL]
            hits, total = hits + int(np.isin(others, candidates).sum()), total + len(others)
        if hits >= wanted * total:
            break
    return hits / total


def _doubling(last: int) -> Iterator[int]:
    probed = 1
    while probed < last:
        yield probed
        probed *= 2
    yield last


def _asked(index: Any, queries: Array, count: int) -> Rows:
    rows: Rows = index.search(queries, count)[1]
    return rows


def _prepared(vectors: NDArray[np.float32], metric: Metric) -> NDArray[np.float32]:
    """As they are indexed: for cosine of unit length, whose distances have the order of cosines."""
    vectors = np.ascontiguousarray(vectors, np.float32)
    if metric == "euclidean":
        return vectors
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: NDArray[np.float32] = (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return unit
