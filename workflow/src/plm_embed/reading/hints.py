"""Hints about an id that has no vector."""

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from plm_embed.errors import StoreError
from plm_embed.io.parquet import count_rows, read_batches
from plm_embed.wording import did_you_mean

if TYPE_CHECKING:
    from plm_embed.reading.index import IdIndex

_FEW = 10_000
"""The most records among whose ids a similar one is searched."""
_MANY = 1_000_000
"""The most records that are read, in less than a second, for the reason of one."""


def is_called(ids: pa.Array, id: str) -> pa.Array:
    """Return for each id whether it is this one, or has it as UniProt's accession:
    sp|P12345|NAME.
    """
    id = id.encode(errors="replace").decode()  # Arrow takes no half characters
    return pc.or_kleene(pc.equal(ids, id), pc.match_substring(ids, f"|{id}|"))


def hint(id: str, index: Path, ids: "IdIndex") -> str:
    """Return a hint, '; ...', about an id without a vector: the reason in its record, or a similar
    id.
    """
    records, absent = index.with_name("records.parquet"), False
    with suppress(StoreError, OSError, pa.ArrowException):
        if count_rows(records) <= _MANY:
            for lines in read_batches(records, ["id", "status", "reason", "detail"]):
                skipped = lines.filter(pc.equal(lines["status"], "skipped"))
                for record in skipped.filter(is_called(skipped["id"], id)).slice(0, 1).to_pylist():
                    detail = f" ({record['detail']})" if record["detail"] else ""
                    return f"; {record['id']} was skipped: {record['reason']}{detail}"
            absent = True
    words = [
        *re.split(r"[\s|]+", id.lstrip(">")),
        id.rpartition(".")[0],
        *(f"{id}.{version}" for version in "123"),
    ]
    matches = [word for word in words if word and word in ids]
    if name := matches[0] if matches else ids.called(id) if len(ids) <= _MANY else None:
        return f"; did you mean {name}?"
    similar = did_you_mean(id, filter(None, ids)) if len(ids) <= _FEW else ""
    unknown = f"no record has the id {id!r}"
    return similar or f"; {unknown if absent else 'records.parquet says what became of a record'}"
