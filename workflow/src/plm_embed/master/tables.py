"""The index of a master and its records.parquet, made from the tables of deduplicate and the
completion records: gather writes them, validate compares them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.errors import StoreError
from plm_embed.io.parquet import read_groups, read_schema
from plm_embed.keys import find, key_array
from plm_embed.master.campaign import Campaign, located
from plm_embed.sequence_windows import window_counts
from plm_embed.sequences.summary import read_again, read_summary, verified

INDEX = {
    "id": pa.string(), "cache_key": pa.string(), "row": pa.int64(), "length": pa.int32(),
    "source": pa.string(), "number": pa.int64(),
}  # fmt: skip
"""Columns of the index, besides those that the user asked to keep."""
STATUSES = pa.array(["skipped", "embedded", "embedded_with_events"])


class Tables:
    """The two tables of a campaign, in pieces. index: an iterator over the lines of all records
    that have a vector, by row; it notes the outcome of every record (a row, or the reason for
    having none), in 4 bytes each.
    """

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self._records = verified(campaign.sequences, "records.parquet")
        name = f"members/{next(iter(campaign.rows))}.parquet"
        computed = INDEX | dict.fromkeys(campaign.fingerprint.scores, pa.float32())
        members = read_schema(verified(campaign.sequences, name))
        kept = [column for column in members if column.name not in {"key", "events", *computed}]
        self.index_schema = pa.schema([*computed.items(), *kept])
        schema, row = read_schema(self._records), pa.field("row", pa.int64())
        self.records_schema = schema.insert(schema.get_field_index("length") + 1, row)
        inputs = read_summary(campaign.sequences).inputs
        self._sources = pa.array([entry.path for entry in inputs], pa.string())
        # numbers count from 1; whatever stands before the first record of a file is number 0
        counts = np.array([entry.records + 1 for entry in inputs], np.int64)
        self._first = np.cumsum(counts) - counts
        # row + 1, or minus the number of a reason; 0: unknown
        kind = np.int32 if campaign.vectors < np.iinfo(np.int32).max else np.int64
        self._outcomes: NDArray[np.signedinteger] = np.zeros(int(counts.sum()), kind)
        self._reasons = [""]
        self.index = self._index()

    def _index(self) -> Iterator[pa.Table]:
        campaign, names = self._campaign, self.index_schema.names
        computed = {"cache_key", "row", *campaign.fingerprint.scores}
        for bucket in map(campaign.bucket, campaign.rows):
            first, reasons = campaign.rows[bucket.name], bucket.completion.reasons
            self._reasons += sorted(set(reasons.values()) - set(self._reasons))
            scores: dict[str, NDArray[np.float32]] = {}
            if campaign.fingerprint.scores:
                with located(bucket, campaign.parts_folder) as vectors:
                    scores = {name: vectors.columns[name] for name in campaign.fingerprint.scores}
            path = verified(campaign.sequences, f"members/{bucket.name}.parquet")
            for table in read_groups(path, ["key", *(n for n in names if n not in computed)]):
                rows, has = find(bucket.keys, key_array(table["key"]))
                outcomes, lines = first + rows + 1, table
                if not has.all():
                    rows, lines = rows[has], table.filter(pa.array(has))
                    absent = table["key"].filter(pa.array(~has)).to_pylist()
                    words = [reasons.get(key.encode(), "") for key in absent]
                    outcomes[~has] = [-self._reasons.index(word) for word in words]
                self._outcomes[self._places(table)] = outcomes
                columns = {"cache_key": lines["key"], "row": first + rows}
                columns |= {score: values[rows] for score, values in scores.items()}
                yield _table(lines, columns, self.index_schema)

    def records(self) -> Iterator[pa.Table]:
        """Yield all records in input order, with row, status, reason, detail and events.

        StoreError where the buckets say nothing about a record, or have one that was not accepted.
        """
        for _ in self.index:  # what nobody has read of it
            pass
        policy = self._campaign.fingerprint.long_sequences
        columns = [name for name in self.records_schema.names if name != "row"]
        for table in read_groups(self._records, columns):
            outcomes = self._outcomes[self._places(table)]
            accepted = pc.equal(table["status"], "accepted").to_numpy()
            for place in np.flatnonzero(accepted != (outcomes != 0))[:1].tolist():
                raise StoreError(
                    f"{record_name(table.slice(place, 1).to_pylist()[0])}: {self._records} and the "
                    "buckets disagree about it",
                    path=self._records,
                    remedy=read_again(self._records.parent),
                )
            has, lengths = outcomes > 0, pc.fill_null(table["length"], 0).to_numpy()
            windows = window_counts(np.where(has, lengths, 0), policy)
            changed = np.flatnonzero((windows != 1) | (outcomes < 0)).tolist()
            names = ("reason", "detail", "events") if changed else ()
            texts: dict[str, list[str | None]] = {name: table[name].to_pylist() for name in names}
            for place in changed:
                if has[place]:
                    cropped = f"cropped={lengths[place] - policy.max_residues}"
                    event = f"windowed={windows[place]}" if windows[place] > 1 else cropped
                    events = filter(None, [texts["events"][place], event])
                    texts["events"][place] = ";".join(events)
                else:
                    texts["reason"][place] = self._reasons[-outcomes[place]]
                    texts["detail"][place] = f"{lengths[place]} residues"
            values = {name: pa.array(column, pa.string()) for name, column in texts.items()}
            events = pc.fill_null(values.get("events", table["events"]), "")
            eventful = np.asarray(pc.not_equal(events, ""))
            values["status"] = STATUSES.take(pa.array(np.where(has, 1 + eventful, 0)))
            values["row"] = pa.array(outcomes.astype(np.int64) - 1, mask=~has)
            yield _table(table, values, self.records_schema)

    def _places(self, table: pa.Table) -> NDArray[np.int64]:
        """Return the places of records among all outcomes, by their columns source and number."""
        sources = pc.index_in(table["source"], value_set=self._sources).to_numpy()
        places: NDArray[np.int64] = self._first[sources] + table["number"].to_numpy()
        return places


def _table(table: pa.Table, columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """Return a table of this schema, whose other columns are those of `table`."""
    values = [columns[name] if name in columns else table[name] for name in schema.names]
    return pa.table(values, schema=schema)


def record_name(record: Mapping[str, Any]) -> str:
    """Name a record as messages do: its file, and its number there."""
    return f"{record['source']}, record {record['number']}"
