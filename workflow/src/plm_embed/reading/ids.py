"""Rows by record id, for indexes of any size: a file beside the index, sorted by a hash of the id
and memory-mapped.

Made at the first look-up, in bounded memory, and made again when the index is another one. Where
its folder cannot be written it lives in a temporary file.
"""

import errno
import hashlib
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from plm_embed.errors import StoreError
from plm_embed.io.files import atomic_path
from plm_embed.io.parquet import read_table, record_batches
from plm_embed.io.sorting import KeySorter
from plm_embed.keys import KEY, key_words
from plm_embed.reading.find import gather_again, masters
from plm_embed.wording import some

ABSENT, SEVERAL = -1, -2
"""In place of a row: no record has the id, or records with different sequences share it."""

_COUNTED = 1_000_000
"""Records among which shared ids are counted, in memory and in a second."""
_SUFFIX = ".ids.arrow"
_SORT_BYTES = 500_000_000
_BATCH_ROWS = 1 << 14
_OPEN_BATCHES = 64
_TAIL_BYTES = 1 << 16
_CHECK = b"crc32"
_SORTED = pa.schema([("key", KEY), ("row", pa.int64()), ("id", pa.string())])
_FIELDS = pa.schema([("hash", pa.uint64()), ("row", pa.int64()), ("id", pa.string())])


