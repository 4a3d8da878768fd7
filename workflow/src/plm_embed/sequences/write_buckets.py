"""The second pass: accepted records in key order, cut into buckets/ and members/."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from plm_embed.io.parquet import row_group_writer
from plm_embed.io.progress import progress
from plm_embed.io.threads import Behind
from plm_embed.keys import bucket_bounds, key_words
from plm_embed.sequences.batch import strings, text_and_ends
from plm_embed.sequences.columns import accepted_schema, hex_keys
from plm_embed.sequences.first_pass import BEHIND, Tally

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
