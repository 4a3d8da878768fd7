"""Columns of cells to batches of records, without making Python strings of them."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plm_embed.sequences.batch import MOST_RECORDS, Batch, Faults, text_and_ends
from plm_embed.sequences.formats import LARGEST_RECORD
from plm_embed.sequences.tables import Table

MISSING = frozenset({"NaN", "nan", "N/A", "None", "null", "NULL", "<NA>"})
NO_VALUE = ("missing_value", None)  # NA is a peptide
REPEATED_HEADER = ("repeated_header", None)
_MARK = "\ufeff"  # before the first cell of a file that was joined to another one
_LONGEST_MISSING = max(map(len, MISSING))
_SPACE, _TILDE = b" ~"


def repeats_header(id: str, residues: str, table: Table) -> bool:
    """Whether a row names its columns, as between tables that were joined, each with its header.

    Most names of the column of residues would pass for a peptide.
    """
    return residues.lstrip(_MARK).strip() == table.sequence and id.lstrip(_MARK).strip() == table.id


def in_batches(first: int, cells: pa.RecordBatch, table: Table) -> Iterator[Batch]:
    """Rows from number `first` on, of which `cells` has the columns as text."""
    for start in range(0, cells.num_rows, MOST_RECORDS):
        rows = cells.slice(start, MOST_RECORDS)
        ids, given, *kept = (rows[name] for name in (table.id, table.sequence, *table.keep))
        ids = ids.fill_null("")
        residues, faults = _faults(ids, given, table)
        text, ends = text_and_ends(residues)
        yield Batch(first + start, ids, ids, text, ends, tuple(kept), faults)


def _faults(
    ids: pa.StringArray, cells: pa.StringArray, table: Table
) -> tuple[pa.StringArray, Faults]:
    """The residues, and the places of those that are missing, too large, or a header."""
    residues = cells.fill_null("")
    faults: Faults = dict.fromkeys(np.flatnonzero(cells.is_null()).tolist(), NO_VALUE)
    text, ends = text_and_ends(residues)
    letters, lengths = np.frombuffer(text, np.uint8), np.diff(ends, prepend=0)
    filled = np.flatnonzero(lengths)
    outer = letters[ends[filled] - 1], letters[ends[filled] - lengths[filled]]
    doubtful = (lengths[filled] <= _LONGEST_MISSING) | (lengths[filled] > LARGEST_RECORD)
    doubtful |= pc.equal(residues, table.sequence).to_numpy(zero_copy_only=False)[filled]
    for signs in outer:  # blanks around the word, of whatever kind
        doubtful |= (signs <= _SPACE) | (signs > _TILDE)
    large = []
    for place in filled[doubtful].tolist():
        value = residues[place].as_py()
        if value.strip() in MISSING:
            faults[place] = NO_VALUE
        elif repeats_header(ids[place].as_py(), value, table):
            faults[place] = REPEATED_HEADER
        elif len(value) > LARGEST_RECORD:
            size = f"{len(value):,} characters, more than {LARGEST_RECORD:,}"
            faults[place] = ("too_large", size)
            large.append(place)
    if large:
        mask = np.isin(np.arange(len(residues)), large)
        residues = pc.if_else(pa.array(mask), "", residues)
    return residues, faults
