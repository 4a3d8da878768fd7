"""The files that a model's campaign leaves, and the table of its skipped records."""

import csv
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow.compute as pc

from plm_embed.errors import delete
from plm_embed.fingerprint import SPANS, has_matrix
from plm_embed.io.files import atomic_path
from plm_embed.io.parquet import read_batches
from plm_embed.io.terminal import printable
from plm_embed.master.validation_record import PROOF, VALIDATION

CONFIG, CRATE, REPORT = "config.yaml", "ro-crate-metadata.json", "report.html"
RECORDS, SKIPPED = "records.parquet", "skipped.tsv"
SKIPPED_COLUMNS = ("id", "reason", "detail", "source", "number")
"""number: of the record in its file, from 1."""
_PARQUET, _FRAME = "application/vnd.apache.parquet", "pandas.read_parquet(...)"


class Output(NamedTuple):
    """A file in the folder of a model; opening: a line of Python or of a shell, or words."""

    path: Path
    content: str
    opening: str
    media_type: str


def outputs(folder: Path, master: Path | None) -> Iterator[Output]:
    """Yield the files that there are, and those that are written with the report."""
    if master:
        content = "vectors, one row per distinct sequence in the order of the keys"
        yield Output(master, content, "plm_embed.open(...)", "application/x-hdf5")
        content = "index: one row per record that has a vector"
        yield Output(master.with_suffix(".parquet"), content, _FRAME, _PARQUET)
    editor, json, tsv = "a text editor", "application/json", "text/tab-separated-values"
    for name, content, opening, media_type in (
        (REPORT, "this report", "any browser", "text/html"),
        (RECORDS, "outcome of every input record", _FRAME, _PARQUET),
        (SKIPPED, "records without a vector, and why", "a spreadsheet", tsv),
        (VALIDATION, "every check of the validation and its result", editor, json),
        (PROOF, "checksums of the result", f"sha256sum --check {PROOF}", "text/plain"),
        (CONFIG, "the configuration, to repeat it", editor, "application/yaml"),
        (CRATE, "provenance for machines: an RO-Crate", editor, json),
    ):
        if (folder / name).is_file() or name in (REPORT, CRATE):
            yield Output(folder / name, content, opening, media_type)


def reader(names: Collection[str]) -> str:
    """Return the method of opened embeddings that reads representations with these names."""
    if not all(map(has_matrix, names)):
        return "get"
    return "per_token" if SPANS in names else "per_residue"


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
