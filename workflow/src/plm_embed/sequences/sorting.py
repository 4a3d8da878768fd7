"""Rows sorted by key in bounded memory: what fits is sorted at once, the rest is spilled to files
by ranges of key space.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import ceil, log2
from pathlib import Path

import numpy as np
import pyarrow as pa

from plm_embed.keys import key_words

MOST_RANGES = 256  # files open at a time
_LARGEST_SORT = 1 << 30  # bytes; a string column's offsets have 32 bits
_FINER = 6  # bits of the keys by which a range that is too large is divided
PIECE = 1 << 24
"""Bytes that are sorted and appended to files at a time."""


class Range:
    """A file of the rows whose keys begin with the same bits, in the order added; each batch in it
    is sorted by key.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path, self.bytes = path, 0
        self.keys: set[bytes] = set()  # the first two that differ: enough to tell one from several
        self._writer = pa.ipc.new_stream(str(path), schema)

    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write_batch(rows)
        self.bytes += rows.nbytes
        if len(self.keys) < 2:
            self.keys |= {rows["key"][0].as_py(), rows["key"][len(rows) - 1].as_py()}

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, once; the file is gone then."""
        self._writer.close()
        with pa.OSFile(str(self._path)) as file, pa.ipc.open_stream(file) as stream:
            yield from stream
        self._path.unlink()


class KeySorter:
    """Takes rows in any order; gives them back sorted by key and, within a key, in the order added.

    Rows have `key` (32 bytes) and `sequence` among their columns. A sequence comes back null but
    for the first row of its key: a repeated one is held and written once. At most about `memory`
    bytes are held; more goes to files in `folder`, which the caller removes. How many files follows
    from the bytes to come, estimated from `done()`, the fraction of the input that has been added.
    """

    def __init__(self, folder: Path, memory: int, done: Callable[[], float]) -> None:
        self._folder, self._done = folder, done
        # sorting holds the rows, one column twice, and the sorted rows; several such before them
        # are being written
        self._limit = min(memory // 8, _LARGEST_SORT)
        self._rows: list[pa.RecordBatch] = []
        self._bytes = self._bits = 0  # bits by which rows are spilled, 0 before
        self._ranges: dict[int, Range] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        self._rows.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= (min(self._limit, PIECE) if self._bits else self._limit):
            self._spill()

    def sorted(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows, once. A key's rows come in one batch, or in several if they alone exceed
        the memory.
        """
        if self._bits and self._rows:
            self._spill()
        elif self._rows:
            rows, self._rows = sort_rows(self._rows), []
            yield rows
        waiting = [(self._bits, self._ranges)]  # at last the finer ones of a range too large
        while waiting:
            bits, ranges = waiting[-1]
            if not ranges:
                waiting.pop()
                continue
            part = ranges.pop(min(ranges))
            if part.bytes <= self._limit or (bits == 64 and len(part.keys) > 1):
                yield sort_rows(list(part.take()))
            elif len(part.keys) == 1:  # in the order added
                for number, rows in enumerate(part.take()):
                    yield sort_rows([rows], repeats=number > 0)
            else:
                waiting.append((min(bits + _FINER, 64), {}))
                for rows in part.take():
                    self._distribute(rows, *waiting[-1])

    def _spill(self) -> None:
        rows, self._rows, self._bytes = sort_rows(self._rows), [], 0
        if not self._bits:
            expected = rows.nbytes / max(self._done(), 1e-6)
            count = min(max(expected / (2 * PIECE), 2 * expected / self._limit, 2), MOST_RANGES)
            self._bits = ceil(log2(count))
        self._distribute(rows, self._bits, self._ranges)

    def _distribute(self, rows: pa.RecordBatch, bits: int, ranges: dict[int, Range]) -> None:
        """Append sorted rows to the files of the ranges that the first bits of their keys name."""
        prefixes = key_words(rows["key"])[:, 0] >> np.uint64(64 - bits)
        starts = np.flatnonzero(np.diff(prefixes, prepend=~prefixes[:1])).tolist()
        for start, end in pairwise([*starts, len(rows)]):
            if (prefix := int(prefixes[start])) not in ranges:
                path = self._folder / f"{bits}-{prefix}.arrows"
                ranges[prefix] = Range(path, rows.schema)
            ranges[prefix].write(rows.slice(start, end - start))


def sort_rows(batches: Sequence[pa.RecordBatch], *, repeats: bool = False) -> pa.RecordBatch:
    """Return one batch, stably sorted by key, with `sequence` null but for the first row of
    each key, or for all rows where they are `repeats`.
    """
    words = np.concatenate([key_words(rows["key"]) for rows in batches])  # (n, 4)
    order = np.argsort(words[:, 0], kind="stable")
    repeated = np.diff(words[order, 0], prepend=~words[order[:1], 0]) == 0
    places = np.flatnonzero(repeated)
    if (words[order[places]] != words[order[places - 1]]).any():  # two begin with the same 64 bits
        order = np.lexsort(words.T[::-1])
        repeated[1:] = (words[order[1:]] == words[order[:-1]]).all(axis=1)
    columns, schema = [], batches[0].schema
    for name in schema.names:
        places = pa.array(order, mask=repeated | repeats if name == "sequence" else None)
        # faster than to take from the chunks
        columns.append(pa.concat_arrays([rows[name] for rows in batches]).take(places))
    return pa.record_batch(columns, schema=schema)
