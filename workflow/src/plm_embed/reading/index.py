"""The index of a master: a line for each record that has a vector, by row and by id."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError, StoreError, UnknownIdError, delete
from plm_embed.io.parquet import read_matching, read_schema, record_batches
from plm_embed.reading.hints import hint, is_called
from plm_embed.store.parts import Part
from plm_embed.wording import some

Rows = NDArray[np.int64]
ABSENT, SEVERAL = -1, -2
"""Values in place of a row: no record has the id, or records with different sequences share it."""


class IdIndex:
    """Rows by id, in memory: 24 bytes and the id for each line of the index. Lines are sorted by
    Python's hash of their ids, which holds in this process alone. A million lines take 0.8 s and at
    most 200 MB, ten million 7 s and 0.9 GB; then an id takes 4 us.
    """

    def __init__(self, lines: Iterable[pa.RecordBatch]) -> None:
        """`lines` have the columns id and row, a line per record."""
        ids, rows, hashes = [], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for batch in lines:
            ids.append(batch["id"])
            rows.append(batch["row"].to_numpy())
            hashes.append(np.fromiter(map(hash, batch["id"].to_pylist()), np.int64, len(batch)))
        self._ids = pa.chunked_array(ids, None if ids else pa.string())
        self._rows, unsorted = np.concatenate(rows), np.concatenate(hashes)
        self._order = np.argsort(unsorted, kind="stable")
        self._hashes = unsorted[self._order]

    def __iter__(self) -> Iterator[str]:
        for chunk in self._ids.chunks:
            yield from chunk.to_pylist()

    def __contains__(self, id: str) -> bool:
        return int(self.rows([id])[0]) != ABSENT

    def __len__(self) -> int:
        """Return the number of lines."""
        return len(self._rows)

    def rows(self, ids: list[str]) -> NDArray[np.int64]:
        """Return the row of each id, or ABSENT, or SEVERAL: (k,)."""
        hashes = np.fromiter(map(hash, ids), np.int64, len(ids))
        row_of = np.full(len(ids), ABSENT)
        firsts, stops = (np.searchsorted(self._hashes, hashes, side) for side in ("left", "right"))
        for place, (id, first, stop) in enumerate(
            zip(ids, firsts.tolist(), stops.tolist(), strict=True)
        ):
            lines = self._order[first:stop].tolist()
            rows = {int(self._rows[line]) for line in lines if self._ids[line].as_py() == id}
            if rows:
                row_of[place] = rows.pop() if len(rows) == 1 else SEVERAL
        return row_of

    def called(self, id: str) -> str | None:
        """Return the first id that is this one, or has it as UniProt's accession."""
        matches = self._ids.filter(is_called(self._ids, id))
        name: str | None = matches[0].as_py() if len(matches) else None
        return name


class RecordIndex:
    """The Parquet file beside a master. StoreError for a damaged file, and for one whose lines do
    not name the row of their key: with the index of another run, ids would have wrong vectors.
    """

    def __init__(self, path: Path, master: Callable[[], AbstractContextManager[Part]]) -> None:
        """`master` opens the vectors that the index belongs to."""
        self.path, self._master, self._remedy = path, master, delete(path)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the index."""
        return read_schema(self.path, self._remedy).remove_metadata()

    def lines(
        self, columns: list[str] | None = None, rows: int = 1 << 16
    ) -> Iterator[pa.RecordBatch]:
        """Yield all lines in order, at most `rows` at a time."""
        read = columns and list(dict.fromkeys([*columns, "row", "cache_key"]))
        for lines in record_batches(self.path, read, rows, self._remedy):
            places = lines["row"].to_numpy(zero_copy_only=False)
            first, stop = places.min(), places.max() + 1
            with self._master() as part:
                # lines are in the order of rows, each of which has one: few rows serve many lines
                if places.dtype == np.int64 and 0 <= first < stop <= part.count:
                    keys = part.column_at("emb_keys", np.arange(first, min(stop, first + rows)))
                    keys = keys[np.minimum(places - first, len(keys) - 1)]
                    if lines["cache_key"].cast(pa.binary()).equals(pa.array(keys, pa.binary())):
                        yield lines.select(columns) if columns else lines
                        continue
                raise self._foreign(part)

    def lines_of(self, rows: Rows) -> pa.Table:
        """Return the lines of all records of these rows (increasing), in their order."""
        lines = read_matching(self.path, "row", rows, self._remedy)
        named = dict(zip(lines["row"].to_pylist(), lines["cache_key"].to_pylist(), strict=True))
        with self._master() as part:
            keys = part.column_at("emb_keys", rows).astype(str)
            if named != dict(zip(rows.tolist(), keys.tolist(), strict=True)):
                raise self._foreign(part)
        return lines

    def _foreign(self, part: Part) -> StoreError:
        return StoreError(
            f"{self.path}: not the index of {part.path}: it names other rows or sequences",
            remedy="open it again, if a run has just replaced them; else put the two files of one "
            f"run side by side, or {delete(part.path, self.path)}",
            path=self.path,
        )

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ids of all lines."""
        for lines in record_batches(self.path, ["id"], 1 << 16, self._remedy):
            yield from lines["id"].to_pylist()

    @cached_property
    def _ids(self) -> IdIndex:
        return IdIndex(self.lines(["id", "row"]))

    def __contains__(self, id: str) -> bool:
        return id in self._ids

    def rows(self, ids: Iterable[str]) -> Rows:
        """Return the row of each id. UnknownIdError for one that is not there; PlmEmbedError for
        one that records with different sequences share.
        """
        ids = list(ids)
        rows = self._ids.rows(ids)
        if absent := [id for id, row in zip(ids, rows, strict=True) if row == ABSENT]:
            words = some(absent) + hint(absent[0], self.path, self._ids)
            master = self.path.with_suffix(".h5")
            raise UnknownIdError(f"{master}: no vector for {words}", path=master)
        if several := [id for id, row in zip(ids, rows, strict=True) if row == SEVERAL]:
            raise PlmEmbedError(
                f"{self.path}: records with different sequences share the id {some(several)}",
                path=self.path,
                remedy="find their rows by source and number in to_pandas(), or use by_key",
            )
        return rows
