"""The comparison of the models of a campaign: one HTML file that stands by itself, offline."""

from collections.abc import Sequence
from functools import reduce
from itertools import islice
from pathlib import Path
from urllib.parse import quote

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from plm_embed.fingerprint import has_matrix
from plm_embed.io.files import size
from plm_embed.keys import Keys
from plm_embed.reading.open import Embeddings
from plm_embed.reporting.facts import Facts, device_rows
from plm_embed.reporting.maps import Vectors, component_layout, drawable, shown_records
from plm_embed.reporting.outputs import REPORT
from plm_embed.reporting.report import write_page
from plm_embed.wording import readable

COMPARISON = "comparison.html"
SEQUENCES = 5_000
"""Most sequences that are compared: the first keys, a random sample since keys are hashes."""
NEIGHBORS = 10
BLOCK = 500
"""Sequences whose neighbors are sought at a time."""


def write_comparison(models: Sequence[Facts], output: Path) -> bool:
    """Write the comparison of the models of a results folder that have pooled vectors.

    Return whether there was something to compare: two models or more, which share enough sequences.
    """
    models = [facts for facts in models if facts.rows and facts.pooled]
    samples = [_first_vectors(facts) for facts in models]
    common: Keys = reduce(np.intersect1d, [keys for keys, _ in samples] or [np.array([])])
    if len(models) < 2 or len(common) <= NEIGHBORS + 1:
        return False
    common = common[:SEQUENCES]
    chosen = [vectors[np.searchsorted(keys, common)] for keys, vectors in samples]
    near = list(map(neighbors, chosen))
    # the mean share of the neighbors of one model that are those of another
    shares = [[100 * (marks & others).sum() / marks.sum() for others in near] for marks in near]
    assert models[0].master
    with Embeddings(models[0].master) as embeddings:
        data = shown_records(embeddings, np.searchsorted(samples[0][0], common))
    write_page(
        "comparison.html.j2",
        output,
        models=list(map(_row, models)),
        names=[facts.model for facts in models],
        agreement=[
            (facts.model, *(f"{share:.1f} %" for share in row))
            for facts, row in zip(models, shares, strict=True)
        ],
        chance=NEIGHBORS / (len(common) - 1),
        neighbors=NEIGHBORS,
        sequences=len(common),
        data=data | {"maps": [component_layout(vectors)[0] for vectors in chosen], "further": []},
    )
    return True


def neighbors(vectors: Vectors) -> NDArray[np.bool_]:
    """Mark for each vector (n, D) the NEIGHBORS others with the largest cosine: (n, n)."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    marks = np.zeros((len(unit), len(unit)), dtype=bool)
    for start in range(0, len(unit), BLOCK):
        distances = -(unit[start : start + BLOCK] @ unit.T)
        np.fill_diagonal(distances[:, start:], np.inf)
        nearest = np.argpartition(distances, NEIGHBORS - 1, axis=1)[:, :NEIGHBORS]
        np.put_along_axis(marks[start : start + BLOCK], nearest, True, axis=1)
    return marks


def _first_vectors(facts: Facts) -> tuple[Keys, Vectors]:
    """Return the first keys of a master, sorted, and the vectors of its first pooled kind."""
    assert facts.master
    name = next(name for name in facts.names if not has_matrix(name))
    with Embeddings(facts.master) as embeddings:
        # twice as many: another model may have skipped some of them
        ((keys, vectors),) = islice(embeddings.iter_batches(2 * SEQUENCES, name), 1)
    return keys, drawable(vectors)


def _row(facts: Facts) -> tuple[str | int, ...]:
    """Return a link to a model's report, its vectors, their width, the size of its master, the
    tokens per second by device, the median norm and the range of norms, and whose weights it has.
    """
    assert facts.master
    report = Markup('<a href="{}/{}">{}</a>').format(quote(facts.model), REPORT, facts.model)
    speeds = [f"{speed} ({device})" for device, *_, speed in device_rows(facts.runs) if speed]
    norms = facts.norms if facts.norms and facts.norms.rows else None
    words = f"{norms.median:.4g} ({norms.min:.4g} to {norms.max:.4g})" if norms else ""
    master, weights = readable(size(facts.master)), facts.caveat or "the published ones"
    return report, facts.rows, facts.dim, master, "; ".join(speeds), words, weights
