"""Ids that records with different sequences share: none of them is the name of one vector."""

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from plm_embed.io.parquet import read_table
from plm_embed.reading.find import MAKE_AGAIN, masters
from plm_embed.wording import some

_MOST = 1_000_000
"""Records among which they are counted, in memory and in a second."""


def shared_ids(folder: Path) -> str:
    """How many there are of the model of this folder, and the first of them; '' when there are
    none, nothing is gathered yet, or there are too many records to look through.
    """
    index = next((path.with_suffix(".parquet") for path in masters(folder)), folder)
    if not index.is_file() or pq.read_metadata(index).num_rows > _MOST:
        return ""
    lines = read_table(index, ["id", "row"], MAKE_AGAIN)
    rows = lines.filter(pc.not_equal(lines["id"], "")).group_by("id", use_threads=False)
    counted = rows.aggregate([("row", "count_distinct")])
    shared = counted.filter(pc.greater(counted["row_count_distinct"], 1))["id"].to_pylist()
    if not shared:
        return ""
    count = "1 id stands" if len(shared) == 1 else f"{len(shared):,} ids stand"
    return f"{count} for several different sequences: {some(shared)}"
