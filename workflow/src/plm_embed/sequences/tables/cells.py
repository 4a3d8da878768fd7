"""Columns of cells to batches of records, without making Python strings of them."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plm_embed.sequences.fasta import MOST_RECORDS, Faults, PlainBatch, text_and_ends
from plm_embed.sequences.formats import LARGEST_RECORD
from plm_embed.sequences.tables import Table

MISSING = frozenset({"NaN", "nan", "N/A", "None", "null", "NULL", "<NA>"})
NO_VALUE = ("missing_value", None)  # NA is a peptide
_LONGEST_MISSING = max(map(len, MISSING))
_SPACE, _TILDE = b" ~"


def in_batches(first: int, cells: pa.RecordBatch, table: Table) -> Iterator[PlainBatch]:
    """Rows from number `first` on, of which `cells` has the columns as text."""
    for start in range(0, cells.num_rows, MOST_RECORDS):
        rows = cells.slice(start, MOST_RECORDS)
        ids, given, *kept = (rows[name] for name in (table.id, table.sequence, *table.keep))
        residues, faults = _faults(given)
        text, ends = text_and_ends(residues)
        ids = ids.fill_null("")
        yield PlainBatch(first + start, ids, ids, text, ends, tuple(kept), faults)


def _faults(cells: pa.StringArray) -> tuple[pa.StringArray, Faults]:
    """The residues, and the places of those that are missing or too large."""
    residues = cells.fill_null("")
    faults: Faults = dict.fromkeys(np.flatnonzero(cells.is_null()).tolist(), NO_VALUE)
    text, ends = text_and_ends(residues)
    letters, lengths = np.frombuffer(text, np.uint8), np.diff(ends, prepend=0)
    filled = np.flatnonzero(lengths)
    outer = letters[ends[filled] - 1], letters[ends[filled] - lengths[filled]]
    doubtful = (lengths[filled] <= _LONGEST_MISSING) | (lengths[filled] > LARGEST_RECORD)
    for signs in outer:  # blanks around the word, of whatever kind
        doubtful |= (signs <= _SPACE) | (signs > _TILDE)
    large = []
    for place in filled[doubtful].tolist():
        value = residues[place].as_py()
        if value.strip() in MISSING:
            faults[place] = NO_VALUE
        elif len(value) > LARGEST_RECORD:
            size = f"{len(value):,} characters, more than {LARGEST_RECORD:,}"
            faults[place] = ("too_large", size)
            large.append(place)
    if large:
        mask = np.isin(np.arange(len(residues)), large)
        residues = pc.if_else(pa.array(mask), "", residues)
    return residues, faults
