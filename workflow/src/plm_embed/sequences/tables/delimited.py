"""CSV and TSV text: parsed by Arrow wherever it reads what Python reads, else by Python."""

import codecs
import csv
from collections.abc import Iterator
from io import BytesIO, TextIOWrapper
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from plm_embed.errors import InputError
from plm_embed.io.streams import Stream, as_utf8, line_blocks, so_far
from plm_embed.io.threads import ahead
from plm_embed.sequences.batch import (
    BATCH_CHARACTERS,
    BATCH_RECORDS,
    BLOCKS_AHEAD,
    Batch,
    Faults,
    batch_of,
)
from plm_embed.sequences.formats import LARGEST_RECORD
from plm_embed.sequences.tables import Table
from plm_embed.sequences.tables.cells import (
    MISSING,
    NO_VALUE,
    REPEATED_HEADER,
    in_batches,
    repeats_header,
)

_CHARACTER_BYTES = 4  # at most, in UTF-8
_LF, _CR, _QUOTE = b'\n\r"'


class DelimitedText:
    """The rows of CSV or TSV text whose header has the columns of `table`; read once.

    `records` counts the rows read so far. InputError for a quote that is never closed, and for a
    row of `LARGEST_RECORD` characters.
    """

    def __init__(self, path: Path, delimiter: str, table: Table) -> None:
        self._path, self._delimiter, self._table = path, delimiter, table
        self.records = 0
        self._names: list[str] = []  # of the columns, once the header is read
        self._line = 0  # lines read so far
        self._row = 0  # characters so far of the row that is being read

    def batches(self, stream: Stream) -> Iterator[Batch]:
        # one thread reads, another one parses
        blocks = line_blocks(stream.read1, BATCH_CHARACTERS, _CHARACTER_BYTES * LARGEST_RECORD)
        yield from ahead(self._parsed(ahead(blocks, BLOCKS_AHEAD)), BLOCKS_AHEAD)

    def _parsed(self, blocks: Iterator[bytes]) -> Iterator[Batch]:
        first = (block.removeprefix(codecs.BOM_UTF8) for block in islice(blocks, 1))
        for block in chain(first, blocks):
            plain = self._plain(block) if self._names else None
            if plain is None:
                yield from self._by_line(block, blocks)
            else:
                self._line += _line_ends(block)
                for batch in plain:
                    self.records += batch.count
                    yield batch

    def _plain(self, block: bytes) -> Iterator[Batch] | None:
        """The rows of a block as Arrow parses them, many times faster; None where Python's parser
        might read something else, or has something to say.
        """
        if (
            len(block) >= LARGEST_RECORD
            or block.startswith(codecs.BOM_UTF8)
            or not _well_quoted(block, self._delimiter)
        ):
            return None
        utf8 = as_utf8(block)
        places = [str(self._names.index(name)) for name in self._table.columns]
        try:
            found = arrow_csv.read_csv(
                pa.BufferReader(utf8),
                arrow_csv.ReadOptions(
                    use_threads=False,
                    block_size=len(utf8) + 1,
                    column_names=[str(place) for place in range(len(self._names))],
                ),
                arrow_csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                arrow_csv.ConvertOptions(
                    check_utf8=False,
                    column_types=dict.fromkeys(places, pa.string()),
                    strings_can_be_null=False,
                    include_columns=places,
                ),
            )
        except pa.ArrowInvalid:  # a ragged row
            return None
        parts = [column.chunk(0) for column in found.columns]
        cells = pa.record_batch(parts, names=[*self._table.columns])
        return in_batches(self.records + 1, cells, self._table)

    def _by_line(self, block: bytes, blocks: Iterator[bytes]) -> Iterator[Batch]:
        """The rows of a block, whatever it holds. A row that goes on in the next of `blocks` takes
        all of that along.
        """
        rows = csv.reader(self._lines(block, blocks), delimiter=self._delimiter, strict=True)
        try:
            if not self._names:
                self._names = [name.strip() for name in next((row for row in rows if row), [])]
                self._row = 0
            yield from self._rows(rows)
        except csv.Error as error:
            raise InputError(
                f"{self._path}, line {self._line}{so_far(self.records)}: {error}; is there "
                "a quote that is never closed?",
                path=self._path,
                record=self.records + 1,
                line=self._line,
            ) from None

    def _lines(self, block: bytes, blocks: Iterator[bytes]) -> Iterator[str]:
        """The lines of a block, and of the next ones for as long as a row goes on. InputError when
        those of one row are longer than a record may be.
        """
        while block:
            text = TextIOWrapper(BytesIO(block), "utf-8", "plm_embed.latin1", newline="")
            while line := text.readline(LARGEST_RECORD):
                self._line += 1
                self._row += len(line)
                if self._row >= LARGEST_RECORD:
                    raise InputError(
                        f"{self._path}, line {self._line}{so_far(self.records)}: a row of more "
                        f"than {LARGEST_RECORD:,} characters; "
                        "is there a quote that is never closed?",
                        path=self._path,
                        record=self.records + 1,
                        line=self._line,
                    )
                yield line
            block = next(blocks, b"") if self._row else b""

    def _rows(self, rows: Iterator[list[str]]) -> Iterator[Batch]:
        columns, table = len(self._names), self._table
        wanted = table.id, table.sequence, *table.keep
        id_place, place, *kept = map(self._names.index, wanted)
        taken: list[list[str]] = []  # wanted cells of the batch under way
        faults: Faults = {}
        characters, line = 0, self._line

        def batch() -> Batch:
            ids, residues, *kept_cells = zip(*taken, strict=True)
            first = self.records - len(taken) + 1
            return batch_of(first, ids, ids, residues, kept=kept_cells, faults=faults)

        for row in rows:
            line, start, self._row = self._line, line + 1, 0
            if not row:
                continue
            self.records += 1
            residues = ""
            if len(row) != columns:
                where = f"line {line}" if line == start else f"lines {start} to {line}"
                detail = f"{where}: {len(row)} fields instead of {columns}"
                faults[len(taken)] = "ragged_row", detail
                row.extend([""] * (columns - len(row)))
            else:
                residues = row[place]
                if residues.strip() in MISSING:
                    faults[len(taken)] = NO_VALUE
                elif repeats_header(row[id_place], residues, table):
                    faults[len(taken)] = REPEATED_HEADER
            characters += sum(map(len, row))
            taken.append([row[id_place], residues, *(row[at] for at in kept)])
            if characters > BATCH_CHARACTERS or len(taken) == BATCH_RECORDS:
                yield batch()
                taken, faults, characters = [], {}, 0
        if taken:
            yield batch()


def _line_ends(block: bytes) -> int:
    letters = np.frombuffer(block + b" ", np.uint8)
    bare = (letters[:-1] == _CR) & (letters[1:] != _LF) if b"\r" in block else 0
    return block.count(b"\n") + int(np.count_nonzero(bare))


def _well_quoted(block: bytes, delimiter: str) -> bool:
    """Whether each quote, in rows that begin with `block`, opens or closes a whole cell or is one
    of two that stand for one: then there is only one way to read them.
    """
    if b'"' not in block:
        return True
    letters = np.frombuffer(block, np.uint8)
    quotes = np.flatnonzero(letters == _QUOTE)
    outside = np.zeros(256, dtype=np.bool_)
    outside[[*b'"\r\n', ord(delimiter)]] = True
    opening, closing = quotes[::2], quotes[1::2]
    before = outside[letters[opening - 1]] | (opening == 0)
    after = outside[letters[np.minimum(closing + 1, len(letters) - 1)]]
    return len(quotes) % 2 == 0 and bool(before.all() and after.all())
