"""Rows sorted by key in bounded memory: what fits is sorted at once, the rest is spilled by ranges
of key space.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.keys import SPACE, key_words

_MOST_RANGES = 256  # files open at a time
_LARGEST_SORT = 1 << 30  # bytes; a string column's offsets have 32 bits
_SAMPLE_EVERY = 16  # rows
PIECE = 1 << 24
"""Bytes that are sorted and appended to files at a time."""


class Range:
    """A file of the rows with keys in one range, in the order added; each batch in it is sorted by
    key.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.bytes = 0
        self._file = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_stream(self._file, schema)
        # the first two that differ: enough to tell one key from several
        self._keys: set[bytes] = set()

    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write_batch(rows)
        self.bytes += rows.nbytes
        if len(self._keys) < 2:
            self._keys |= {rows["key"][0].as_py(), rows["key"][rows.num_rows - 1].as_py()}

    def close(self) -> None:
        if not self._file.closed:
            self._writer.close()
            self._file.close()

    def read(self) -> Iterator[pa.RecordBatch]:
        return read_rows(self.path)

    @property
    def one_key(self) -> bool:
        return len(self._keys) == 1

    @property
    def divisible(self) -> bool:
        return len({key[:8] for key in self._keys}) > 1


def read_rows(path: Path) -> Iterator[pa.RecordBatch]:
    """The batches of a range's file."""
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        yield from stream


