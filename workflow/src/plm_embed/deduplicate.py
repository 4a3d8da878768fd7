"""Sequence files to unique sequences in buckets, with an account of every record, in bounded memory.

Two passes. The first streams the inputs, writes records.parquet and hands the accepted records to a `KeySorter`.
The second takes them back in key order and cuts them into buckets/ and members/.
"""

import errno
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from plm_embed.accounts import Account, accepted_schema, account, hex_keys, records_schema
from plm_embed.buckets import bucket_bounds, bucket_names, key_words
from plm_embed.errors import UserError
from plm_embed.files import write_json
from plm_embed.progress import progress
from plm_embed.readers import Reader, Table
from plm_embed.residues import ResiduePolicy
from plm_embed.rowgroups import row_group_writer
from plm_embed.spill import KeySorter
from plm_embed.threads import Behind, quick_turns

log = logging.getLogger(__name__)
LEAST_MEMORY_MB = 500
_OWN_MEMORY_MB = 390  # the interpreter, its libraries, batches and row groups that wait for a thread, fragmentation
_BEHIND = 2  # pieces of work that wait for a thread
_NUCLEOTIDES = frozenset("ACGTUN")
_NUCLEOTIDE_SAMPLE = 1000
_NUCLEOTIDE_SHARE = 0.9
_TAKEN = frozenset({*records_schema(()).names, *accepted_schema(()).names, "cache_key", "row"})
_SEQUENCES = pa.schema([("key", pa.string()), ("sequence", pa.string()), ("length", pa.int32())])


@dataclass
class Summary:
    """What summary.json holds. Every record is counted once: `records` = `accepted` + all of `skipped`."""

    buckets: int
    keep: list[str]
    records: int = 0
    accepted: int = 0
    skipped: Counter[str] = field(default_factory=Counter)  # by reason
    events: Counter[str] = field(default_factory=Counter)  # records, by name
    unique: int = 0
    residues: int = 0  # of the unique sequences
    lengths: Counter[int] = field(default_factory=Counter)  # unique sequences, by length
    inputs: list[dict[str, Any]] = field(default_factory=list)  # path, format, compression, bytes, sha256, records
    warnings: list[str] = field(default_factory=list)


def deduplicate(
    inputs: Sequence[Path], output: Path, *, buckets: int, table: Table, policy: ResiduePolicy, memory_mb: int
) -> Summary:
    """Write records.parquet, buckets/, members/ and, last, summary.json to the folder `output`.

    buckets/{bucket}.parquet: the unique sequences (key, sequence, length) sorted by key; members/{bucket}.parquet:
    the accepted records (key, id, source, number, events, length, kept columns) sorted by key, then in input order.
    A file for every bucket, empty ones too. The bytes depend on the inputs and options, not on `memory_mb`, which
    bounds the memory of the process. UserError: an input that cannot be read (see `readers`), columns that cannot
    be kept, `memory_mb` below 500, `buckets` out of range, a full disk. After an error there is no summary.json.
    """
    names = bucket_names(buckets)
    _check(inputs, table, memory_mb)
    readers = [Reader(path, table) for path in inputs]
    output.mkdir(parents=True, exist_ok=True)
    _clear(output, names)
    summary = Summary(buckets, list(table.keep))
    working = (memory_mb - _OWN_MEMORY_MB) * 1_000_000
    total = sum(reader.bytes for reader in readers)
    try:
        with (
            quick_turns(),
            _reused_memory(),
            KeySorter(
                output,
                accepted_schema(table.keep),
                working,
                lambda: sum(reader.bytes_read for reader in readers) / total,
            ) as sorter,
            row_group_writer(output / "records.parquet", records_schema(table.keep)) as records,
        ):
            with Behind(_BEHIND) as behind:
                for rows in _accounts(readers, table, policy, summary):
                    behind.do(records.write, rows.records)
                    if rows.accepted.num_rows:
                        behind.do(sorter.add, rows.accepted)
            _write_buckets(sorter.sorted(), output, names, pa.array(map(str, inputs), pa.string()), summary)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise UserError(f"{output}: the disk is full; free about three times the size of the inputs") from None
        raise
    write_json(output / "summary.json", vars(summary))
    return summary


