"""Tables to batches: CSV and TSV text, parsed by Arrow wherever it reads what Python reads, and
Parquet.
"""

import csv
from collections.abc import Iterator
from io import BytesIO, TextIOWrapper
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from plm_embed.errors import InputError
from plm_embed.io.streams import BLOCK, BOM, Stream, as_utf8, blocks, so_far
from plm_embed.io.threads import ahead
from plm_embed.sequences.records import LARGEST_RECORD, MOST_RECORDS, Batch, text_and_ends
from plm_embed.sequences.residues import SEPARATOR, Faults
from plm_embed.sequences.settings import Table

MISSING = frozenset({"NaN", "nan", "N/A", "None", "null", "NULL", "<NA>"})
NO_VALUE = ("missing_value", None)  # NA is a peptide
_LONGEST_MISSING = max(map(len, MISSING))
_ROWS = 8_192
"""Parsed by Python, or read from a Parquet file, at a time."""
_QUOTE, _SPACE, _TILDE = b'" ~'
_DROPPED = frozenset({"too_large", "ragged_row"})  # faults of records whose cells are not kept


def _batches(
    first: int, cells: pa.RecordBatch, table: Table, ragged: Faults | None = None
) -> Iterator[Batch]:
    """Yield rows from number `first` on, of which `cells` has the columns as text."""
    for start in range(0, len(cells), MOST_RECORDS):
        rows = cells.slice(start, MOST_RECORDS)
        ids, residues, *columns = (rows[name] for name in (table.id, table.sequence, *table.keep))
        ids = ids.fill_null("")
        faults = _faults(ids, residues, table.id, table.sequence)
        if table.structure:
            residues, unequal = _interleaved(residues, rows[table.structure])
            faults = unequal | faults
        residues = residues.fill_null("")
        if table.partner:
            partners = rows[table.partner]
            faults |= _faults(ids, partners, table.id, table.partner)
            residues = pc.binary_join_element_wise(residues, partners.fill_null(""), SEPARATOR)
        faults |= ragged or {}
        if dropped := [place for place in faults if faults[place][0] in _DROPPED]:
            mask = np.zeros(len(rows), np.bool_)
            mask[dropped] = True
            residues = pc.if_else(pa.array(mask), "", residues)
        yield Batch(first + start, ids, ids, residues, tuple(columns), faults)


def _interleaved(
    residues: pa.StringArray, structures: pa.StringArray
) -> tuple[pa.StringArray, Faults]:
    """Return each residue with its 3Di state behind it, as in MdEvVp, and the places of rows that
    have not one for each. Where there is no structure the residues stay alone.
    """
    pairs, faults = list[str](), Faults()
    columns = zip(residues.to_pylist(), structures.to_pylist(), strict=True)
    for place, (cell, structure) in enumerate(columns):
        if cell is None or structure is None or structure.strip() in {"", *MISSING}:
            pairs.append(cell or "")
            continue
        letters, states = "".join(cell.upper().split()), "".join(structure.lower().split())
        pairs.append("".join(map("".join, zip(letters, states, strict=False))))
        if len(letters) != len(states):
            detail = f"{len(letters):,} residues, {len(states):,} 3Di letters"
            faults[place] = "unlike_lengths", detail
    return pa.array(pairs, pa.string()), faults


def _faults(ids: pa.StringArray, cells: pa.StringArray, id: str, name: str) -> Faults:
    """Return the places of residues that are missing, too large, or a header: the row between
    tables that were joined names its columns, of which most would pass for a peptide. id, name: the
    columns of the ids and of these residues.
    """
    faults: Faults = dict.fromkeys(np.flatnonzero(cells.is_null()).tolist(), NO_VALUE)
    text, ends = text_and_ends(cells.fill_null(""))
    codes, lengths = np.frombuffer(text, np.uint8), np.diff(ends, prepend=0)
    doubtful = (lengths <= _LONGEST_MISSING) | (lengths > LARGEST_RECORD)
    doubtful |= pc.equal(cells, name).fill_null(False).to_numpy(False)
    filled = np.flatnonzero(lengths)
    outer = codes[[ends[filled] - 1, ends[filled] - lengths[filled]]]
    # blanks around a word, of whatever kind
    doubtful[filled] |= ((outer <= _SPACE) | (outer > _TILDE)).any(axis=0)
    for place in np.flatnonzero(doubtful & (lengths > 0)).tolist():
        value = cells[place].as_py()
        both = [text.lstrip("\ufeff").strip() for text in (ids[place].as_py(), value)]
        if value.strip() in MISSING:
            faults[place] = NO_VALUE
        elif both == [id, name]:
            faults[place] = "repeated_header", None
        elif len(value) > LARGEST_RECORD:
            faults[place] = "too_large", f"{len(value):,} characters, more than {LARGEST_RECORD:,}"
    return faults


