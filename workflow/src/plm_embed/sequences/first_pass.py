"""The first pass over the sequence files: the account of every record, and the accepted ones on
their way to buckets.

`deduplicate` goes over all files in one job. For very many records each file has a job of its own,
`scan`; then `split` takes up what all of them left for a range of keys.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from plm_embed import keys
from plm_embed.errors import ConfigError, StoreError
from plm_embed.io.files import sha256_file
from plm_embed.io.parquet import row_group_writer
from plm_embed.io.progress import progress
from plm_embed.io.sorting import PIECE, Range, distribute, sort_rows
from plm_embed.io.threads import Behind, quick_turns
from plm_embed.keys import range_bounds
from plm_embed.sequences import compiled_sequences
from plm_embed.sequences.alphabet import ALPHABETS, LetterCheck, are_words
from plm_embed.sequences.columns import (
    Account,
    Judged,
    accepted_schema,
    account,
    judge,
    records_schema,
    taken,
)
from plm_embed.sequences.fasta import BATCH_CHARACTERS
from plm_embed.sequences.records import Reader
from plm_embed.sequences.settings import ResiduePolicy
from plm_embed.sequences.summary import (
    SUMMARY,
    InputFile,
    ScanSummary,
    Summary,
    read_again,
    read_scan,
    write_summary,
)
from plm_embed.sequences.tables import Table

log = logging.getLogger(__name__)
BEHIND = 2
"""Pieces of work that wait for a thread."""
LARGE_BATCH = 2 * BATCH_CHARACTERS
"""Bytes of a batch, such as one of a contig or two, from which on it is sorted before the next one
is read: else several steps would hold so much at a time.
"""


@dataclass
class Tally:
    """A `Summary` that is being counted."""

    buckets: int
    keep: tuple[str, ...]
    policy: ResiduePolicy | None
    columns: tuple[str, str] | None
    records: int = 0
    accepted: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    unique: int = 0
    residues: int = 0
    lengths: Counter[int] = field(default_factory=Counter)
    inputs: list[InputFile] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)

    @classmethod
    def like(cls, other: Summary) -> Self:
        """Nothing counted yet, of what was read as that was."""
        return cls(other.buckets, other.keep, other.policy, other.columns)

    def warn(self, message: str) -> None:
        """Note a warning, and log it."""
        self.warnings.append(message)
        log.warning("warning: %s", message)

    def count(self, rows: Account) -> None:
        """Add the records of a batch."""
        self.records += rows.records.num_rows
        self.accepted += rows.accepted.num_rows
        if rows.accepted.num_rows < rows.records.num_rows:
            self.skipped.update(rows.records["reason"].drop_null().to_pylist())
        for told in rows.accepted["events"].value_counts().to_pylist():
            for event in filter(None, told["values"].split(";")):
                self.events[event.partition("=")[0]] += told["counts"]

    def add(self, other: Summary) -> None:
        """Add what was written about other records, or about other unique sequences; but no files
        of a scan, which are its own.
        """
        self.records += other.records
        self.accepted += other.accepted
        self.skipped.update(other.skipped)
        self.events.update(other.events)
        self.unique += other.unique
        self.residues += other.residues
        self.lengths.update(other.lengths)
        self.inputs.extend(other.inputs)
        self.warnings.extend(other.warnings)
        if not isinstance(other, ScanSummary):
            self.files.update(other.files)

    def summary(self) -> Summary:
        """What was counted."""
        return Summary(**self._counted())

    def scan(self, number: int) -> ScanSummary:
        """What was counted of the input of this number."""
        return ScanSummary(**self._counted(), number=number)

    def _counted(self) -> dict[str, Any]:
        return vars(self) | {"inputs": tuple(self.inputs), "warnings": tuple(self.warnings)}

    def end(self) -> None:
        """Warn when there is nothing to embed."""
        if not self.accepted:
            self.warn(f"none of the {self.records:,} records has a sequence that can be embedded")


def first_pass(
    readers: dict[int, Reader], table: Table, policy: ResiduePolicy, tally: Tally
) -> Iterator[Account]:
    """Everything that is to be told about the records, counted in `tally`; `readers` by their
    number.
    """
    size = sum(reader.bytes for reader in readers.values())
    in_c = compiled_sequences.worth_it(size)
    digests = compiled_sequences.digests if in_c else keys.digests
    with progress("read", size / 1e6, "MB") as meter:
        for source, reader in readers.items():
            done = 0
            for batch in _judged(reader, table, policy, tally):
                found = digests(batch.text, batch.ends)
                rows = account(batch, found, str(reader.path), source, table.keep)
                tally.count(rows)
                yield rows
                meter.advance((reader.bytes_read - done) / 1e6)
                done = reader.bytes_read
            tally.inputs.append(
                InputFile(
                    path=str(reader.path),
                    format=reader.format,
                    compression=reader.compression,
                    bytes=reader.bytes,
                    sha256=reader.sha256,
                    records=reader.records,
                )
            )


def _judged(reader: Reader, table: Table, policy: ResiduePolicy, tally: Tally) -> Iterator[Judged]:
    """The batches of a file. InputError when its letters are of the other kind."""
    letters = LetterCheck(ALPHABETS[policy.alphabet], reader.path)
    for batch in reader:
        if batch.first == 1 and reader.format != "fasta" and are_words(batch.residues):
            tally.warn(
                f"{reader.path}: {batch.residues[0]!r} and the like are words that repeat: is "
                f"{table.sequence} the column of sequences?"
            )
        if letters.wanted:
            letters.look(batch.residues)
        yield judge(batch, policy)


def sort(rows: pa.RecordBatch, sorting: Behind, add: Callable[[pa.RecordBatch], None]) -> None:
    """Have accepted rows added to what sorts them; when they are large, wait until that is done."""
    if rows.num_rows:
        sorting.do(add, rows)
        if rows.nbytes > LARGE_BATCH:
            sorting.wait()


def check_keep(table: Table) -> None:
    """ConfigError unless the columns to keep can be columns of the results."""
    for place, name in enumerate(table.keep):
        if why := taken(name):
            raise ConfigError(f"keep: {name}: {why}", key="keep")
        if name in table.keep[:place]:
            raise ConfigError(f"keep: {name!r} is named twice", key="keep")


class _Ranges:
    """Takes rows in any order and appends them, sorted piece by piece, to a file for each range of
    key space.
    """

    def __init__(self, paths: Sequence[Path], schema: pa.Schema, bounds: Sequence[int]) -> None:
        self._bounds = bounds
        self._rows: list[pa.RecordBatch] = []
        self._bytes = 0
        self._stack = ExitStack()
        self._ranges = [Range(path, schema) for path in paths]
        for each in self._ranges:
            self._stack.callback(each.close)

    def add(self, rows: pa.RecordBatch) -> None:
        self._rows.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= PIECE:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            distribute(sort_rows(self._rows), self._ranges, self._bounds)
        self._rows, self._bytes = [], 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def range_file(number: int) -> str:
    """The name of the file that a scan leaves for a range of keys."""
    return f"{number:04d}.arrows"


def scan(
    path: Path, number: int, output: Path, *, buckets: int, table: Table, policy: ResiduePolicy
) -> None:
    """Write the account of input file `number` (from 0), called `path`, to the folder `output`.

    records.parquet: as `deduplicate` writes it; 0000.arrows ...: the accepted records in each range
    of buckets, each batch sorted by key; last, summary.json. Needs some 400 MB of memory whatever
    the input. Errors as `deduplicate`.
    """
    check_keep(table)
    reader = Reader(path, table)
    output.mkdir(parents=True, exist_ok=True)
    (output / SUMMARY).unlink(missing_ok=True)
    tally = Tally(buckets, table.keep, policy, table.read)
    bounds = range_bounds(buckets)
    files = [output / range_file(each) for each in range(len(bounds) - 1)]
    with (
        quick_turns(),
        row_group_writer(output / "records.parquet", records_schema(table.keep)) as records,
        _Ranges(files, accepted_schema(table.keep), bounds[1:-1]) as ranges,
        Behind(BEHIND) as writing,
        Behind(BEHIND) as sorting,
    ):
        for rows in first_pass({number: reader}, table, policy, tally):
            writing.do(records.write, rows.records)
            sort(rows.accepted, sorting, ranges.add)
        sorting.do(ranges.flush)
    with ThreadPoolExecutor(BEHIND) as pool:
        tally.files = dict(
            zip((path.name for path in files), pool.map(sha256_file, files), strict=True)
        )
    tally.files["records.parquet"] = records.sha256
    write_summary(output, tally.scan(number))


def read_scans(folders: Sequence[Path]) -> list[ScanSummary]:
    """The summaries of the scans of all inputs. StoreError unless all are whole and come in the
    inputs' order.
    """
    stated = [read_scan(folder) for folder in folders]
    for number, (folder, summary) in enumerate(zip(folders, stated, strict=True)):
        if summary.number != number:
            raise StoreError(
                f"{folder}: is the scan of input {summary.number}, not of {number}",
                remedy=read_again(folder, "scan"),
                path=folder,
            )
    return stated