@contextmanager
def _reused_memory() -> Iterator[None]:
    """Arrow's allocator that gives the least memory back to the system, which would have to clear it again."""
    before = pa.default_memory_pool()
    with suppress(NotImplementedError):  # not built in everywhere
        pa.set_memory_pool(pa.jemalloc_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


def _check(inputs: Sequence[Path], table: Table, memory_mb: int) -> None:
    if not inputs:
        raise UserError("no input file is named")
    if memory_mb < LEAST_MEMORY_MB:
        raise UserError(f"memory_mb: {memory_mb} is too little, give {LEAST_MEMORY_MB} or more")
    seen: dict[Path, Path] = {}
    for path in inputs:
        same = seen.setdefault(path.resolve(), path)
        if same is not path:
            raise UserError(f"{path}: is named twice among the inputs (also as {same}); name it once")
    for place, name in enumerate(table.keep):
        if name in _TAKEN:
            raise UserError(f"keep: {name!r} is a column that the results have anyway; leave it out or rename it")
        if name in table.keep[:place]:
            raise UserError(f"keep: {name!r} is named twice")


def _clear(output: Path, names: Sequence[str]) -> None:
    """Remove what marks an earlier result as whole, its surplus buckets, and what a killed run left behind."""
    (output / "summary.json").unlink(missing_ok=True)
    for left in output.glob(".spill-*"):
        shutil.rmtree(left)
    for folder in (output, output / "buckets", output / "members"):
        for left in folder.glob(".tmp-*"):
            left.unlink()
        if folder != output:
            for file in folder.glob("[0-9][0-9][0-9][0-9].parquet"):
                if file.stem not in names:
                    file.unlink()


def _accounts(readers: Sequence[Reader], table: Table, policy: ResiduePolicy, summary: Summary) -> Iterator[Account]:
    """The first pass: everything that is to be told about the records, counted in `summary`."""
    with progress("read", sum(reader.bytes for reader in readers) / 1e6, "MB") as meter:
        for source, reader in enumerate(readers):
            nucleotides = sampled = done = 0
            for batch in reader:
                rows = account(batch, str(reader.path), source, table.keep, policy)
                _count(rows, summary)
                yield rows
                if sampled < _NUCLEOTIDE_SAMPLE:
                    sample = rows.accepted["sequence"][: _NUCLEOTIDE_SAMPLE - sampled].to_pylist()
                    sampled += len(sample)
                    nucleotides += sum(_NUCLEOTIDES.issuperset(sequence) for sequence in sample)
                meter.advance((reader.bytes_read - done) / 1e6)
                done = reader.bytes_read
            if nucleotides and nucleotides >= _NUCLEOTIDE_SHARE * sampled:
                _warn(
                    summary,
                    f"{reader.path}: {nucleotides} of the first {sampled} sequences consist of the letters ACGTUN: "
                    "nucleotides, not proteins?",
                )
            summary.inputs.append(
                {
                    "path": str(reader.path),
                    "format": reader.format,
                    "compression": reader.compression,
                    "bytes": reader.bytes,
                    "sha256": reader.sha256,
                    "records": reader.records,
                }
            )
    if not summary.accepted:
        _warn(summary, f"none of the {summary.records:,} records has a sequence that can be embedded")


def _warn(summary: Summary, message: str) -> None:
    summary.warnings.append(message)
    log.warning("warning: %s", message)


def _count(rows: Account, summary: Summary) -> None:
    summary.records += rows.records.num_rows
    summary.accepted += rows.accepted.num_rows
    if rows.accepted.num_rows < rows.records.num_rows:
        summary.skipped.update(rows.records["reason"].drop_null().to_pylist())
    for told in rows.accepted["events"].value_counts().to_pylist():
        for event in filter(None, told["values"].split(";")):
            summary.events[event.partition("=")[0]] += told["counts"]


def _write_buckets(
    rows: Iterator[pa.RecordBatch], output: Path, names: Sequence[str], sources: pa.StringArray, summary: Summary
) -> None:
    """The second pass: `rows` in key order, `sequence` null but for the first row of each key."""
    pieces = _by_bucket(rows, len(names))
    piece = next(pieces, None)
    with (
        progress("write", len(names), "buckets") as meter,
        _Files(output / "buckets", _SEQUENCES) as sequences,
        _Files(output / "members", _members_schema(summary.keep)) as members,
    ):
        for number, name in enumerate(names):
            sequences.start(name)
            members.start(name)
            while piece is not None and piece[0] == number:
                lengths = piece[1].select(["length"]).filter(piece[1]["sequence"].is_valid())["length"]
                summary.lengths.update(lengths.to_pylist())
                sequences.write(_unique, piece[1])
                members.write(_members, piece[1], sources)
                piece = next(pieces, None)
            meter.advance(1)
    summary.unique = summary.lengths.total()
    summary.residues = sum(length * count for length, count in summary.lengths.items())


class _Files:
    """The Parquet files of a folder, one after the other, made and written in a thread; a context manager."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder, self._schema = folder, schema
        self._behind = Behind(_BEHIND)
        self._open = ExitStack()

    def start(self, name: str) -> None:
        """Finish the file before, and begin the one of this name."""
        self._behind.do(self._start, self._folder / f"{name}.parquet")

    def write(self, make: Callable[..., pa.RecordBatch], *arguments: Any) -> None:
        """Write the rows that `make(*arguments)` returns."""
        self._behind.do(lambda: self._writer.write(make(*arguments)))

    def _start(self, path: Path) -> None:
        self._open.close()
        self._writer = self._open.enter_context(row_group_writer(path, self._schema))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        with self._open:  # an error reaches the open file, which then does not appear
            self._behind.__exit__(*error)
            if error[1] is not None:
                raise error[1]


def _by_bucket(batches: Iterator[pa.RecordBatch], count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut sorted rows where a bucket ends: the bucket's number and its rows; none for empty buckets."""
    inner = np.array(bucket_bounds(count)[1:-1], dtype=np.uint64)
    for rows in batches:
        numbers = np.searchsorted(inner, key_words(rows["key"])[:, 0], side="right")
        starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
        for start, end in pairwise([*starts, rows.num_rows]):
            yield int(numbers[start]), rows.slice(start, end - start)


def _unique(rows: pa.RecordBatch) -> pa.RecordBatch:
    found = rows.select(["key", "sequence", "length"]).filter(rows["sequence"].is_valid())
    return pa.record_batch([hex_keys(found["key"]), found["sequence"], found["length"]], schema=_SEQUENCES)


def _members_schema(keep: Sequence[str]) -> pa.Schema:
    fields = [*accepted_schema(keep)][:-1]
    return pa.schema([field.with_type(pa.string()) if field.name in ("key", "source") else field for field in fields])


def _members(rows: pa.RecordBatch, sources: pa.StringArray) -> pa.RecordBatch:
    columns = {field.name: rows[field.name] for field in rows.schema if field.name != "sequence"}
    columns |= {"key": hex_keys(rows["key"]), "source": sources.take(rows["source"])}
    return pa.record_batch(list(columns.values()), schema=_members_schema(list(columns)[6:]))
