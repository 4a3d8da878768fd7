"""Records without a vector, by name: for the report's page, and as a table for spreadsheets."""

import csv
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow.compute as pc

from plm_embed.errors import delete
from plm_embed.io.files import atomic_path
from plm_embed.io.parquet import read_batches
from plm_embed.io.terminal import printable

NAME = "skipped.tsv"
"""File in the folder of the model."""
COLUMNS = ("id", "reason", "detail", "source", "number")
"""number: of the record in its file, from 1."""
LISTED = 20


def skipped_rows(records: Path) -> Iterator[tuple[str, ...]]:
    """The values of COLUMNS for each skipped record of a records.parquet, in the order of the
    input.
    """
    for table in read_batches(records, ["status", *COLUMNS], delete(records)):
        found = table.filter(pc.equal(table["status"], "skipped")).select(COLUMNS)
        for row in found.to_pylist():
            yield tuple("" if value is None else str(value) for value in row.values())


def first_skipped(records: Path) -> list[tuple[str, ...]]:
    """Return as many skipped records as the report lists."""
    return list(islice(skipped_rows(records), LISTED))


def write_skipped(records: Path, output: Path) -> None:
    """Write the table of all skipped records, tabs between columns; with its head alone when there
    are none.
    """
    with atomic_path(output) as temporary, temporary.open("w", encoding="utf-8", newline="") as to:
        lines = csv.writer(to, delimiter="\t", lineterminator="\n")
        lines.writerow(COLUMNS)
        lines.writerows([printable(one) for one in row] for row in skipped_rows(records))