class DelimitedText:
    """The rows of CSV or TSV text whose header has the columns of `table`; read once.

    InputError for a quote that is never closed, and for a row of `LARGEST_RECORD` characters.
    """

    def __init__(self, path: Path, delimiter: str, table: Table) -> None:
        self._path, self._delimiter, self._table = path, delimiter, table
        self._names: list[str] = []  # of the columns, once the header is read
        self._rows = self._lines = 0  # read so far
        self._row = 0  # characters of a row that has begun

    def batches(self, stream: Stream) -> Iterator[Batch]:
        cut = blocks(stream.pieces, BLOCK, _last_line, 4 * LARGEST_RECORD)  # bytes of UTF-8
        parts = ahead((part for part, _ in cut), 1)  # one thread reads, another one parses
        first = next(parts, b"").removeprefix(BOM)
        header = first.find(b"\n") + 1
        parts = filter(None, chain([first[:header], first[header:]], parts))
        for block in parts:
            if self._names and (cells := self._by_arrow(block)) is not None:
                self._lines += block.count(b"\n")
                if b"\r" in block:
                    self._lines += block.count(b"\r") - block.count(b"\r\n")
                yield from _batches(self._rows + 1, cells, self._table)
                self._rows += len(cells)
                continue
            for rows, ragged in self._by_python(block, parts):
                columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
                cells = pa.record_batch(columns, [*self._table.columns])
                yield from _batches(self._rows + 1, cells, self._table, ragged)
                self._rows += len(rows)

    def _by_arrow(self, block: bytes) -> pa.RecordBatch | None:
        """Return the cells of a block; None where Python's parser might read something else, or has
        something to say.
        """
        if (
            len(block) >= LARGEST_RECORD
            or block.startswith(BOM)
            or not _well_quoted(block, self._delimiter)
        ):
            return None
        text = as_utf8(block)
        places = [str(self._names.index(name)) for name in self._table.columns]
        try:
            columns = arrow_csv.read_csv(
                pa.BufferReader(text),
                arrow_csv.ReadOptions(
                    use_threads=False,
                    block_size=len(text) + 1,
                    column_names=[str(place) for place in range(len(self._names))],
                ),
                arrow_csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                arrow_csv.ConvertOptions(
                    check_utf8=False,
                    column_types=dict.fromkeys(places, pa.string()),
                    strings_can_be_null=False,
                    include_columns=places,
                ),
            ).columns
        except pa.ArrowInvalid:  # a ragged row
            return None
        return pa.record_batch([column.chunk(0) for column in columns], [*self._table.columns])

    def _by_python(
        self, block: bytes, blocks: Iterator[bytes]
    ) -> Iterator[tuple[list[list[str]], Faults]]:
        """Yield some rows at a time of a block, whatever it holds: the cells of the columns of the
        table, and which rows are ragged. A row that goes on in the next of `blocks` takes all of
        that along.
        """
        rows = csv.reader(self._text_lines(block, blocks), delimiter=self._delimiter, strict=True)
        cells: list[list[str]] = []
        ragged: Faults = {}
        characters = 0
        try:
            if not self._names:
                self._names = [name.strip() for name in next(filter(None, rows), [])]
                self._row = 0
            count, line = len(self._names), self._lines
            places = [self._names.index(name) for name in self._table.columns]
            for row in rows:
                start, line, self._row = line + 1, self._lines, 0
                if not row:
                    continue
                if len(row) != count:
                    where = f"line {line}" if line == start else f"lines {start} to {line}"
                    detail = f"{where}: {len(row)} fields instead of {count}"
                    ragged[len(cells)] = "ragged_row", detail
                    row.extend([""] * (count - len(row)))
                characters += sum(map(len, row))
                cells.append([row[place] for place in places])
                if characters > BLOCK or len(cells) == _ROWS:
                    yield cells, ragged
                    cells, ragged, characters = [], {}, 0
        except csv.Error as error:
            records = self._rows + len(cells)
            raise InputError(
                f"{self._path}, line {self._lines}{so_far(records)}: {error}; is there a quote "
                "that is never closed?",
                path=self._path,
                record=records + 1,
                line=self._lines,
            ) from None
        if cells:
            yield cells, ragged

    def _text_lines(self, block: bytes, blocks: Iterator[bytes]) -> Iterator[str]:
        """Yield the lines of a block, and of the next ones for as long as a row goes on."""
        while block:
            for line in TextIOWrapper(BytesIO(block), "utf-8", "plm_embed.latin1", newline=""):
                self._lines += 1
                self._row += len(line)
                if self._row > LARGEST_RECORD:
                    raise csv.Error(f"a row of more than {LARGEST_RECORD:,} characters")
                yield line
            block = next(blocks, b"") if self._row else b""