class KeySorter:
    """Takes rows in any order; gives them back sorted by key and, within a key, in the order added.

    Rows have `key` (32 bytes) and the column `once` among theirs. That column comes back null but
    for the first row of each key: a repeated sequence is held and written once. At most about
    `memory` bytes are held; more goes to files in a temporary folder in `folder`, which is removed
    when the `with` block ends. How many files follows from the bytes to come, estimated from
    `done()`, the fraction of the input that has been added. `span`: between which numbers the first
    64 bits of all keys lie.
    """

    def __init__(
        self,
        folder: Path,
        schema: pa.Schema,
        memory: int,
        done: Callable[[], float],
        *,
        span: tuple[int, int] = (0, SPACE),
        once: str = "sequence",
    ) -> None:
        self._folder, self._schema, self._done, self._span = folder, schema, done, span
        self._once = once
        # sorting holds the rows, one column twice, and the sorted rows; several such before them
        # are being written
        self._limit = min(memory // 8, _LARGEST_SORT)
        self._rows: list[pa.RecordBatch] = []
        self._bytes = 0
        self._spilled: list[Range] = []
        self._bounds: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
        self._files = 0
        self._temporary: Path | None = None
        self._stack = ExitStack()

    def __enter__(self) -> "KeySorter":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add(self, rows: pa.RecordBatch) -> None:
        self._rows.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= (min(self._limit, PIECE) if self._spilled else self._limit):
            self._spill()

    def sorted(self) -> Iterator[pa.RecordBatch]:
        """All rows, once. A key's rows come in one batch, or in several if they alone exceed the
        memory.
        """
        if not self._spilled:
            if self._rows:
                yield self._sort()
            return
        if self._rows:
            self._spill()
        for spilled in self._spilled:
            spilled.close()
        for spilled in self._spilled:
            yield from self._sorted_range(spilled)

    def _sort(self) -> pa.RecordBatch:
        rows, self._rows, self._bytes = self._rows, [], 0
        return sort_rows(rows, self._once)

    def _spill(self) -> None:
        rows = self._sort()
        if not self._spilled:
            expected = rows.nbytes / max(self._done(), 1e-6)
            count = int(min(max(expected / PIECE, 2 * expected / self._limit, 2), _MOST_RANGES))
            low, high = self._span
            bounds = [low + (high - low) * number // count for number in range(1, count)]
            self._bounds = np.array(bounds, dtype=np.uint64)
            self._spilled = self._ranges(count)
        distribute(rows, self._spilled, self._bounds)

    def _ranges(self, count: int) -> list[Range]:
        if self._temporary is None:
            folder = tempfile.TemporaryDirectory(prefix=".spill-", dir=self._folder)
            self._temporary = Path(self._stack.enter_context(folder))
        ranges = []
        for _ in range(count):
            ranges.append(Range(self._temporary / f"{self._files}.arrows", self._schema))
            self._stack.callback(ranges[-1].close)
            self._files += 1
        return ranges

    def _sorted_range(self, spilled: Range) -> Iterator[pa.RecordBatch]:
        if spilled.bytes > self._limit and spilled.divisible:
            for part in self._divided(spilled):
                yield from self._sorted_range(part)
        elif spilled.bytes > self._limit and spilled.one_key:
            for number, rows in enumerate(spilled.read()):
                first = np.zeros(rows.num_rows, dtype=np.bool_)
                first[0] = number == 0
                yield _take([rows], np.arange(rows.num_rows), first, self._once)
        elif spilled.bytes:
            yield sort_rows(list(spilled.read()), self._once)
        spilled.path.unlink(missing_ok=True)

    def _divided(self, spilled: Range) -> list[Range]:
        """The rows of a range in several smaller ones, so that a very frequent key gets one for
        itself.
        """
        seen = [key_words(rows["key"])[::_SAMPLE_EVERY, 0] for rows in spilled.read()]
        sample = np.sort(np.concatenate(seen))
        count = min(2 + 2 * spilled.bytes // self._limit, _MOST_RANGES // 2)
        cuts = sample[np.arange(1, count) * len(sample) // count]
        bounds = np.unique(np.concatenate([cuts, cuts[cuts < SPACE - 1] + np.uint64(1)]))
        parts = self._ranges(len(bounds) + 1)
        for rows in spilled.read():
            distribute(rows, parts, bounds)
        for part in parts:
            part.close()
        spilled.path.unlink()
        return parts


def sort_rows(batches: Sequence[pa.RecordBatch], once: str = "sequence") -> pa.RecordBatch:
    """One batch, stably sorted by key, with `once` null but for the first row of each key."""
    order, first = sort_order(np.concatenate([key_words(rows["key"]) for rows in batches]))
    return _take(batches, order, first, once)


def _take(
    batches: Sequence[pa.RecordBatch], order: NDArray[np.int64], first: NDArray[np.bool_], once: str
) -> pa.RecordBatch:
    columns, schema = [], batches[0].schema
    for name in schema.names:
        places = pa.array(order, mask=~first if name == once else None)
        # faster than to take from the chunks
        columns.append(pa.concat_arrays([rows[name] for rows in batches]).take(places))
    return pa.record_batch(columns, schema=schema)


def sort_order(words: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The stable order of keys (n, 4), most significant word first, and whether a place in it
    starts a new key.
    """
    order = np.argsort(words[:, 0], kind="stable")
    new, alike = _new_keys(words, order)
    if not alike:
        order = np.lexsort(words.T[::-1])
        new, _ = _new_keys(words, order)
    return order, new


def _new_keys(
    words: NDArray[np.uint64], order: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], bool]:
    """Whether each place starts a new key, and whether all keys with the same first 64 bits are
    the same.
    """
    leading = words[order, 0]
    repeats = 1 + np.flatnonzero(leading[1:] == leading[:-1])
    same = (words[order[repeats]] == words[order[repeats - 1]]).all(axis=1)
    new = np.ones(len(order), dtype=np.bool_)
    new[repeats[same]] = False
    return new, bool(same.all())


def distribute(
    rows: pa.RecordBatch, ranges: Sequence[Range], bounds: Sequence[int] | NDArray[np.uint64]
) -> None:
    """Append sorted rows to the ranges that `bounds`, the ranges' inner boundaries, assign them
    to.
    """
    inner = np.asarray(bounds, dtype=np.uint64)
    ends = [
        *np.searchsorted(key_words(rows["key"])[:, 0], inner, side="left").tolist(),
        rows.num_rows,
    ]
    start = 0
    for part, end in zip(ranges, ends, strict=True):
        if end > start:
            part.write(rows.slice(start, end - start))
        start = end
