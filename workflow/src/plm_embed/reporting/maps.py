"""The map of a report: places of the vectors in two dimensions, their colors, and the records that
a reader may look for.
"""

import base64
import importlib.util
import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.errors import delete
from plm_embed.fingerprint import has_matrix
from plm_embed.io.parquet import read_batches, read_schema
from plm_embed.master.tables import INDEX
from plm_embed.reading.open import Embeddings

POINTS = 50_000
"""Vectors that are drawn: the first rows of the master. Keys are hashes, so any range of them is a
random sample.
"""
COUNTED = 1_000_000
"""Vectors of which the density behind the points is counted."""
GRID = 256
"""Cells of the density in each direction."""
FITTED = 10_000
"""Vectors from which the principal components are computed."""
WORTH_UMAP = 1_000
"""Vectors from which on UMAP, which compiles itself for some ten seconds, is worth its time."""
LETTERS = 1_500_000
"""Letters of the ids, besides those of the points, that the page knows."""
VALUES = 1_000
"""Most values of a kept column that vectors are colored by."""

Vectors = NDArray[np.float32]


class Map(NamedTuple):
    """The map as the page draws it; data: for the script, words: how many vectors are drawn."""

    data: dict[str, Any]
    words: str


def make_map(embeddings: Embeddings, index: Path, records: Path) -> Map | None:
    """Return the map of the first pooled representation; None with fewer than three vectors.

    index: one row per record with a vector; records: all records.
    """
    pooled = [name for name in embeddings.names if not has_matrix(name)]
    count = min(len(embeddings), POINTS)
    if not pooled or count < 3:
        return None
    vectors = _read(embeddings, 0, count, pooled[0])
    layouts = [_components(embeddings, pooled[0], vectors)]
    if count >= WORTH_UMAP and importlib.util.find_spec("umap"):
        from umap import UMAP  # type: ignore[import-untyped, unused-ignore]

        umap = UMAP(n_neighbors=min(15, count - 1), n_jobs=1, random_state=1)
        layouts.insert(0, layout_of("UMAP", umap.fit_transform(vectors), ["UMAP 1", "UMAP 2"]))
    firsts = first_records(index, range(count))
    firsts = firsts.take(pc.index_in(pa.array(range(count)), value_set=firsts["row"]))
    ids = [id or "" for id in firsts["id"].to_pylist()]
    further, room = [], LETTERS
    for id, place in _further_records(index, records, ids):
        room -= len(id) + 10
        if room < 0:
            break
        further.append((id, place))
    columns = list(columns_of(firsts))
    data = {
        "layouts": layouts,
        "grid": GRID,
        "ids": ids,
        "lengths": embeddings.lengths_of(np.arange(count)).tolist(),
        "columns": columns,
        # a column that says little comes after the length
        "before_length": sum(column["known"] >= count / 2 for column in columns),
        "further": further,
        "complete": room >= 0,
    }
    drawn = f"All {count:,} vectors"
    if count < len(embeddings):
        drawn = f"{count:,} of {len(embeddings):,} vectors, drawn at random"
    return Map(data, f"{drawn}, one for each distinct sequence.")


def _read(embeddings: Embeddings, start: int, stop: int, name: str) -> Vectors:
    return np.nan_to_num(embeddings.rows(list(range(start, stop)), name).astype(np.float32))


def _components(embeddings: Embeddings, name: str, vectors: Vectors) -> dict[str, Any]:
    """Return the layout by the principal components of vectors, the first ones of these
    embeddings; with the density of all where these are more.
    """
    center, axes, shares = principal_components(vectors[:FITTED])
    labels = [f"component {n + 1} ({100 * share:.0f} %)" for n, share in enumerate(shares)]
    places = ((vectors - center) @ axes).astype(np.float32)
    layout = layout_of("principal components", places, labels)
    if len(embeddings) > len(vectors):
        low, span = np.array(layout["low"]), np.array(layout["span"])
        limits = [(low[axis], low[axis] + span[axis]) for axis in (1, 0)]
        total, counts = min(len(embeddings), COUNTED), np.zeros((GRID, GRID))
        for start in range(0, total, FITTED):
            batch = _read(embeddings, start, min(start + FITTED, total), name)
            around = (batch - center) @ axes
            counts += np.histogram2d(around[:, 1], around[:, 0], bins=GRID, range=limits)[0]
        logs = np.log1p(counts)
        layout["density"] = encode(np.round(255 * logs / (logs.max() or 1.0)).astype(np.uint8))
    return layout


