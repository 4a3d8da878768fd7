"""The first pass over the sequence files: the account of every record, and the accepted ones on
their way to buckets.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from plm_embed.errors import ConfigError
from plm_embed.io.progress import progress
from plm_embed.io.threads import Behind
from plm_embed.keys import digests
from plm_embed.sequences.alphabet import ALPHABETS, LetterCheck, are_words
from plm_embed.sequences.batch import BATCH_CHARACTERS
from plm_embed.sequences.columns import Account, Judged, account, judge, taken
from plm_embed.sequences.records import Reader
from plm_embed.sequences.settings import ResiduePolicy
from plm_embed.sequences.summary import InputFile, Summary
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

    def summary(self) -> Summary:
        """Return what was counted."""
        return Summary(
            **vars(self) | {"inputs": tuple(self.inputs), "warnings": tuple(self.warnings)}
        )

    def end(self) -> None:
        """Warn when there is nothing to embed."""
        if not self.accepted:
            self.warn(f"none of the {self.records:,} records has a sequence that can be embedded")


def first_pass(readers: Sequence[Reader], policy: ResiduePolicy, tally: Tally) -> Iterator[Account]:
    """Yield everything that is to be told about the records, counted in `tally`."""
    size = sum(reader.bytes for reader in readers)
    with progress("read", size / 1e6, "MB") as meter:
        for source, reader in enumerate(readers):
            done = 0
            for batch in _judged(reader, policy, tally):
                found = digests(batch.text, batch.ends)
                rows = account(batch, found, str(reader.path), source, tally.keep)
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


def _judged(reader: Reader, policy: ResiduePolicy, tally: Tally) -> Iterator[Judged]:
    """Yield the batches of a file, with a column for each that any file keeps. InputError when its
    letters are of the other kind.
    """
    letters = LetterCheck(ALPHABETS[policy.alphabet], reader.path)
    for batch in reader:
        if batch.first == 1 and reader.format != "fasta" and are_words(batch.residues):
            tally.warn(
                f"{reader.path}: {batch.residues[0]!r} and the like are words that repeat: is "
                f"{reader.table.sequence} the column of sequences?"
            )
        if letters.wanted:
            letters.look(batch.residues)
        rows = judge(batch, policy)
        own = dict(zip(reader.table.keep, rows.kept, strict=False))
        if own and tuple(own) != tally.keep:
            none = pa.nulls(len(rows.ids), pa.string())
            rows = rows._replace(kept=[own.get(name, none) for name in tally.keep])
        yield rows


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
