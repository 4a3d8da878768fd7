"""The files that a model's campaign leaves, and the table of its skipped records."""

import csv
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc

from plm_embed.errors import delete
from plm_embed.io.files import atomic_path
from plm_embed.io.parquet import read_batches
from plm_embed.io.terminal import printable
from plm_embed.master.validation_record import PROOF, VALIDATION

CONFIG, CRATE, REPORT = "config.yaml", "ro-crate-metadata.json", "report.html"
RECORDS, SKIPPED = "records.parquet", "skipped.tsv"
SKIPPED_COLUMNS = ("id", "reason", "detail", "source", "number")
"""number: of the record in its file, from 1."""


def outputs(folder: Path, master: Path | None) -> Iterator[tuple[Path, str]]:
    """Yield the files that there are, and those that are written with the report, each with its
    content in words.
    """
    if master:
        yield master, "vectors, one row per distinct sequence in the order of the keys"
        yield master.with_suffix(".parquet"), "index: one row per record that has a vector"
    for name, content in (
        (REPORT, "this report"),
        (RECORDS, "outcome of every input record"),
        (SKIPPED, "records without a vector, and why"),
        (VALIDATION, "every check of the validation and its result"),
        (PROOF, f"checksums, for sha256sum --check {PROOF}"),
        (CONFIG, "the configuration, to repeat the run"),
        (CRATE, "provenance for machines: an RO-Crate"),
    ):
        if (folder / name).is_file() or name in (REPORT, CRATE):
            yield folder / name, content


def skipped_records(records: Path) -> Iterator[tuple[str, ...]]:
    """Yield SKIPPED_COLUMNS of each skipped record of a records.parquet, in the order of the
    input.
    """
    for table in read_batches(records, ["status", *SKIPPED_COLUMNS], delete(records)):
        skipped = table.filter(pc.equal(table["status"], "skipped")).select(SKIPPED_COLUMNS)
        for row in skipped.to_pylist():
            yield tuple("" if value is None else str(value) for value in row.values())


def write_skipped(records: Path, output: Path) -> None:
    """Write a table of all skipped records with tabs between columns, for spreadsheets."""
    with atomic_path(output) as temporary, temporary.open("w", encoding="utf-8", newline="") as to:
        lines = csv.writer(to, delimiter="\t", lineterminator="\n")
        lines.writerow(SKIPPED_COLUMNS)
        lines.writerows([printable(cell) for cell in row] for row in skipped_records(records))
