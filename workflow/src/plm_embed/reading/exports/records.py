"""What an export writes: the records of an index, or a part of them, batch by batch, and the files
and folders that it goes to.
"""

import csv
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from plm_embed.errors import PlmEmbedError, UnknownIdError
from plm_embed.fingerprint import has_matrix
from plm_embed.io.files import atomic_path, temporary_prefix
from plm_embed.io.parquet import record_batches
from plm_embed.io.progress import Meter
from plm_embed.reading.exports.file_names import FileNames
from plm_embed.reading.find import gather_again
from plm_embed.reading.master import Embeddings
from plm_embed.store.hdf5 import Array
from plm_embed.wording import did_you_mean, some

RECORDS_AT_ONCE = 4096
NAMES = ("name", "id", "source", "number")


@dataclass(frozen=True)
class Part:
    """Which records: those of these ids (None: all) whose columns have these values, as text."""

    ids: frozenset[str] | None = None
    where: Mapping[str, str] = field(default_factory=dict)

    def mask(self, columns: pa.RecordBatch) -> Any:
        """Of each line, whether its record belongs to the part."""
        found = pa.repeat(pa.scalar(True), columns.num_rows)
        if self.ids is not None:
            found = pc.is_in(columns["id"], pa.array(self.ids, pa.string()))
        for name, value in self.where.items():
            equal = pc.equal(columns[name].cast(pa.string()), str(value))
            found = pc.and_(found, equal.fill_null(False))
        return found


@dataclass(frozen=True)
class Batch:
    """Some records: their lines of the index."""

    columns: pa.RecordBatch

    def __getitem__(self, name: str) -> Any:
        return self.columns[name].to_pylist()


@dataclass(frozen=True)
class Records:
    """The records of a part of a master, and the representation that is asked for.

    PlmEmbedError for a column that the index lacks, for ids that are not there, and for a part
    without records.
    """

    embeddings: Embeddings
    name: str
    part: Part

    def __post_init__(self) -> None:
        for column, value in self.part.where.items():
            if column not in self.schema.names:
                raise PlmEmbedError(
                    f"{self.embeddings.index}: no column {column!r}"
                    f"{did_you_mean(column, self.schema.names)}; the columns are "
                    f"{', '.join(self.schema.names)}",
                    path=self.embeddings.index,
                )
            if not isinstance(value, str | int | float):
                raise PlmEmbedError(f"where: {column}: {value!r} is not one value, as text")
        if self.part != Part() and not self.count:
            raise PlmEmbedError(
                f"{self.embeddings.index}: no record is chosen", path=self.embeddings.index
            )

    @cached_property
    def schema(self) -> pa.Schema:
        """Of the index."""
        return pq.read_schema(self.embeddings.index)

    @cached_property
    def count(self) -> int:
        """How many records."""
        if self.part == Part():
            return int(pq.read_metadata(self.embeddings.index).num_rows)
        columns, count = list({"id", *self.part.where}), 0
        seen: set[str] = set()
        for lines in record_batches(
            self.embeddings.index, columns, RECORDS_AT_ONCE, gather_again(self.embeddings.index)
        ):
            count += pc.sum(self.part.mask(lines)).as_py() or 0
            seen.update((self.part.ids or frozenset()).intersection(lines["id"].to_pylist()))
        if absent := sorted((self.part.ids or frozenset()) - seen):
            raise UnknownIdError(
                f"{self.embeddings.path}: no vector for {some(absent)}; records.parquet says what "
                "became of a record",
                path=self.embeddings.path,
            )
        return count

    def batches(self, meter: Meter) -> Iterator[Batch]:
        for chosen in self._lines(None):
            if chosen.num_rows:
                yield Batch(chosen)
            meter.advance(chosen.num_rows)

    def ids(self) -> pa.ChunkedArray:
        """Of all records, in memory."""
        lines = self._lines(list({"id", *self.part.where}))
        return pa.chunked_array([chosen["id"] for chosen in lines], pa.string())

    def _lines(self, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        index = self.embeddings.index
        for lines in record_batches(index, columns, RECORDS_AT_ONCE, gather_again(index)):
            yield lines if self.part == Part() else lines.filter(self.part.mask(lines))

    def vectors(self, batch: Batch) -> Array:
        """Of the batch's records (k, D)."""
        return self.embeddings.rows(batch["row"], self.name)

    def attributes(self) -> dict[str, str]:
        """What the vectors are, for formats that have room for it."""
        return {
            "model_name": str(self.embeddings.metadata["model_name"]),
            "fingerprint": self.embeddings.fingerprint.to_json(),
            "representation": self.name,
        }

    def named(
        self, output: Path, meter: Meter, longest: int
    ) -> Generator[tuple[Batch, list[tuple[int, str]]]]:
        """Batches, and of each the places of the records to write and their names. The map of the
        names is written too.
        """
        names = FileNames(longest)
        with table(beside(output, "names"), *NAMES) as write:
            for batch in self.batches(meter):
                chosen = []
                columns = (batch["id"], batch["row"], batch["source"], batch["number"])
                for place, (id, row, source, number) in enumerate(zip(*columns, strict=True)):
                    name = names.new(id, row)
                    if name is None:
                        continue
                    if name != id:
                        write([name, id, source, number])
                    chosen.append((place, name))
                yield batch, chosen

    def values(self, output: Path, meter: Meter, longest: int) -> Generator[tuple[str, str, Array]]:
        """The name, the id and the vector (D,) or matrix (L, D) of every record that has a name."""
        with closing(self.named(output, meter, longest)) as batches:
            for batch, chosen in batches:
                rows, ids = batch["row"], batch["id"]
                vectors = None if has_matrix(self.name) else self.vectors(batch)
                for place, name in chosen:
                    if vectors is None:
                        yield name, ids[place], self.embeddings.matrix(rows[place], self.name)
                    else:
                        yield name, ids[place], vectors[place]


def beside(output: Path, what: str) -> Path:
    return output.with_name(f"{output.name}.{what}.tsv")


@contextmanager
def table(path: Path, *columns: str) -> Iterator[Callable[[Iterable[object]], object]]:
    """A tab-separated file with a header: a function that writes a line to it."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(columns)
        yield writer.writerow


@contextmanager
def atomic_folder(final: Path) -> Iterator[Path]:
    """A folder that is renamed to `final` when the block succeeds and removed when it fails."""
    temporary = final.with_name(temporary_prefix() + final.name)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        temporary.rename(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def without_nul(text: str) -> str:
    """Text as HDF5 can hold it."""
    return text.replace("\0", "%00")
