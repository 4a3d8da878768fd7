"""The second pass: accepted records in key order, cut into buckets/ and members/."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from plm_embed.io.files import atomic_path
from plm_embed.io.parquet import read_batches, row_group_writer
from plm_embed.io.progress import progress
from plm_embed.io.sorting import KeySorter, read_rows
from plm_embed.io.threads import Behind, quick_turns
from plm_embed.keys import bucket_bounds, bucket_names, bucket_ranges, key_words, range_bounds
from plm_embed.sequences.columns import accepted_schema, hex_keys, records_schema
from plm_embed.sequences.fasta import strings, text_and_ends
from plm_embed.sequences.first_pass import BEHIND, Tally, range_file, read_scans
from plm_embed.sequences.summary import SUMMARY, Summary, read_summary, verified, write_summary

OWN_MEMORY_MB = 420
"""The interpreter, libraries, batches and row groups that wait for a thread, fragmentation."""

_SEQUENCES = pa.schema([("key", pa.string()), ("sequence", pa.string()), ("length", pa.int32())])


def write_buckets(
    rows: Iterator[pa.RecordBatch],
    output: Path,
    names: Sequence[str],
    sources: pa.StringArray,
    tally: Tally,
) -> None:
    """The second pass: `rows` in key order, `sequence` null but for the first row of each key."""
    pieces = _by_bucket(rows, tally.buckets)
    piece = next(pieces, None)
    with (
        progress("write", len(names), "buckets") as meter,
        _Files(output / "buckets", _SEQUENCES) as even,
        _Files(output / "buckets", _SEQUENCES) as odd,
        _Files(output / "members", _members_schema(tally.keep)) as members,
    ):
        # compressing sequences takes longest, so two buckets' at a time
        for name, sequences in zip(names, cycle([even, odd]), strict=False):
            sequences.start(name)
            members.start(name)
            while piece is not None and piece[0] == int(name):
                lengths = (
                    piece[1].select(["length"]).filter(piece[1]["sequence"].is_valid())["length"]
                )
                found, counts = np.unique(lengths, return_counts=True)
                tally.lengths.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
                sequences.write(_unique, piece[1])
                members.write(_members, piece[1], sources)
                piece = next(pieces, None)
            meter.advance(1)
    tally.files |= even.sha256 | odd.sha256 | members.sha256
    tally.unique = tally.lengths.total()
    tally.residues = sum(length * count for length, count in tally.lengths.items())


class _Files:
    """The Parquet files of a folder, one after the other, made and written in a thread; a context
    manager.

    `sha256` of the files that are whole, by folder and name.
    """

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self.sha256: dict[str, str] = {}
        self._folder, self._schema = folder, schema
        self._behind = Behind(BEHIND)
        self._open = ExitStack()
        self._names: list[str] = []  # of files to begin before the next rows

    def start(self, name: str) -> None:
        """Finish the file before, and begin the one of this name."""
        self._names.append(name)

    def write(self, make: Callable[..., pa.RecordBatch], *arguments: Any) -> None:
        """Write the rows that `make(*arguments)` returns."""
        self._behind.do(self._write, self._names, make, arguments)
        self._names = []

    def _write(
        self, names: Sequence[str], make: Callable[..., pa.RecordBatch], arguments: Sequence[Any]
    ) -> None:
        self._begin(names)
        self._writer.write(make(*arguments))

    def _begin(self, names: Sequence[str]) -> None:
        for name in names:
            self._open.close()
            path = self._folder / f"{name}.parquet"
            # called after the file is closed
            self._open.callback(self._note, f"{self._folder.name}/{path.name}")
            self._writer = self._open.enter_context(row_group_writer(path, self._schema))

    def _note(self, name: str) -> None:
        self.sha256[name] = self._writer.sha256

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        with self._open, self._behind:  # an error reaches the open file, which then does not appear
            if error[1] is not None:
                raise error[1]
            self._behind.do(self._begin, self._names)


def _by_bucket(
    batches: Iterator[pa.RecordBatch], count: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut sorted rows where a bucket ends: the bucket's number and its rows; none for empty
    buckets.
    """
    inner = np.array(bucket_bounds(count)[1:-1], dtype=np.uint64)
    for rows in batches:
        numbers = np.searchsorted(inner, key_words(rows["key"])[:, 0], side="right")
        starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
        for start, end in pairwise([*starts, rows.num_rows]):
            yield int(numbers[start]), rows.slice(start, end - start)


