"""Checks of the index and of records.parquet: every input record is answered, and both say the same
about it.
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.errors import delete
from plm_embed.io.parquet import read_batches, read_schema
from plm_embed.keys import key_array
from plm_embed.master.check import Problem, check
from plm_embed.master.gather import INDEX_COLUMNS
from plm_embed.master.outcomes import RecordTable
from plm_embed.sequences.summary import verified

_DECIDED = ("status", "reason", "detail", "events", "row")
"""Columns that gather adds to records, or may change."""
_PLAIN = ("source", "number", "id", "header", "key", "length", *_DECIDED)
"""Columns of records that do not come from the users' tables."""
Counted = Counter[tuple[str, str, str | None]]
"""Records by source, status and reason."""
# of a line of the index: row counts from 1; 0: none
LINE = np.dtype([("row", "<i8"), ("key", "S64"), ("length", "<i4"), ("text", "<u4")])


@check("index", "The index leads each id to the row of its own sequence.")
def check_index(problem: Problem, index: Path, file: h5py.File, lines: RecordTable) -> int:
    """Look whether the index runs through all rows of the master in order, with their keys and
    lengths. Return its number of lines, and note them in `lines`.
    """
    again = delete(index)
    more = [name for name in read_schema(index, again).names if name not in INDEX_COLUMNS]
    count, last, total = file["emb_keys"].shape[0], -1, 0
    for table in read_batches(index, remedy=again):
        row = table["row"].to_numpy()
        step = np.diff(row, prepend=last)
        wrong = (step < 0) | (step > 1) | (row < 0) | (row >= count)
        wrong[0] |= last < 0 and row[0] != 0
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            before = row[place - 1] if place else last
            problem(
                f"entry {total + place:,} ({_name(table, place)}) has row {row[place]:,} after row "
                f"{before:,}: rows of the master are skipped, repeated or unknown",
                again,
            )
            return total
        last = int(row[-1])
        inside = slice(int(row[0]), last + 1)
        keys, lengths = (file[name][inside][row - row[0]] for name in ("emb_keys", "length"))
        line = np.zeros(len(row), LINE)
        line["row"], line["key"] = row + 1, key_array(table["cache_key"])
        line["length"], line["text"] = table["length"].to_numpy(), _digests(table, more)
        for name, differs in (
            ("cache_key", line["key"] != keys),
            ("length", line["length"] != lengths),
        ):
            for place in np.flatnonzero(differs).tolist():
                message = f"{name} is {table[name][place]}, row {row[place]:,} of the master"
                problem(f"{_name(table, place)}: {message} says otherwise", again)
        places = lines.places(table)
        twice = lines.values["row"][places] != 0
        twice |= ~np.isin(np.arange(len(places)), np.unique(places, return_index=True)[1])
        for place in np.flatnonzero(twice).tolist():
            problem(f"{_name(table, place)} is in the index twice", again)
        lines.values[places] = line
        total += len(row)
    if last != count - 1:
        problem(f"ends at row {last:,}, the master at row {count - 1:,}", again)
    return total


@check("records", "Every record of the input has one outcome, and the index agrees with it.")
def check_records(
    problem: Problem,
    records: Path,
    sequences: Path,
    lines: RecordTable,
    skipped: dict[bytes, str],
) -> Counted:
    """Look whether every input record is there, in order and unchanged, with one outcome that the
    index confirms. Return what they were counted as.

    lines: of the index; skipped: the keys that have no vector, with the reason.
    """
    counted = Counted()
    again, source = delete(records), verified(sequences, "records.parquet")
    for before, after in _aligned(read_batches(source), read_batches(records, remedy=again)):
        if not (
            after.num_rows == before.num_rows
            and after["source"].equals(before["source"])
            and after["number"].equals(before["number"])
        ):
            problem(_first_lost(before, after), again)
            break
        for name in before.schema.names:
            if name not in _DECIDED and not after[name].equals(before[name]):
                place = int(np.flatnonzero(_differ(after[name], before[name]))[0])
                message = f"{name} is {after[name][place]}, the input says {before[name][place]}"
                problem(f"{_name(after, place)}: {message}", again)
        line = lines.values[lines.places(after)]
        for place, message in _wrong_outcomes(before, after, line, skipped):
            problem(f"{_name(after, place)}: {message}", again)
        columns = (after[name].to_pylist() for name in ("source", "status", "reason"))
        counted.update(zip(*columns, strict=True))
    return counted


