"""Sequence files to batches of records: FASTA, CSV, TSV and Parquet, plain or compressed, streamed.

Records are numbered from 1: FASTA records, or table rows without the header line and blank lines.
Text before the first '>' of a FASTA file is one record with the number 0 and a fault.
"""

import io
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import assert_never

from plm_embed.errors import InputError
from plm_embed.io.streams import Stream, as_text, named_errors
from plm_embed.io.threads import ahead
from plm_embed.sequences import compiled_sequences
from plm_embed.sequences.fasta import (
    BATCH_CHARACTERS,
    BATCH_RECORDS,
    BLOCKS_AHEAD,
    Batch,
    PlainBatch,
    TooLarge,
    parse_plain,
    record_blocks,
)
from plm_embed.sequences.formats import LARGEST_RECORD, Kind, sniff
from plm_embed.sequences.tables import Table
from plm_embed.sequences.tables.delimited import DelimitedText
from plm_embed.sequences.tables.parquet import ParquetTable

_BLANK = "\ud800"  # a lone surrogate: no decoder gives one, and no parser takes it for white space


class Reader:
    """One input file; iterate it once for its batches.

    Made, it has looked at the start of the file only, and raises what `sniff` raises. Iterated, it
    raises InputError for data that are damaged or cut short (naming the number of complete records
    before), and for a table without rows. `records` and `bytes_read` (of `bytes`) grow meanwhile;
    `sha256` of the file is known after the last batch. A FASTA record of more than `LARGEST_RECORD`
    bytes is a fault, a table row of as many characters an error.
    """

    def __init__(self, path: Path, table: Table) -> None:
        kind = sniff(path, table.columns)
        self.path, self.table = path, table
        self.format, self.compression = kind.format, kind.compression
        self.bytes = path.stat().st_size
        self.bytes_read = 0
        self.sha256 = ""
        self._source = _source(path, kind, table)

    @property
    def records(self) -> int:
        return self._source.records

    def __iter__(self) -> Iterator[Batch | PlainBatch]:
        with Stream(self.path) as stream:
            batches: Iterator[Batch | PlainBatch] = self._source.batches(stream)
            while True:
                with named_errors(self.path, lambda: self.records):
                    batch = next(batches, None)
                self.bytes_read = stream.bytes_read
                if batch is None:
                    break
                yield batch
            with named_errors(self.path, lambda: self.records):
                self.sha256 = stream.finish()
            self.bytes_read = stream.bytes_read
        if not self.records:
            raise InputError(
                f"{self.path}: the table has a header and no rows: no record 1",
                path=self.path,
                record=1,
            )


def _source(path: Path, kind: Kind, table: Table) -> "_Fasta | DelimitedText | ParquetTable":
    match kind.format:
        case "fasta":
            return _Fasta(path.stat().st_size)
        case "csv" | "tsv":
            return DelimitedText(path, kind.delimiter, table)
        case "parquet":
            return ParquetTable(path, table)
        case _:
            assert_never(kind.format)


class _Fasta:
    """The records of a FASTA stream of so many bytes; read once. `records` counts those of the
    batches given.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.records = 0

    def batches(self, stream: Stream) -> Iterator[Batch | PlainBatch]:
        # one thread reads, another one parses
        blocks = ahead(record_blocks(stream.read1, BATCH_CHARACTERS), BLOCKS_AHEAD)
        in_c = compiled_sequences.worth_it(self._size)
        parse = compiled_sequences.parse_plain if in_c else parse_plain
        for batch in ahead(_parsed(blocks, parse), BLOCKS_AHEAD):
            self.records += batch.count
            yield batch


def _parsed(
    blocks: Iterator[bytes | TooLarge], parse: Callable[[bytes, int], PlainBatch | None]
) -> Iterator[Batch | PlainBatch]:
    number = 1
    for block in blocks:
        if isinstance(block, TooLarge):
            found: Iterable[Batch | PlainBatch] = [_left_out(block, number)]
        else:
            plain = parse(block, number)
            found = [plain] if plain else _by_line(block, number)
        for batch in found:
            number += batch.count if batch.first else 0
            yield batch


def _by_line(block: bytes, number: int) -> Iterator[Batch]:
    """The records of a block, numbered from `number`, whatever it holds."""
    # takes long to load, and seldom is it needed
    from Bio.SeqIO.FastaIO import SimpleFastaParser

    text = as_text(io.BytesIO(block), newline=None)
    header, strays = "", 0
    for header in text:
        if header.startswith(">"):
            break
        strays += bool(header.strip())
    if strays:
        yield Batch(
            0, [""], [""], [""], faults={0: ("text_before_first_header", f"lines: {strays}")}
        )
    if not header.startswith(">"):
        return
    batch, characters = Batch(number), 0
    for title, residues in SimpleFastaParser(_keep_blanks(chain([header], text))):  # type: ignore[no-untyped-call]
        name = title.split(None, 1)
        batch.ids.append(name[0] if name else "")
        batch.headers.append(title)
        batch.residues.append(residues.replace(_BLANK, " "))
        characters += len(title) + len(residues)
        if characters > BATCH_CHARACTERS or len(batch.ids) == BATCH_RECORDS:
            yield batch
            batch, characters = Batch(batch.first + len(batch.ids)), 0
    if batch.ids:
        yield batch


def _left_out(record: TooLarge, number: int) -> Batch:
    """The record of this number without its residues."""
    line = as_text(io.BytesIO(record.head), newline=None).readline()
    header = line[1:].rstrip()
    detail = f"{record.size:,} bytes, more than {LARGEST_RECORD:,}" + "; the header is cut" * (
        not line.endswith("\n")
    )
    return Batch(
        number,
        (header.split(None, 1) or [""])[:1],
        [header],
        [""],
        faults={0: ("too_large", detail)},
    )


def _keep_blanks(lines: Iterable[str]) -> Iterator[str]:
    """Residue lines in which the blanks that SimpleFastaParser would drop without a word are
    `_BLANK`.
    """
    for line in lines:
        body = line.removesuffix("\n")
        bare = body.rstrip()
        yield (
            line
            if line[0] == ">"
            else bare.replace(" ", _BLANK) + _BLANK * (len(body) - len(bare)) + "\n"
        )