def principal_components(vectors: Vectors) -> tuple[Vectors, Vectors, tuple[float, float]]:
    """Return the mean (D,), the first two principal axes (D, 2) and their shares of the variance
    of vectors (k, D).
    """
    center = vectors.mean(axis=0)
    centered = (vectors - center).astype(np.float64)
    # of the smaller matrix of products: a fourth of the time of a singular value decomposition
    tall = len(centered) >= centered.shape[1]
    values, first = np.linalg.eigh(centered.T @ centered if tall else centered @ centered.T)
    axes = first[:, :-3:-1] if tall else centered.T @ first[:, :-3:-1]
    axes = axes / np.maximum(np.linalg.norm(axes, axis=0), 1e-30)
    axes *= np.where(axes[np.abs(axes).argmax(axis=0), [0, 1]] < 0, -1, 1)
    total = float(values.sum()) or 1.0
    return center, axes.astype(np.float32), (values[-1] / total, values[-2] / total)


def layout_of(name: str, places: Vectors, axes: list[str]) -> dict[str, Any]:
    """Return places (k, 2) as whole numbers up to 65,535 between their extremes, whose ratio
    keeps the shape.
    """
    low, high = places.min(axis=0), places.max(axis=0)
    span = np.maximum(high - low, 1e-12)
    cells = np.round(65535 * (places - low) / span).astype("<u2")
    x, y = encode(cells[:, 0]), encode(cells[:, 1])
    return {
        "name": name, "axes": axes, "low": low.tolist(), "span": span.tolist(), "x": x, "y": y
    }  # fmt: skip


def first_records(index: Path, rows: Collection[int]) -> pa.Table:
    """Return the first record of each of these rows of the master, in the order of the rows."""
    names = read_schema(index, delete(index)).names
    columns = ["id", "row", *(name for name in names if name not in INDEX)]
    rows_array = pa.array(sorted(rows), pa.int64())
    chosen = [
        pa.table(table.filter(pc.is_in(table["row"], value_set=rows_array)))
        for table in read_batches(index, columns, delete(index))
    ]
    together = pa.concat_tables(chosen).combine_chunks()
    _, firsts = np.unique(together["row"].to_numpy(), return_index=True)
    return together.take(firsts)


def columns_of(firsts: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the kept columns that tell vectors apart, those with the most values first: numbers, or
    values with their codes; known: how many vectors have a value.
    """
    for name in sorted(firsts.column_names[2:], key=lambda name: firsts[name].null_count):
        values = firsts[name].combine_chunks()
        texts = pc.cast(values, pa.string())
        texts = pc.if_else(pc.equal(texts, ""), None, texts)
        counts = pc.value_counts(texts.drop_null()).to_pylist()
        if len(counts) < 2:
            continue
        column = {"name": name, "known": len(texts) - texts.null_count}
        try:
            numbers = None if pa.types.is_boolean(values.type) else pc.cast(texts, pa.float64())
        except pa.ArrowInvalid:
            numbers = None
        if numbers is not None and len(counts) > 8:
            finite = [n if math.isfinite(n or 0.0) else None for n in numbers.to_pylist()]
            yield column | {"numbers": [n and float(f"{n:.6g}") for n in finite]}
        elif len(counts) <= VALUES:
            ranked = sorted(counts, key=lambda entry: (-entry["counts"], entry["values"]))
            vocabulary = [entry["values"] for entry in ranked]
            codes = pc.index_in(texts, value_set=pa.array(vocabulary)).fill_null(len(vocabulary))
            encoded = encode(codes.to_numpy().astype("<u2"))
            yield column | {"values": vocabulary, "codes": encoded}


def _further_records(index: Path, records: Path, ids: list[str]) -> Iterator[tuple[str, int | str]]:
    """Yield the records besides the first of each point, whose ids are given, as (id, point, -1
    without one, or the reason why it was skipped).
    """
    for table in read_batches(records, ["id", "status", "reason"], delete(records)):
        skipped = table.filter(pc.equal(table["status"], "skipped"))
        reasons = skipped["reason"].to_pylist()
        for id, reason in zip(skipped["id"].to_pylist(), reasons, strict=True):
            yield id or "", str(reason).replace("_", " ")
    unseen = np.ones(len(ids), dtype=bool)
    for table in read_batches(index, ["id", "row"], delete(index)):
        for id, row in zip(table["id"].to_pylist(), table["row"].to_pylist(), strict=True):
            if row < len(ids) and unseen[row] and ids[row] == (id or ""):
                unseen[row] = False
            else:
                yield id or "", row if row < len(ids) else -1


def encode(numbers: NDArray[Any]) -> str:
    """Return the bytes of numbers in base 64, for the script."""
    return base64.b64encode(np.ascontiguousarray(numbers).tobytes()).decode()
