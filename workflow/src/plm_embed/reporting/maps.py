"""The map of a report: places of the vectors in two dimensions, their colors, and the records that
a reader may look for.
"""

import base64
import importlib.util
import math
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.fingerprint import has_matrix
from plm_embed.master.tables import INDEX
from plm_embed.reading.index import RecordIndex
from plm_embed.reading.open import Embeddings
from plm_embed.reporting.outputs import skipped_records

POINTS = 50_000
"""Vectors that are drawn: the first rows, a random sample since keys are hashes."""
COUNTED = 1_000_000
"""Vectors of which the density behind the points is counted."""
GRID = 256
"""Cells of the density in each direction."""
BATCH = 10_000
"""Vectors that are read at a time for that."""
FITTED = 1_000
"""Vectors from which the principal components are computed."""
WORTH_UMAP = 1_000
"""Vectors from which on UMAP, if it is there, is worth the ten seconds that it compiles itself."""
LETTERS = 1_500_000
"""Letters of the ids, besides those of the points, that the page knows."""
VALUES = 1_000
"""Most values of a kept column that vectors are colored by."""

Vectors = NDArray[np.float32]


def map_data(embeddings: Embeddings, records: Path) -> dict[str, Any] | None:
    """Return what the script draws of the default representation of a master, with the number of
    vectors in words; None where that is not pooled, and with fewer than three vectors.

    records: the file of all records.
    """
    name, count = embeddings.resolved("emb"), min(len(embeddings), POINTS)
    if has_matrix(name) or count < 3:
        return None
    vectors = drawable(embeddings.rows(range(count), name))
    layout, project = component_layout(vectors)
    if count < len(embeddings):
        layout["density"] = _density(embeddings, name, layout, project)
    elif count >= WORTH_UMAP and importlib.util.find_spec("umap"):
        from umap import UMAP  # type: ignore[import-untyped, unused-ignore]

        places = UMAP(n_neighbors=15, n_jobs=1, random_state=1).fit_transform(vectors)
        layout = layout_of(places, ["UMAP 1", "UMAP 2"])
    further, room = [], LETTERS
    for id, place in _further_records(embeddings.records, records, count):
        room -= len(id) + 10
        if room < 0:
            break
        further.append((id, place))
    number, drawn = f"All {count:,}", ""
    if count < len(embeddings):
        number, drawn = f"{count:,} of {len(embeddings):,}", ", drawn at random"
    search = f"plm-embed search {shlex.quote(str(embeddings.path.parent))} --id "
    return {
        **shown_records(embeddings, np.arange(count)),
        "maps": [layout],
        "grid": GRID,
        "further": further,
        "search": search if room < 0 else "",
        "words": f"{number} vectors ({name}){drawn}, one for each distinct sequence.",
    }


def drawable(vectors: NDArray[Any]) -> Vectors:
    """Return vectors as float32 whose squares add up, also those that validation refuses."""
    return np.clip(np.nan_to_num(vectors.astype(np.float32)), -1e9, 1e9)


def _density(
    embeddings: Embeddings, name: str, layout: dict[str, Any], project: Callable[[Vectors], Vectors]
) -> str:
    """Return how many vectors lie where: logarithms in GRID x GRID bytes, row by row from below."""
    (left, low), (width, height) = layout["low"], layout["span"]
    limits, counts = [(low, low + height), (left, left + width)], np.zeros((GRID, GRID))
    total = min(len(embeddings), COUNTED)
    for start in range(0, total, BATCH):
        rows = range(start, min(start + BATCH, total))
        x, y = project(drawable(embeddings.rows(rows, name))).T
        counts += np.histogram2d(y, x, bins=GRID, range=limits)[0]
    logs = np.log1p(counts)
    return encode(np.round(255 * logs / (logs.max() or 1.0)).astype(np.uint8))


def component_layout(vectors: Vectors) -> tuple[dict[str, Any], Callable[[Vectors], Vectors]]:
    """Return the layout of vectors (k, D) by the first two principal components of the first of
    them, and the function from vectors to places (k, 2) in it.
    """
    center = vectors[:FITTED].mean(axis=0)
    _, values, directions = np.linalg.svd(vectors[:FITTED] - center, full_matrices=False)
    shares = 100 * values[:2] ** 2 / max((values**2).sum(), 1e-30)

    def project(vectors: Vectors) -> Vectors:
        places: Vectors = (vectors - center) @ directions[:2].T
        return places

    axes = [f"principal component {n} ({share:.0f} %)" for n, share in enumerate(shares, start=1)]
    return layout_of(project(vectors), axes), project