def _last_line(text: bytes) -> int:
    """Return where the last line ends of which it is known: a CR may be half an end."""
    return max(text.rfind(b"\n"), text.rfind(b"\r", 0, -1)) + 1


def _well_quoted(block: bytes, delimiter: str) -> bool:
    """Tell whether each quote, in rows that begin with `block`, opens or closes a whole cell or is
    one of two that stand for one: then there is only one way to read them.
    """
    if b'"' not in block:
        return True
    codes = np.frombuffer(block, np.uint8)
    quotes = np.flatnonzero(codes == _QUOTE)
    outside = np.isin(np.arange(256), [*b'"\r\n', ord(delimiter)])
    opening, closing = quotes[::2], quotes[1::2]
    before = outside[codes[opening - 1]] | (opening == 0)
    after = outside[codes[np.minimum(closing + 1, len(codes) - 1)]]
    return len(quotes) % 2 == 0 and bool(before.all() and after.all())


class ParquetTable:
    """The rows of a Parquet file; read once.

    Made, it has looked at the file's columns. InputError for a damaged file, for missing columns,
    and for those that are no text.
    """

    def __init__(self, path: Path, table: Table) -> None:
        self._path, self._table = path, table
        try:
            schema = pq.read_schema(path)
        except (pa.ArrowException, OSError) as error:
            message = f"{path}: the Parquet file is damaged or cut short: {_first_line(error)}"
            raise InputError(message, path=path) from None
        names = [name.strip() for name in schema.names]
        table.check(path, names)
        self._columns = {name: schema.names[names.index(name)] for name in table.columns}
        for name, column in self._columns.items():
            if pa.types.is_nested(kind := schema.field(column).type):
                raise InputError(
                    f"{path}: column {name!r} holds {kind}, not text",
                    path=path,
                    remedy="join each list into one string" if pa.types.is_list(kind) else "",
                )

    def batches(self, stream: Stream) -> Iterator[Batch]:
        """Yield the rows; `stream` of the same file follows them, so that its bytes are hashed."""
        number, size = 1, self._path.stat().st_size
        # without pre-buffering and with a small buffer, memory does not grow with the size of a row
        # group
        with pq.ParquetFile(
            self._path, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True
        ) as file:
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            sizes = [group.total_byte_size // max(group.num_rows, 1) for group in groups]
            at_once = max(1, min(_ROWS, BLOCK // (max(sizes, default=0) + 1)))
            parts = file.iter_batches(at_once, columns=[*self._columns.values()], use_threads=False)
            while True:
                try:
                    if (part := next(parts, None)) is None:
                        return
                    columns = {
                        name: part[column].cast(pa.string())
                        for name, column in self._columns.items()
                    }
                    cells = pa.record_batch(columns)
                    cells.validate(full=True)  # a column may call any bytes text
                except (pa.ArrowException, OSError) as error:
                    raise InputError(
                        f"{self._path}: a named column cannot be read as text"
                        f"{so_far(number - 1)}: {_first_line(error)}",
                        path=self._path,
                        record=number,
                    ) from None
                yield from _batches(number, cells, self._table)
                number += len(part)
                while stream.bytes_read < size * (number - 1) // file.metadata.num_rows:
                    next(stream.raw)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
