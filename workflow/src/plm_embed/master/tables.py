"""The index of a master and its records.parquet, made from the tables of deduplicate and the
completion records: gather writes them, validate compares them.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.errors import StoreError
from plm_embed.io.parquet import read_groups, read_schema
from plm_embed.keys import find, key_array
from plm_embed.master.campaign import Campaign
from plm_embed.sequence_windows import window_counts
from plm_embed.sequences.summary import SUMMARY, read_again, read_summary, verified
from plm_embed.store.blocks import locate

INDEX = {
    "id": pa.string(), "cache_key": pa.string(), "row": pa.int64(), "length": pa.int32(),
    "source": pa.string(), "number": pa.int64(),
}  # fmt: skip
"""Columns of the index, besides those that the user asked to keep."""
BYTES = 8
"""Disk space for a record, until all are written."""


class Tables:
    """The two tables of a campaign, in pieces.

    The outcome of every record (its row, or the reason for having none) lies in a temporary file
    without a name in `folder`, so that memory stays bounded. OSError where the disk has no room.
    """

    def __init__(self, campaign: Campaign, folder: Path) -> None:
        self._campaign, sequences = campaign, campaign.sequences
        self._records = verified(sequences, "records.parquet")
        members = read_schema(verified(sequences, f"members/{next(iter(campaign.rows))}.parquet"))
        scores = dict.fromkeys(campaign.fingerprint.scores, pa.float32())
        reserved = {"key", "events", *INDEX, *scores}
        columns = [column for column in members if column.name not in reserved]
        self.index_schema = pa.schema([*INDEX.items(), *scores.items(), *columns])
        schema = read_schema(self._records)
        self.records_schema = schema.insert(
            schema.get_field_index("length") + 1, pa.field("row", pa.int64())
        )
        inputs = read_summary(sequences).inputs
        self._sources = pa.array([entry.path for entry in inputs], pa.string())
        if len(set(self._sources)) < len(inputs):
            path = sequences / SUMMARY
            remedy = "name it once and run again"
            raise StoreError(f"{path}: an input file is named twice", path=path, remedy=remedy)
        # numbers count from 1; whatever stands before the first record of a file is number 0; the
        # last count is that of an unknown file
        self._count = np.array([*(entry.records for entry in inputs), -1], np.int64)
        self._first = np.cumsum(self._count + 1) - self._count - 1
        size = max(1, int(self._first[-1]))
        with tempfile.TemporaryFile(dir=folder) as file:
            # a file with holes would end the process by a signal once the disk is full
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, BYTES * size)
            # row + 1, or minus the number of a reason; 0: unknown
            self._outcome: NDArray[np.int64] = np.memmap(file, np.int64, "w+", shape=(size,))
        self._reasons: list[str] = [""]
        self._complete = False

    def index(self) -> Iterator[pa.Table]:
        """Yield the lines of all records that have a vector, by row; note every record's outcome.

        StoreError for a record that no input has, or whose key is unknown.
        """
        scores: Mapping[str, NDArray[np.float32]] = {}
        computed = {"cache_key", "row", *self._campaign.fingerprint.scores}
        columns = [name for name in self.index_schema.names if name not in computed]
        sequences = self._campaign.sequences
        for name, first in self._campaign.rows.items():
            bucket = self._campaign.bucket(name)
            reasons = bucket.completion.reasons
            if self._campaign.fingerprint.scores:
                scores = locate(bucket, self._campaign.store).scores
            self._reasons += sorted(set(reasons.values()) - set(self._reasons))
            path = verified(sequences, f"members/{name}.parquet")
            for table in read_groups(path, ["key", *columns]):
                place, has = find(bucket.keys, key_array(table["key"]))
                outcome = first + place + 1
                lines = table.append_column("row", pa.array(first + place))
                lines = lines.append_column("cache_key", table["key"])
                for score, values in scores.items():  # of a sequence without a vector any number
                    chosen = values[place] if len(values) else np.zeros(len(place), np.float32)
                    lines = lines.append_column(score, pa.array(chosen))
                if not has.all():
                    keys = table["key"].filter(pa.array(~has)).to_pylist()
                    if not all(key.encode() in reasons for key in keys):
                        message = f"{path}: has keys that bucket {name} lacks"
                        raise StoreError(message, path=path, remedy=read_again(sequences))
                    outcome[~has] = [-self._reasons.index(reasons[key.encode()]) for key in keys]
                    lines = lines.filter(pa.array(has))
                self._outcome[self._places(table)] = outcome
                yield lines.select(self.index_schema.names).cast(self.index_schema)
        self._complete = True

    def records(self) -> Iterator[pa.Table]:
        """Yield all records in input order, with row, status, reason, detail and events.

        StoreError where the buckets say nothing about a record, or have one that was not accepted.
        """
        if not self._complete:
            for _ in self.index():
                pass
        policy = self._campaign.fingerprint.long_sequences
        status = pa.array(["skipped", "embedded", "embedded_with_events"])
        columns = [name for name in self.records_schema.names if name != "row"]
        for table in read_groups(self._records, columns):
            outcome = self._outcome[self._places(table)]
            accepted = pc.equal(table["status"], "accepted").to_numpy()
            if (wrong := accepted != (outcome != 0)).any():
                raise StoreError(
                    f"{record_name(table, int(np.flatnonzero(wrong)[0]))}: {self._records} and the "
                    "buckets disagree about it",
                    path=self._records,
                    remedy=read_again(self._records.parent),
                )
            has, lengths = outcome > 0, pc.fill_null(table["length"], 0).to_numpy()
            windows = np.where(has, window_counts(np.where(has, lengths, 0), policy), 1)
            changed = np.flatnonzero((windows != 1) | (outcome < 0)).tolist()
            names = ("reason", "detail", "events") if changed else ()
            texts: dict[str, list[str | None]] = {name: table[name].to_pylist() for name in names}
            for place in changed:
                if has[place]:
                    cropped = f"cropped={lengths[place] - policy.max_residues}"
                    event = f"windowed={windows[place]}" if windows[place] > 1 else cropped
                    events = filter(None, [texts["events"][place], event])
                    texts["events"][place] = ";".join(events)
                else:
                    texts["reason"][place] = self._reasons[-outcome[place]]
                    texts["detail"][place] = f"{lengths[place]} residues"
            values = dict(zip(table.column_names, table.columns, strict=True))
            values |= {name: pa.array(column, pa.string()) for name, column in texts.items()}
            eventful = np.asarray(pc.not_equal(pc.fill_null(values["events"], ""), ""))
            values["status"] = status.take(pa.array(np.where(has, 1 + eventful, 0)))
            values["row"] = pa.array(outcome - 1, mask=~has)
            ordered = [values[name] for name in self.records_schema.names]
            yield pa.table(ordered, schema=self.records_schema)

    def _places(self, table: pa.Table) -> NDArray[np.int64]:
        """Return the places of records among all outcomes, by their columns source and number.

        StoreError for a record that no input has.
        """
        source = pc.index_in(table["source"], value_set=self._sources)
        source = pc.fill_null(source, len(self._sources)).to_numpy()
        number = table["number"].to_numpy()
        if (unknown := (number < 0) | (number > self._count[source])).any():
            name = record_name(table, int(np.flatnonzero(unknown)[0]))
            raise StoreError(f"{name}: not in the inputs")
        places: NDArray[np.int64] = self._first[source] + number
        return places


def record_name(table: pa.Table, place: int) -> str:
    """Name a record as messages do: its file, and its number there."""
    return f"{table['source'][place]}, record {table['number'][place]}"