def _wrong_outcomes(
    before: pa.Table, after: pa.Table, line: NDArray[np.void], skipped: dict[bytes, str]
) -> Iterator[tuple[int, str]]:
    """Records of a batch whose outcome is wrong by the input, the index or the skipped keys."""
    row = pc.fill_null(after["row"], -1).to_numpy()
    has, indexed = row >= 0, line["row"] == row + 1
    eventful = pc.not_equal(pc.fill_null(after["events"], ""), "").to_numpy()
    expected = np.where(~has, "skipped", np.where(eventful, "embedded_with_events", "embedded"))
    status = np.array(after["status"].to_pylist(), dtype=object)
    accepted = pc.equal(before["status"], "accepted").to_numpy()
    keys = key_array(pc.fill_null(after["key"], "-" * 64))
    more = [name for name in before.schema.names if name not in _PLAIN]
    same = (line["key"] == keys) & (line["text"] == _digests(after, more))
    same &= line["length"] == pc.fill_null(after["length"], -1).to_numpy()
    reasons = after["reason"].to_pylist()
    reasoned = after["reason"].is_valid().to_numpy()
    for message, wrong in {
        "its status is not what its row and events say": status != expected,
        "has a vector, though its residues were refused": has & ~accepted,
        "the index gives it another row, or none": ~indexed,
        "id, key, length or kept columns differ from the index": has & indexed & ~same,
        "a vector and a reason": has & reasoned,
    }.items():
        for place in np.flatnonzero(wrong).tolist():
            yield place, message
    refused = before["reason"].to_pylist()
    for place in np.flatnonzero(~has).tolist():
        reason = skipped.get(keys[place]) if accepted[place] else refused[place]
        if reason is None or reasons[place] != reason:
            yield place, f"no vector and reason {reasons[place]!r}, expected {reason or 'a vector'}"


@check("counts", "Embedded and skipped records add up to the input, file by file.")
def check_counts(
    problem: Problem, records: Path, sources: dict[str, int], lines: int, counted: Counted
) -> None:
    """Compare records as they were counted with the input's, by file, and with the lines of the
    index.
    """
    again, embedded = delete(records), 0
    for source, count in sources.items():
        answered = sum(number for (name, *_), number in counted.items() if name == source)
        if answered != count:
            problem(f"{source}: {count:,} records in the input, {answered:,} answered", again)
    embedded = sum(number for (_, status, _), number in counted.items() if status != "skipped")
    if embedded != lines:
        problem(f"{embedded:,} records are embedded, the index has {lines:,}", again)


def summed(counted: Counted, sources: Iterable[str]) -> dict[str, Any]:
    """Return the fields of `Counts` that are about records; `sources`: all input files."""
    statuses = {source: Counter[str]() for source in sources}
    reasons = Counter[str]()
    for (source, status, reason), number in counted.items():
        statuses.setdefault(source, Counter())[status] += number
        if status == "skipped":
            reasons[str(reason)] += number
    total = sum(statuses.values(), Counter[str]())
    return {
        "records": total.total(),
        "statuses": dict(sorted(total.items())),
        "skipped": dict(sorted(reasons.items())),
        "sources": {source: dict(sorted(count.items())) for source, count in statuses.items()},
    }


def _name(table: pa.Table, place: int) -> str:
    return f"{table['source'][place]}, record {table['number'][place]}"


def _digests(table: pa.Table, more: list[str]) -> NDArray[np.uint32]:
    """Return a checksum of each row's id and kept columns."""
    columns = [pc.fill_null(table[name], "\x00") for name in ("id", *more)]
    texts = pc.binary_join_element_wise(*columns, "\x1f").to_pylist()
    return np.array([zlib.crc32(text.encode()) for text in texts], dtype=np.uint32)


def _aligned(
    first: Iterator[pa.Table], second: Iterator[pa.Table]
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Pair the batches of two files; where one file ends early, its batch is empty."""
    for before, after in zip_longest(first, second):
        empty = (after if before is None else before).slice(0, 0)
        yield empty if before is None else before, empty if after is None else after


def _first_lost(before: pa.Table, after: pa.Table) -> str:
    rows = min(before.num_rows, after.num_rows)
    differ = _differ(before["number"].slice(0, rows), after["number"].slice(0, rows))
    differ |= _differ(before["source"].slice(0, rows), after["source"].slice(0, rows))
    place = int(np.flatnonzero(differ)[0]) if differ.any() else rows
    if place < before.num_rows:
        return f"{_name(before, place)} is not where it belongs: lost, doubled or moved"
    return f"{_name(after, place)} is not in the input"


def _differ(first: pa.ChunkedArray, second: pa.ChunkedArray) -> NDArray[np.bool_]:
    pairs = zip(first.to_pylist(), second.to_pylist(), strict=True)
    return np.array([a != b for a, b in pairs], dtype=bool)
