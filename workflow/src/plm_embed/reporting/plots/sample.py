"""Some vectors of a master for the report's maps: their places, and what they can be colored by."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.errors import delete
from plm_embed.io.parquet import read_batches, read_schema
from plm_embed.master.gather import INDEX_COLUMNS
from plm_embed.reporting.plots.layout import Points, principal_components, umap

SAMPLE = 2000
"""Vectors on the maps, evenly spaced in the order of the keys, which is a random order of the
sequences.
"""
COLORS = 8
"""Categories with a color of their own; the rest is one more."""
QUANTILES = 5
OTHER, NONE = "other", "no value"


@dataclass(frozen=True)
class Records:
    """For some rows of a master, by row: the id of one of its records, and values of the kept
    columns by name.
    """

    ids: dict[int, str]
    values: dict[str, dict[int, str]]


@dataclass(frozen=True)
class Coloring:
    """A way to color the sample: a symbol for each vector, and what each symbol means, with how
    many have it.
    """

    name: str
    symbols: tuple[str, ...]
    meanings: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True)
class Sample:
    """Some vectors (k, D), their principal components (k, 2), and for each an id and a length.

    colorings: the one that says most comes first; values: of the kept columns, one for each vector,
    '' where there is none.
    """

    vectors: Points
    components: Points
    explained: tuple[float, float]
    ids: tuple[str, ...]
    lengths: NDArray[np.int32]
    colorings: tuple[Coloring, ...]
    values: dict[str, tuple[str, ...]]

    @property
    def norms(self) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.linalg.norm(self.vectors, axis=1)
        return found

    def layout(self) -> Points:
        """UMAP coordinates (k, 2); takes seconds."""
        return umap(self.vectors, self.components)


def records_of(index: Path, rows: Iterable[int]) -> Records:
    """The first record of each of these rows, and the first value of each kept column."""
    wanted = pa.array(sorted(rows), pa.int64())
    kept = [name for name in read_schema(index, delete(index)).names if name not in INDEX_COLUMNS]
    found = Records({}, {name: {} for name in kept})
    for batch in read_batches(index, ["id", "row", *kept], delete(index)):
        table = batch.filter(pc.is_in(batch["row"], value_set=wanted))
        numbers = table["row"].to_pylist()
        for row, id in zip(numbers, table["id"].to_pylist(), strict=True):
            found.ids.setdefault(row, id)
        for name in kept:
            for row, value in zip(numbers, table[name].to_pylist(), strict=True):
                if value:
                    found.values[name].setdefault(row, str(value))
    return found


def take_sample(
    records: Records,
    rows: Sequence[int],
    vectors: Points,
    lengths: NDArray[np.int32],
) -> Sample:
    """A sample of the vectors (k, D) at these rows."""
    components, explained = principal_components(vectors)
    return Sample(
        vectors=vectors,
        components=components,
        explained=explained,
        ids=tuple(records.ids.get(row, "") for row in rows),
        lengths=lengths,
        colorings=tuple(_colorings(records.values, rows, lengths)),
        values={
            name: tuple(found.get(row, "") for row in rows)
            for name, found in records.values.items()
        },
    )


def _colorings(
    values: dict[str, dict[int, str]], rows: Sequence[int], lengths: NDArray[np.int32]
) -> Iterator[Coloring]:
    """By every kept column that tells vectors apart, those first whose most frequent values cover
    most rows, and by length, which comes before columns that cover less than half of them.
    """
    columns = {name: [found.get(row, NONE) for row in rows] for name, found in values.items()}
    covered = {"": len(rows) / 2}
    for name, found in columns.items():
        counts = Counter(value for value in found if value != NONE)
        if len(counts) > 1:
            covered[name] = sum(count for _, count in counts.most_common(COLORS))
    for name in sorted(covered, key=lambda name: -covered[name]):
        yield _by_value(name, columns[name]) if name else _by_length(lengths)


def _by_value(name: str, values: Sequence[str]) -> Coloring:
    counts = Counter(value for value in values if value != NONE)
    named = sorted(counts, key=lambda value: (-counts[value], value))[:COLORS]
    symbol = {value: f"s{at}" for at, value in enumerate(named)}
    found = tuple(symbol.get(value, f"s{COLORS}") for value in values)
    rest = OTHER if len(counts) > COLORS else NONE
    if NONE in values and rest == OTHER:
        rest = f"{OTHER}, or {NONE}"
    return Coloring(name, found, _meanings(found, [*named, rest]))


def _by_length(lengths: NDArray[np.int32]) -> Coloring:
    """Five classes of about equally many vectors."""
    steps = np.quantile(lengths, np.linspace(0, 1, QUANTILES + 1)[1:-1], method="higher")
    edges = np.unique(steps)
    group = np.searchsorted(edges, lengths, side="right")
    names = []
    for at in range(len(edges) + 1):
        mine = lengths[group == at]
        names.append(f"{mine.min():,} to {mine.max():,} residues" if len(mine) else "")
    found = tuple(f"sq{at}" for at in group.tolist())
    return Coloring("length", found, _meanings(found, names, "sq"))


def _meanings(
    symbols: Sequence[str], names: Sequence[str], prefix: str = "s"
) -> tuple[tuple[str, str, int], ...]:
    counts = Counter(symbols)
    made = [(f"{prefix}{at}", name) for at, name in enumerate(names)]
    # what is left over has the last symbol, however many there are before it
    made[-1:] = [(f"s{COLORS}", names[-1])] if prefix == "s" else made[-1:]
    return tuple((symbol, name, counts[symbol]) for symbol, name in made if counts[symbol])