def layout_of(places: Vectors, axes: list[str]) -> dict[str, Any]:
    """Return places (k, 2) as whole numbers up to 65,535 between their extremes."""
    low, high = places.min(axis=0), places.max(axis=0)
    span = np.maximum(high - low, 1e-12)
    cells = np.round(65535 * (places - low) / span).astype("<u2")
    x, y = encode(cells[:, 0]), encode(cells[:, 1])
    return {"axes": axes, "low": low.tolist(), "span": span.tolist(), "x": x, "y": y}


def shown_records(embeddings: Embeddings, rows: NDArray[np.int64]) -> dict[str, Any]:
    """Return what a page says of the points of these rows (increasing): ids, and columns to color
    by, those that tell of the most points first.
    """
    firsts = first_records(embeddings, rows)
    kept = sorted(columns_of(firsts), key=lambda column: -column["known"])
    length = {"name": "length", "numbers": embeddings.lengths_of(rows).tolist(), "log": True}
    telling = sum(column["known"] >= len(rows) / 2 for column in kept)
    columns = [*kept[:telling], length, *kept[telling:]]
    return {"ids": [id or "" for id in firsts["id"].to_pylist()], "columns": columns}


def first_records(embeddings: Embeddings, rows: NDArray[np.int64]) -> pa.Table:
    """Return the first record of each of these rows (increasing) of a master, with the columns of
    the index; a kept value is that of the first record which has one, or null.
    """
    lines = embeddings.records.lines_of(rows)
    firsts = lines.take(np.unique(lines["row"].to_numpy(), return_index=True)[1])
    for place, name in enumerate(lines.column_names):
        if name not in INDEX:
            valued = lines.filter(pc.not_equal(pc.cast(lines[name], pa.string()), ""))
            matches = pc.index_in(firsts["row"], valued["row"].combine_chunks())
            firsts = firsts.set_column(place, name, valued[name].take(matches))
    return firsts


def columns_of(firsts: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the kept columns that tell vectors apart: numbers, or values with their codes; known:
    how many vectors have a value.
    """
    for name in firsts.column_names:
        texts = pc.cast(firsts[name].combine_chunks(), pa.string())
        counts = pc.value_counts(texts.drop_null()).to_pylist()
        if name in INDEX or len(counts) < 2:
            continue
        column = {"name": name, "known": len(texts) - texts.null_count}
        try:
            numbers = pc.cast(texts, pa.float64()).to_pylist()
        except pa.ArrowInvalid:
            numbers = []
        if numbers and len(counts) > 8:
            finite = [n if math.isfinite(n or 0.0) else None for n in numbers]
            yield column | {"numbers": [n and float(f"{n:.6g}") for n in finite]}
        elif len(counts) <= VALUES:
            ranked = sorted(counts, key=lambda entry: (-entry["counts"], entry["values"]))
            vocabulary = [entry["values"] for entry in ranked]
            codes = pc.index_in(texts, value_set=pa.array(vocabulary)).fill_null(len(vocabulary))
            encoded = encode(codes.to_numpy().astype("<u2"))
            yield column | {"values": vocabulary, "codes": encoded}


def _further_records(
    index: RecordIndex, records: Path, points: int
) -> Iterator[tuple[str, int | str]]:
    """Yield the records besides the first of each point, as (id, point, -1 without one, or the
    reason why it was skipped).
    """
    for id, reason, *_ in skipped_records(records):
        yield id, reason.replace("_", " ")
    unseen = np.ones(points, dtype=bool)
    for lines in index.lines(["id", "row"]):
        for id, row in zip(lines["id"].to_pylist(), lines["row"].to_pylist(), strict=True):
            if row < points and unseen[row]:
                unseen[row] = False
            else:
                yield id or "", row if row < points else -1


def encode(numbers: NDArray[Any]) -> str:
    """Return the bytes of numbers in base 64, for the script."""
    return base64.b64encode(np.ascontiguousarray(numbers).tobytes()).decode()
