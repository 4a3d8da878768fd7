"""Checks of the index and of records.parquet: every input record is answered, and both say the same
about it.
"""

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.io.parquet import read_batches, read_schema
from plm_embed.keys import key_array
from plm_embed.master.findings import Findings, Problem
from plm_embed.master.gather import INDEX_COLUMNS
from plm_embed.master.record_places import RecordNumbers, RecordTable
from plm_embed.master.validation_record import Counts
from plm_embed.sequences.summary import verified

# what gather may change in a record, or add
_DECIDED = ("status", "reason", "detail", "events", "row")
# row counts from 1; 0: none
_SEEN = np.dtype([("row", "<i8"), ("key", "S64"), ("length", "<i4"), ("text", "<u4")])


class RecordCheck:
    """The index against the master, then the records against the index and the input."""

    def __init__(self, findings: Findings, sequences: Path, folder: Path) -> None:
        self._findings = findings
        self._sequences = sequences
        self._numbers = RecordNumbers(sequences)
        self._seen = RecordTable(folder, self._numbers.places, _SEEN)
        self.statuses: dict[str, Counter[str]] = {
            source: Counter() for source in self._numbers.sources
        }
        self.reasons: Counter[str] = Counter()
        self.index_rows = 0

    def __enter__(self) -> "RecordCheck":
        return self

    def __exit__(self, *_: object) -> None:
        self._seen.close()

    def index(self, index: Path, file: h5py.File) -> None:
        """Rows of the index run through all rows of the master in order; key and length are those
        of the master.
        """
        with self._findings.check("index") as problem:
            kept = [name for name in read_schema(index).names if name not in INDEX_COLUMNS]
            count, last = file["emb_keys"].shape[0], -1
            for table in read_batches(index):
                row = table["row"].to_numpy()
                step = np.diff(row, prepend=last)
                bad = (step < 0) | (step > 1) | (row < 0) | (row >= count)
                if last < 0 and len(row) and row[0] != 0:
                    bad[0] = True
                if bad.any():
                    at = int(np.flatnonzero(bad)[0])
                    problem(
                        f"entry {self.index_rows + at:,} ({_name(table, at)}) has row {row[at]:,} "
                        f"after row {row[at - 1] if at else last:,}: rows of the master are "
                        "skipped, repeated or unknown"
                    )
                    return
                if len(row):
                    self._compare_master(table, row, file, problem)
                    last = int(row[-1])
                number = self._numbers.of(table)
                twice = self._seen.values["row"][number] != 0
                twice |= ~np.isin(np.arange(len(number)), np.unique(number, return_index=True)[1])
                for at in np.flatnonzero(twice).tolist():
                    problem(f"{_name(table, at)} is in the index twice")
                self._seen.values["row"][number] = row + 1
                self._seen.values["key"][number] = key_array(table["cache_key"])
                self._seen.values["length"][number] = table["length"].to_numpy()
                self._seen.values["text"][number] = _digests(table, kept)
                self.index_rows += table.num_rows
            if last != count - 1:
                problem(f"ends at row {last:,}, the master at row {count - 1:,}")

    def _compare_master(
        self, table: pa.Table, row: NDArray[np.int64], file: h5py.File, problem: Problem
    ) -> None:
        first, stop = int(row[0]), int(row[-1]) + 1
        keys, lengths = (
            file["emb_keys"][first:stop][row - first],
            file["length"][first:stop][row - first],
        )
        for name, wrong in (
            ("cache_key", key_array(table["cache_key"]) != keys),
            ("length", table["length"].to_numpy() != lengths),
        ):
            for at in np.flatnonzero(wrong).tolist():
                problem(
                    f"{_name(table, at)}: {name} is {table[name][at]}, row {row[at]:,} of the "
                    "master says otherwise"
                )

    def records(self, records: Path, skipped: dict[bytes, str]) -> None:
        """Every input record is in `records`, in order and unchanged, with one fate that the index
        confirms.

        `skipped`: the keys that have no vector, with the reason.
        """
        with self._findings.check("records") as problem:
            source = verified(self._sequences, "records.parquet")
            for expected, found in _aligned(read_batches(source), read_batches(records)):
                if not (
                    found.num_rows == expected.num_rows
                    and found["source"].equals(expected["source"])
                    and found["number"].equals(expected["number"])
                ):
                    problem(_first_lost(expected, found))
                    return
                for name in expected.schema.names:
                    if name not in _DECIDED and not found[name].equals(expected[name]):
                        at = int(np.flatnonzero(_differ(found[name], expected[name]))[0])
                        problem(
                            f"{_name(found, at)}: {name} is {found[name][at]}, the input says "
                            f"{expected[name][at]}"
                        )
                self._fates(
                    expected, found, self._seen.values[self._numbers.of(found)], problem, skipped
                )
        self._add_up()

    def _fates(
        self,
        before: pa.Table,
        after: pa.Table,
        seen: NDArray[np.void],
        problem: Problem,
        skipped: dict[bytes, str],
    ) -> None:
        """What became of a batch of records, against the input, the index and the skipped keys."""
        status = np.array(after["status"].to_pylist(), dtype=object)
        eventful = np.array([bool(events) for events in after["events"].to_pylist()], dtype=bool)
        row = pc.fill_null(after["row"], -1).to_numpy()
        accepted = pc.equal(before["status"], "accepted").to_numpy()
        has = row >= 0
        expected = np.where(~has, "skipped", np.where(eventful, "embedded_with_events", "embedded"))
        self._each(
            after, status != expected, problem, "its status is not what its row and events say"
        )
        self._each(
            after, has & ~accepted, problem, "has a vector, though its residues were refused"
        )
        self._each(
            after, seen["row"] != row + 1, problem, "the index gives it another row, or none"
        )
        keys = key_array(pc.fill_null(after["key"], "-" * 64))
        kept = [name for name in before.schema.names if name not in _BEFORE_KEPT]
        same = (seen["key"] == keys) & (seen["text"] == _digests(after, kept))
        same &= seen["length"] == pc.fill_null(after["length"], -1).to_numpy()
        self._each(
            after,
            has & (seen["row"] == row + 1) & ~same,
            problem,
            "id, key, length or kept columns differ from the index",
        )
        reasons: list[str | None] = after["reason"].to_pylist()
        refused: list[str | None] = before["reason"].to_pylist()
        for at in np.flatnonzero(~has).tolist():
            reason = skipped.get(keys[at]) if accepted[at] else refused[at]
            if reason is None or reasons[at] != reason:
                problem(
                    f"{_name(after, at)}: no vector and reason {reasons[at]!r}, expected "
                    f"{reason or 'a vector'}"
                )
        self._each(
            after,
            has & np.array([reason is not None for reason in reasons]),
            problem,
            "a vector and a reason",
        )
        self.reasons.update(
            str(reason) for reason, there in zip(reasons, has, strict=True) if not there
        )
        for pair, count in Counter(
            zip(after["source"].to_pylist(), status.tolist(), strict=True)
        ).items():
            self.statuses.setdefault(pair[0], Counter())[pair[1]] += count

    @staticmethod
    def _each(table: pa.Table, wrong: NDArray[np.bool_], problem: Problem, text: str) -> None:
        for at in np.flatnonzero(wrong).tolist():
            problem(f"{_name(table, at)}: {text}")

    def _add_up(self) -> None:
        with self._findings.check("counts") as problem:
            for source, count in self._numbers.sources.items():
                answered = self.statuses[source].total()
                if answered != count:
                    problem(f"{source}: {count:,} records in the input, {answered:,} answered")
            embedded = sum(
                each["embedded"] + each["embedded_with_events"] for each in self.statuses.values()
            )
            if embedded != self.index_rows:
                problem(f"{embedded:,} records are embedded, the index has {self.index_rows:,}")

    def counts(self, counted: Counts) -> Counts:
        """With the records by status, by reason and by source."""
        total = sum(self.statuses.values(), Counter[str]())
        return replace(
            counted,
            records=total.total(),
            statuses=dict(sorted(total.items())),
            skipped=dict(sorted(self.reasons.items())),
            sources={source: dict(sorted(each.items())) for source, each in self.statuses.items()},
        )


