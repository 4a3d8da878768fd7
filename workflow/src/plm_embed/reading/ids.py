"""Records by their ids: the row of each in the master, and a hint about an id that has none."""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.errors import StoreError
from plm_embed.io.parquet import count_rows, read_batches
from plm_embed.wording import did_you_mean

ABSENT, SEVERAL = -1, -2
"""Values in place of a row: no record has the id, or records with different sequences share it."""
_FEW = 10_000
"""The most records among whose ids a similar one is searched."""
_MANY = 1_000_000
"""The most records that are read, in less than a second, for the reason of one."""


class IdIndex:
    """Rows by id, in memory: 24 bytes and the id for each line of the index. Lines are sorted by
    Python's hash of their ids, which holds in this process alone. A million lines take 0.7 s and
    130 MB at most, ten million 7 s and 1 GB; then an id takes 4 us.
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


def is_called(ids: pa.Array, id: str) -> pa.Array:
    """Return for each id whether it is this one, or has it as UniProt's accession:
    sp|P12345|NAME.
    """
    id = id.encode(errors="replace").decode()  # Arrow takes no half characters
    return pc.or_kleene(pc.equal(ids, id), pc.match_substring(ids, f"|{id}|"))


def hint(id: str, index: Path, ids: IdIndex) -> str:
    """Return a hint, '; ...', about an id without a vector: the reason in its record, or a similar
    id.
    """
    records = index.with_name("records.parquet")
    with suppress(StoreError, OSError, pa.ArrowException):
        if count_rows(records) <= _MANY:
            for lines in read_batches(records, ["id", "status", "reason", "detail"]):
                skipped = lines.filter(pc.equal(lines["status"], "skipped"))
                for record in skipped.filter(is_called(skipped["id"], id)).slice(0, 1).to_pylist():
                    detail = f" ({record['detail']})" if record["detail"] else ""
                    return f"; {record['id']} was skipped: {record['reason']}{detail}"
    words = [
        *re.split(r"[\s|]+", id.lstrip(">")),
        id.rpartition(".")[0],
        *(f"{id}.{version}" for version in "123"),
    ]
    matches = [word for word in words if word and ids.rows([word])[0] != ABSENT]
    if name := matches[0] if matches else ids.called(id) if len(ids) <= _MANY else None:
        return f"; did you mean {name}?"
    similar = did_you_mean(id, filter(None, ids)) if len(ids) <= _FEW else ""
    return similar or "; records.parquet says what became of a record"
