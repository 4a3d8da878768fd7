"""The index of a master: a line for each record that has a vector, by row and by id."""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError, StoreError, UnknownIdError, delete
from plm_embed.io.parquet import read_batches, read_matching, read_schema, record_batches
from plm_embed.store.parts import Part
from plm_embed.wording import did_you_mean, some

Rows = NDArray[np.int64]
ABSENT, SEVERAL = -1, -2
"""Values in place of a row: no record has the id, or records with different sequences share it."""
_FEW = 10_000
"""The most ids among which a similar one is searched."""


class RecordIndex:
    """The Parquet file beside a master. StoreError for a damaged file, and for one whose lines do
    not name the row of their key: with the index of another run, ids would have wrong vectors.
    """

    def __init__(self, path: Path, master: Callable[[], Part]) -> None:
        """`master` returns the open file of the vectors that the index belongs to."""
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
            self._check(lines)
            yield lines.select(columns) if columns else lines

    def lines_of(self, rows: Rows) -> pa.Table:
        """Return the lines of all records of these rows (increasing), in their order."""
        lines = read_matching(self.path, "row", rows, self._remedy)
        self._check(lines, rows)
        return lines

    def _check(self, lines: pa.RecordBatch | pa.Table, expected: Rows | None = None) -> None:
        """Raise StoreError unless each line has the row of its key, and all expected rows occur."""
        master = self._master()
        rows, place = np.unique(lines["row"].to_numpy(), return_inverse=True)
        if rows.dtype == np.int64 and (not len(rows) or 0 <= rows[0] <= rows[-1] < master.count):
            keys = pa.array(master.column_at("emb_keys", rows)[place], pa.binary())
            same = pc.equal(lines["cache_key"].cast(pa.binary()), keys)
            missing = expected is not None and len(rows) < len(expected)
            if pc.all(same, skip_nulls=False, min_count=0).as_py() and not missing:
                return
        raise StoreError(
            f"{self.path}: not the index of {master.path}: it names other rows or sequences",
            remedy="open it again, if a run has just replaced them; else put the two files of one "
            f"run side by side, or {delete(master.path, self.path)}",
            path=self.path,
        )

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ids of all lines."""
        for lines in record_batches(self.path, ["id"], 1 << 16, self._remedy):
            yield from lines["id"].to_pylist()

    @cached_property
    def row_of(self) -> dict[str, int]:
        """The row of each id, or SEVERAL. A million ids take a second and 250 MB."""
        row_of: dict[str, int] = {}
        for lines in self.lines(["id", "row"]):
            for id, row in zip(lines["id"].to_pylist(), lines["row"].to_pylist(), strict=True):
                if row_of.setdefault(id, row) != row:
                    row_of[id] = SEVERAL
        return row_of

    def rows(self, ids: list[str]) -> Rows:
        """Return the row of each id. UnknownIdError for one that is not there; PlmEmbedError for
        one that records with different sequences share.
        """
        row_of = self.row_of
        rows = np.array([row_of.get(id, ABSENT) for id in ids], np.int64)
        if rows.min(initial=0) >= 0:
            return rows
        if absent := [str(id) for id in ids if id not in row_of]:
            master = self.path.with_suffix(".h5")
            words = f"{master}: no vector for {some(absent)}{self._hint(absent[0])}"
            raise UnknownIdError(words, path=master)
        shared = [id for id in dict.fromkeys(ids) if row_of[id] == SEVERAL]
        raise PlmEmbedError(
            f"{self.path}: records with different sequences share the id {some(shared)}",
            path=self.path,
            remedy="read them by row or key (to_pandas(), by_key); to search, give their sequences "
            "in a file instead of --id",
        )

    def _hint(self, id: str) -> str:
        """Return a hint, '; ...', about an id without a vector: why its record was skipped, or a
        similar id.
        """
        text = id.encode(errors="replace").decode()  # Arrow takes no half characters
        called = rf"(?s)^(.*\|)?{re.escape(text)}(\|.*)?$"  # as in UniProt's sp|P12345|NAME
        with suppress(StoreError, OSError, pa.ArrowException):
            columns = ["id", "status", "reason", "detail"]
            for lines in read_batches(self.path.with_name("records.parquet"), columns):
                skipped = lines.filter(pc.equal(lines["status"], "skipped"))
                same = pc.match_substring_regex(skipped["id"], called)
                for record in skipped.filter(same).slice(0, 1).to_pylist():
                    detail = f" ({record['detail']})" if record["detail"] else ""
                    return f"; {record['id']} was skipped: {record['reason']}{detail}"
        # a word of the header, the accession in sp|P12345|NAME, or another version
        versions = (f"{id}.{version}" for version in "123")
        words = [*re.split(r"[\s|>]+", id), id.rpartition(".")[0], *versions]
        names = (word for word in words if word and word in self.row_of)
        by_accession = (name for name in self.row_of if f"|{id}|" in name)
        if name := next(names, None) or next(by_accession, None):
            return f"; did you mean {name}?"
        similar = did_you_mean(id, filter(None, self.row_of)) if len(self.row_of) <= _FEW else ""
        return similar or "; records.parquet says what became of each record"
