"""The index of a master: a Parquet file with a line per record, and the rows of records by id."""

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from plm_embed.errors import PlmEmbedError, StoreError, UnknownIdError
from plm_embed.io.parquet import read_batches, read_matching, read_table
from plm_embed.reading.find import gather_again, need_open
from plm_embed.reading.ids import ABSENT, SEVERAL, Identifiers
from plm_embed.reading.rows import Rows
from plm_embed.wording import did_you_mean, some

_FEW = 10_000
"""Records among whose ids a similar one is looked for."""
_MANY = 1_000_000
"""Records that are looked through, in less than a second, for what became of one."""


class Index:
    """The index of the master at `master`, whose keys are `keys` (n,); close it after use."""

    def __init__(self, master: Path, keys: h5py.Dataset, fingerprint_id: str) -> None:
        self.path = master.with_suffix(".parquet")
        self._master = master
        self._keys = keys
        self._fingerprint_id = fingerprint_id

    def close(self) -> None:
        if "identifiers" in vars(self):
            self.identifiers.close()

    def columns(self, columns: list[str] | None) -> pa.Table:
        """Some of its columns, or all."""
        return read_table(self.path, columns, gather_again(self.path))

    def lines(self, rows: Rows) -> pa.Table:
        """The lines of all records that have one of these rows (increasing), in the order of the
        file. StoreError unless they are of the sequences that have these rows.
        """
        lines = read_matching(self.path, "row", rows, gather_again(self.path))
        need_open(self._master, self._keys)
        found = np.searchsorted(rows, lines["row"].to_numpy())
        keys = np.array(lines["cache_key"].to_pylist(), dtype="S64")
        if set(found.tolist()) != set(range(len(rows))) or (self._keys[rows][found] != keys).any():
            raise self._foreign()
        return lines

    @cached_property
    def ids(self) -> list[str]:
        """Ids of all records, in the order of the file."""
        ids: list[str] = self.columns(["id"])["id"].to_pylist()
        return ids

    @cached_property
    def identifiers(self) -> Identifiers:
        """Rows by id. The first use makes a file for it beside the index, which takes some time for
        many records.
        """
        count = len(self._keys)
        ends = self._keys[[0, -1]] if count > 1 else self._keys[...]
        master = f" {self._fingerprint_id} {count}".encode() + b" " + ends.tobytes()
        return Identifiers(self.path, master, self.check)

    def __contains__(self, id: object) -> bool:
        """Whether a record has this id and a vector."""
        need_open(self._master, self._keys)
        return isinstance(id, str) and int(self.identifiers.rows([id])[0]) != ABSENT

    def check(self) -> None:
        """StoreError unless every row that the index names holds the sequence that the index says
        it does.
        """
        need_open(self._master, self._keys)
        for lines in read_batches(self.path, ["row", "cache_key"], gather_again(self.path)):
            sound = lines["row"].type == "int64" and not any(
                column.null_count for column in lines.columns
            )
            rows = lines["row"].to_numpy() if sound else np.zeros(1, np.int64)
            first, last = int(rows.min()), int(rows.max())
            # lines are in the order of their rows, so that few rows serve many lines
            sound = sound and first >= 0 and last < len(self._keys) and last - first < len(rows)
            keys = (
                np.array([str(key).encode() for key in lines["cache_key"].to_pylist()])
                if sound
                else None
            )
            if not sound or (self._keys[first : last + 1][rows - first] != keys).any():
                raise self._foreign()

    def rows(self, ids: Iterable[str]) -> Rows:
        """The row of each record id, in the order asked for.

        UnknownIdError for ids that are not there; PlmEmbedError for one that records with different
        sequences share.
        """
        need_open(self._master, self._keys)
        if isinstance(ids, str) or not isinstance(ids, Iterable):
            raise PlmEmbedError(f'ids are a list: get(["{ids}"])')
        ids = list(ids)
        if numbers := [id for id in ids if not isinstance(id, str)]:
            raise PlmEmbedError(
                f'ids are text: get(["{numbers[0]}"]); for the number '
                f"of a row, rows([{numbers[0]}])"
            )
        rows = self.identifiers.rows(ids)
        absent = [id for id, row in zip(ids, rows, strict=True) if row == ABSENT]
        if absent:
            hint = (
                self._skipped(absent[0])
                or self._nearest(absent[0])
                or "; records.parquet says what became of a record"
            )
            raise UnknownIdError(
                f"{self._master}: no vector for {some(absent)}{hint}", path=self._master
            )
        several = [id for id, row in zip(ids, rows, strict=True) if row == SEVERAL]
        if several:
            raise PlmEmbedError(
                f"{self._master}: records with different sequences share the id {some(several)}",
                path=self._master,
                remedy="find their rows by source and number in to_pandas(), or use by_key",
            )
        return rows

    def _skipped(self, id: str) -> str:
        """'; ID was skipped: REASON' for a record of this id, or UniProt accession, that has no
        vector, or ''.
        """
        records = self.path.with_name("records.parquet")
        with suppress(StoreError, OSError, pa.ArrowException):
            if pq.read_metadata(records).num_rows > _MANY:
                return ""
            for lines in read_batches(records, ["id", "status", "reason", "detail"]):
                skipped = lines.filter(pc.equal(lines["status"], "skipped"))
                for found in skipped.filter(_called(skipped["id"], id)).slice(0, 1).to_pylist():
                    detail = f" ({found['detail']})" if found["detail"] else ""
                    return f"; {found['id']} was skipped: {found['reason']}{detail}"
        return ""

    def _nearest(self, id: str) -> str:
        """'; did you mean ID?' for an id that is there, or ''."""
        words = [
            *re.split(r"[\s|]+", id.lstrip(">")),
            id.rpartition(".")[0],
            *(f"{id}.{version}" for version in "123"),
        ]
        there = [word for word in words if word and word in self]
        count = pq.read_metadata(self.path).num_rows
        if not there and count <= _MANY:
            ids = self.columns(["id"])["id"]
            there = ids.filter(_called(ids, id)).slice(0, 1).to_pylist()
        if there:
            return f"; did you mean {there[0]}?"
        return did_you_mean(id, filter(None, self.ids)) if count <= _FEW else ""

    def _foreign(self) -> StoreError:
        return StoreError(
            f"{self.path}: not the index of {self._master}: it names other rows or sequences",
            remedy="open it again, if a run has made them anew; else put the two files of one run "
            f"side by side, or {gather_again(self._master)}",
            path=self.path,
        )


def _called(ids: pa.ChunkedArray, id: str) -> pa.ChunkedArray:
    """Which ids are this one, or have it as UniProt's accession: sp|P12345|NAME."""
    id = id.encode(errors="replace").decode()  # Arrow takes no half characters
    return pc.or_kleene(pc.equal(ids, id), pc.match_substring(ids, f"|{id}|"))