_BEFORE_KEPT = ("source", "number", "id", "header", "key", "length", *_DECIDED)


def _name(table: pa.Table, at: int) -> str:
    return f"{table['source'][at]}, record {table['number'][at]}"


def _digests(table: pa.Table, kept: list[str]) -> NDArray[np.uint32]:
    """A checksum of each row's id and kept columns."""
    columns = [pc.fill_null(table[name], "\x00") for name in ("id", *kept)]
    texts = pc.binary_join_element_wise(*columns, "\x1f").to_pylist()
    return np.array([zlib.crc32(text.encode()) for text in texts], dtype=np.uint32)


def _aligned(
    first: Iterator[pa.Table], second: Iterator[pa.Table]
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Batches of two files side by side; where one file ends early, its batch is empty."""
    for one in first:
        other = next(second, None)
        yield one, one.slice(0, 0) if other is None else other
    for other in second:
        yield other.slice(0, 0), other


def _first_lost(expected: pa.Table, found: pa.Table) -> str:
    rows = min(expected.num_rows, found.num_rows)
    differ = _differ(expected["number"].slice(0, rows), found["number"].slice(0, rows))
    differ |= _differ(expected["source"].slice(0, rows), found["source"].slice(0, rows))
    at = int(np.flatnonzero(differ)[0]) if differ.any() else rows
    if at < expected.num_rows:
        return f"{_name(expected, at)} is not where it belongs: lost, doubled or moved"
    return f"{_name(found, at)} is not in the input"


def _differ(one: pa.ChunkedArray, other: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.array(
        [a != b for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)], dtype=bool
    )
