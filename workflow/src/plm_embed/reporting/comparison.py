"""The comparison of the models of a campaign: one HTML file that stands by itself, offline."""

from collections.abc import Sequence
from functools import reduce
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plm_embed.fingerprint import has_matrix
from plm_embed.io.files import size
from plm_embed.keys import Keys
from plm_embed.reading.open import Embeddings
from plm_embed.reporting.facts import Facts, device_time, speed
from plm_embed.reporting.maps import Vectors, component_layout, drawable, encode, shown_records
from plm_embed.reporting.report import write_page
from plm_embed.wording import readable

COMPARISON = "comparison.html"
SEQUENCES = 5_000
"""Most sequences that are compared: the first keys. Keys are hashes, so these are a random
sample.
"""
NEIGHBORS = 10
_BLOCK = 500
Indices = NDArray[np.int64]


def write_comparison(models: Sequence[Facts], output: Path) -> bool:
    """Write the comparison of the models of a results folder that have pooled vectors.

    Return whether there was something to compare: two models or more, which share enough sequences.
    """
    models = [facts for facts in models if facts.rows and not all(map(has_matrix, facts.names))]
    samples = [_first_vectors(facts) for facts in models]
    common: Keys = reduce(np.intersect1d, [keys for keys, _ in samples] or [np.array([])])
    if len(models) < 2 or len(common) <= NEIGHBORS + 1:
        return False
    common, neighbors, maps = common[:SEQUENCES], [], []
    for facts, (keys, vectors) in zip(models, samples, strict=True):
        chosen = vectors[np.searchsorted(keys, common)]
        neighbors.append(nearest(chosen))
        layout, _ = component_layout(chosen)
        near = encode(neighbors[-1].astype("<u2"))
        maps.append({"name": facts.model, "layouts": [layout], "neighbors": near})
    assert models[0].master
    with Embeddings(models[0].master) as embeddings:
        records = shown_records(embeddings, np.searchsorted(samples[0][0], common))
    write_page(
        "comparison.html.j2",
        output,
        f"Comparison of {len(models)} models",
        ("Models", "Neighbors", "Maps"),
        results=models[0].results,
        models=[_row(facts) for facts in models],
        names=[facts.model for facts in models],
        agreement=[[agreement(first, second) for second in neighbors] for first in neighbors],
        chance=NEIGHBORS / (len(common) - 1),
        neighbors=NEIGHBORS,
        sequences=len(common),
        data=records | {"maps": maps, "neighbors": NEIGHBORS, "further": [], "complete": True},
    )
    return True


def nearest(vectors: Vectors) -> Indices:
    """Return the indices (n, NEIGHBORS) of the other vectors (n, D) with the largest cosine."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    blocks = []
    for start in range(0, len(unit), _BLOCK):
        cosine = unit[start : start + _BLOCK] @ unit.T
        rows = np.arange(len(cosine))
        cosine[rows, start + rows] = -np.inf
        top = np.argpartition(-cosine, NEIGHBORS - 1, axis=1)[:, :NEIGHBORS]
        order = np.argsort(-np.take_along_axis(cosine, top, axis=1), axis=1, kind="stable")
        blocks.append(np.take_along_axis(top, order, axis=1))
    return np.concatenate(blocks)


def agreement(first: Indices, second: Indices) -> float:
    """Return the mean share of the neighbors (n, k) of one model that are those of another."""
    return float((first[:, :, None] == second[:, None, :]).any(axis=2).mean())


def _first_vectors(facts: Facts) -> tuple[Keys, Vectors]:
    """Return the first keys of a master, sorted, and the vectors of its first pooled kind."""
    assert facts.master
    name = next(name for name in facts.names if not has_matrix(name))
    with Embeddings(facts.master) as embeddings:
        # twice as many: another model may have skipped some of them
        ((keys, vectors),) = islice(embeddings.iter_batches(2 * SEQUENCES, name), 1)
    return keys, drawable(vectors)


def _row(facts: Facts) -> dict[str, str]:
    """Return a model's line in the table."""
    assert facts.master
    norms = facts.norms
    return {
        "model": facts.model,
        "vectors": f"{facts.rows:,}",
        "width": f"{facts.dim:,}",
        "master": readable(size(facts.master)),
        "tokens/s of a worker": speed(facts.runs),
        "device time": device_time(facts.runs),
        "median norm (range)": (
            f"{norms.median:.4g} ({norms.min:.4g} to {norms.max:.4g})" if norms else ""
        ),
        "device": ", ".join(sorted({run.worker.device for run in facts.runs})),
        "weights": facts.caveat or "the published ones",
    }