class Identifiers:
    """The ids of an index (a Parquet file with columns `id` and `row`); close it after use."""

    def __init__(
        self, index: Path, master: bytes = b"", check: Callable[[], None] = lambda: None
    ) -> None:
        """`master` tells one master from another; `check` is called before a file is made for the
        two.
        """
        self._stack = ExitStack()
        path = index.with_suffix(_SUFFIX)
        identity = _identity(index) + master
        if not path.is_file() or not self._opened(path, identity):
            check()
            try:
                _write(index, path, identity)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR):
                    raise
                folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="plm-embed-"))
                path = Path(folder, path.name)
                _write(index, path, identity)
            if not self._opened(path, identity):
                raise RuntimeError(f"{path}: not what was just written")

    def _opened(self, path: Path, identity: bytes) -> bool:
        """Map the file; False when it belongs to another index, or is none."""
        try:
            source = pa.memory_map(str(path))
            reader = pa.ipc.open_file(source)
            if reader.schema != _FIELDS or (reader.schema.metadata or {}).get(b"index") != identity:
                source.close()
                return False
            firsts = [
                reader.get_batch(number)["hash"][0].as_py()
                for number in range(reader.num_record_batches)
            ]
            self._firsts = np.array(firsts, dtype=np.uint64)
        except (pa.ArrowException, OSError, IndexError, TypeError):
            return False
        self._stack.callback(source.close)
        self.path, self._reader, self._whole = path, reader, False
        self._batch = lru_cache(_OPEN_BATCHES)(self._checked)
        return True

    def _checked(self, number: int) -> pa.RecordBatch:
        """One batch. StoreError when it is not what was written."""
        try:
            batch, notes = self._reader.get_batch_with_custom_metadata(number)
            if notes and notes[_CHECK] == _checksum(batch):
                return batch
        except (pa.ArrowException, OSError, LookupError, TypeError, ValueError):
            pass
        raise StoreError(
            f"{self.path}: damaged",
            remedy="remove it, and it is made again when it is needed",
            path=self.path,
        )

    def _check_all(self) -> None:
        """StoreError when any batch is not what was written. Done once."""
        for number in () if self._whole else range(self._reader.num_record_batches):
            self._checked(number)
        self._whole = True

    def close(self) -> None:
        self._stack.close()

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The row of each id, or ABSENT, or SEVERAL."""
        found = np.full(len(ids), ABSENT, dtype=np.int64)
        hashes = np.array([int.from_bytes(_digest(each)[:8]) for each in ids], dtype=np.uint64)
        # ids whose hashes are equal may lie on both sides of a border
        first = np.maximum(np.searchsorted(self._firsts, hashes, side="left") - 1, 0)
        last = np.searchsorted(self._firsts, hashes, side="right")
        for place, each in enumerate(ids):
            for number in range(int(first[place]), int(last[place])):
                batch = self._batch(number)
                values = batch["hash"].to_numpy()
                at = int(np.searchsorted(values, hashes[place]))
                while at < len(values) and values[at] == hashes[place]:
                    if batch["id"][at].as_py() == each:
                        found[place] = batch["row"][at].as_py()
                    at += 1
        if (found == ABSENT).any():  # said of a damaged file it might be wrong
            self._check_all()
        return found


def _checksum(batch: pa.RecordBatch) -> bytes:
    """A CRC-32 of what the batch says, however its buffers are cut."""
    ids = batch["id"]
    _, offsets, text = ids.buffers()
    bounds = np.frombuffer(offsets, np.int32)[ids.offset : ids.offset + len(ids) + 1]
    sums = (batch["hash"].to_numpy(), batch["row"].to_numpy(), np.diff(bounds))
    crc = zlib.crc32(memoryview(text or b"")[bounds[0] : bounds[-1]])
    for column in sums:
        crc = zlib.crc32(column.tobytes(), crc)
    return b"%08x" % crc


def _digest(id: str) -> bytes:
    return hashlib.sha256(id.encode(errors="surrogatepass")).digest()


def _identity(index: Path) -> bytes:
    """What tells an index from another: its size, and its end, where Parquet has sizes and bounds
    of all columns.
    """
    try:
        with index.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - _TAIL_BYTES, 0))
            return f"{size} {hashlib.sha256(file.read()).hexdigest()}".encode()
    except FileNotFoundError:
        raise StoreError(
            f"{index}: there is no such file", remedy=gather_again(index), path=index
        ) from None


def _write(index: Path, path: Path, identity: bytes) -> None:
    with (
        atomic_path(path) as temporary,
        KeySorter(
            path.parent, _SORTED, _SORT_BYTES, lambda: added / max(total, 1), once="id"
        ) as sorter,
    ):
        added, total = 0, pq.read_metadata(index).num_rows
        for batch in record_batches(index, ["id", "row"], _BATCH_ROWS, gather_again(index)):
            ids = batch["id"]
            digests = b"".join(map(_digest, ids.to_pylist()))
            keys = pa.FixedSizeBinaryArray.from_buffers(
                KEY, len(ids), [None, pa.py_buffer(digests)]
            )
            added += len(ids)
            sorter.add(pa.record_batch([keys, batch["row"], ids], schema=_SORTED))
        with pa.ipc.new_file(str(temporary), _FIELDS.with_metadata({b"index": identity})) as writer:
            for rows in _distinct(sorter.sorted()):
                for start in range(0, rows.num_rows, _BATCH_ROWS):
                    batch = rows.slice(start, _BATCH_ROWS)
                    writer.write_batch(batch, custom_metadata={_CHECK: _checksum(batch)})


def _distinct(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One line per id: its row, or SEVERAL. The sorter gives the id on the first line of each and
    null on the rest.
    """
    pending: pa.RecordBatch | None = None  # an id whose lines may go on in the next batch
    for batch in batches:
        first = batch["id"].is_valid().to_numpy(zero_copy_only=False)
        rows = batch["row"].to_numpy()
        starts = np.flatnonzero(first)
        lead = int(starts[0]) if len(starts) else len(rows)
        if pending is not None:
            known = pending["row"][0].as_py()
            if lead and (rows[:lead] != known).any():
                pending = pa.record_batch(
                    [pending["hash"], pa.array([SEVERAL]), pending["id"]], schema=_FIELDS
                )
            if len(starts):
                yield pending
        if not len(starts):
            continue
        low, high = np.minimum.reduceat(rows, starts), np.maximum.reduceat(rows, starts)
        chosen = batch.take(pa.array(starts))
        values = np.where(low == high, low, SEVERAL)
        found = pa.record_batch(
            [pa.array(key_words(chosen["key"])[:, 0]), pa.array(values), chosen["id"]],
            schema=_FIELDS,
        )
        if found.num_rows > 1:
            yield found.slice(0, found.num_rows - 1)
        pending = found.slice(found.num_rows - 1)
    if pending is not None:
        yield pending


def shared_ids(folder: Path) -> str:
    """How many ids stand for several different sequences in the index of this folder, and the first
    of them; '' when there are none, nothing is gathered yet, or there are too many records to look
    through.
    """
    index = next((path.with_suffix(".parquet") for path in masters(folder)), folder)
    if not index.is_file() or pq.read_metadata(index).num_rows > _COUNTED:
        return ""
    lines = read_table(index, ["id", "row"], gather_again(index))
    rows = lines.filter(pc.not_equal(lines["id"], "")).group_by("id", use_threads=False)
    counted = rows.aggregate([("row", "count_distinct")])
    shared = counted.filter(pc.greater(counted["row_count_distinct"], 1))["id"].to_pylist()
    if not shared:
        return ""
    count = "1 id stands" if len(shared) == 1 else f"{len(shared):,} ids stand"
    return f"{count} for several different sequences: {some(shared)}"