def _unique(rows: pa.RecordBatch) -> pa.RecordBatch:
    first = rows["sequence"].is_valid()
    found = rows.select(["key", "length"]).filter(first)
    # sorted rows hold no bytes for a null, so the others' are one text already
    text, ends = text_and_ends(rows["sequence"])
    sequences = strings(text, ends[first.to_numpy(zero_copy_only=False)])
    return pa.record_batch([hex_keys(found["key"]), sequences, found["length"]], schema=_SEQUENCES)


def _members_schema(keep: Sequence[str]) -> pa.Schema:
    fields = [*accepted_schema(keep)][:-1]
    return pa.schema(
        [
            field.with_type(pa.string()) if field.name in ("key", "source") else field
            for field in fields
        ]
    )


def _members(rows: pa.RecordBatch, sources: pa.StringArray) -> pa.RecordBatch:
    columns = {field.name: rows[field.name] for field in rows.schema if field.name != "sequence"}
    columns |= {"key": hex_keys(rows["key"]), "source": sources.take(rows["source"])}
    return pa.record_batch(list(columns.values()), schema=_members_schema(list(columns)[6:]))


def split(scans: Sequence[Path], number: int, output: Path, *, memory_mb: int) -> None:
    """Write the buckets of range `number` from the scans of all inputs, in their order, to the
    folder `output`.

    buckets/{bucket}.parquet and members/{bucket}.parquet of these buckets, as `deduplicate` writes
    them; last, summary.json about the unique sequences. `memory_mb` bounds the memory of the
    process.
    """
    stated = read_scans(scans)
    buckets, keep = stated[0].buckets, stated[0].keep
    sources = pa.array([entry.path for each in stated for entry in each.inputs], pa.string())
    low, high = range_bounds(buckets)[number : number + 2]
    names = bucket_ranges(bucket_names(buckets))[number]
    files = [verified(folder, range_file(number), "scan") for folder in scans]
    total = sum(path.stat().st_size for path in files)
    output.mkdir(parents=True, exist_ok=True)
    (output / SUMMARY).unlink(missing_ok=True)
    tally = Tally.like(stated[0])
    read = 0
    with (
        quick_turns(),
        KeySorter(
            output,
            accepted_schema(keep),
            int((memory_mb - OWN_MEMORY_MB) * 1e6),
            lambda: read / total,
            span=(low, high),
        ) as sorter,
    ):
        for path in files:
            for rows in read_rows(path):
                read += rows.nbytes
                sorter.add(rows)
        write_buckets(sorter.sorted(), output, names, sources, tally)
    write_summary(output, tally.summary())


def collect(scans: Sequence[Path], splits: Sequence[Path], output: Path) -> Summary:
    """Write what `deduplicate` writes, to the byte, from the scans of all inputs and the splits of
    all ranges.

    The files of the buckets are linked, or copied where that cannot be, so that this can be
    repeated.
    """
    stated = read_scans(scans)
    tally = Tally.like(stated[0])
    for each in stated:
        tally.add(each)
    for folder in splits:
        tally.add(read_summary(folder, "split"))
    tally.end()
    output.mkdir(parents=True, exist_ok=True)
    (output / SUMMARY).unlink(missing_ok=True)
    for folder in splits:
        for name in read_summary(folder, "split").files:
            with atomic_path(output / name) as temporary:
                _link(verified(folder, name, "split"), temporary)
    with (
        progress("collect", len(scans), "inputs") as meter,
        row_group_writer(output / "records.parquet", records_schema(tally.keep)) as records,
        Behind(BEHIND) as behind,
    ):
        for folder in scans:
            for table in read_batches(verified(folder, "records.parquet", "scan")):
                for rows in table.to_batches():
                    behind.do(records.write, rows)
            meter.advance(1)
    tally.files["records.parquet"] = records.sha256
    summary = tally.summary()
    write_summary(output, summary)
    return summary


def _link(path: Path, link: Path) -> None:
    try:
        os.link(path, link)
    except OSError:  # another filesystem, or one without links
        shutil.copyfile(path, link)
