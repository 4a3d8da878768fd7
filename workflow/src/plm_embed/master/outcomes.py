"""Outcomes of all input records: noted bucket by bucket, written in input order."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.errors import StoreError
from plm_embed.fingerprint import LongSequences
from plm_embed.io.parquet import RowGroupWriter, read_groups, read_schema
from plm_embed.sequence_windows import window_counts
from plm_embed.sequences.summary import SUMMARY, read_again, read_summary, verified

ROW = pa.field("row", pa.int64())
"""The column of a model's records.parquet that deduplicate's lacks."""


class RecordTable:
    """A value for every input record, zero at first, found by the record's file and its number
    there. It lies in a temporary file without a name, so that memory stays bounded.

    sources: records by file, as deduplicate counted them.
    """

    def __init__(self, sequences: Path, folder: Path, dtype: Any) -> None:
        """Make the file in `folder`. OSError when the disk has no room for it."""
        inputs = read_summary(sequences).inputs
        self.sources = {entry.path: entry.records for entry in inputs}
        if len(self.sources) < len(inputs):
            path = sequences / SUMMARY
            remedy = "name it once and run again"
            raise StoreError(f"{path}: an input file is named twice", path=path, remedy=remedy)
        # numbers count from 1; what stands before the first record of a file is number 0
        counts = np.array(list(self.sources.values()), np.int64) + 1
        self._first = dict(zip(self.sources, (np.cumsum(counts) - counts).tolist(), strict=True))
        size = max(1, int(counts.sum()))
        with tempfile.TemporaryFile(dir=folder) as file:
            # a file with holes would end the process by a signal once the disk is full
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size * np.dtype(dtype).itemsize)
            self.values: np.ndarray = np.memmap(file, dtype=dtype, shape=(size,), mode="w+")

    def places(self, table: pa.Table) -> NDArray[np.int64]:
        """Return where the values of records lie, by their columns `source` and `number`.

        StoreError for a record that no input has.
        """
        source = table["source"].combine_chunks().dictionary_encode()
        paths: list[str] = source.dictionary.to_pylist()
        spans = [(self._first.get(path, 0), self.sources.get(path, -1)) for path in paths]
        of_source = source.indices.to_numpy(zero_copy_only=False)
        first, count = np.array(spans, np.int64).reshape(-1, 2)[of_source].T
        number = table["number"].to_numpy()
        if (unknown := (number < 0) | (number > count)).any():
            place = int(np.flatnonzero(unknown)[0])
            raise StoreError(f"{table['source'][place]}, record {number[place]}: no input has it")
        places: NDArray[np.int64] = first + number
        return places


class Outcomes:
    """The row of the master, or the reason for having none, of every accepted record."""

    BYTES = 8
    """Disk space for a record, until all are written."""

    def __init__(self, sequences: Path, folder: Path, policy: LongSequences) -> None:
        self._source = verified(sequences, "records.parquet")
        # row + 1, or minus the place of a reason; 0: unknown
        self._table = RecordTable(sequences, folder, np.int64)
        self._reasons = [""]
        self._policy = policy
        schema = read_schema(self._source)
        self.schema = schema.insert(schema.get_field_index("length") + 1, ROW)

    def embedded(self, members: pa.Table, rows: NDArray[np.int64]) -> None:
        """Note that these records (columns source, number) have a vector in rows (n,)."""
        self._table.values[self._table.places(members)] = rows + 1

    def skipped(self, members: pa.Table, reasons: Mapping[bytes, str]) -> None:
        """Note that these records have none, and the reason for their key."""
        why = [reasons[key.encode()] for key in members["key"].to_pylist()]
        self._reasons.extend(sorted(set(why) - set(self._reasons)))
        places = {reason: -place for place, reason in enumerate(self._reasons)}
        self._table.values[self._table.places(members)] = [places[reason] for reason in why]

    def write(self, to: RowGroupWriter) -> None:
        """Write all records with row, status, reason, detail and events. StoreError where the
        buckets say nothing about one, or have one that was not accepted.
        """
        columns = [name for name in self.schema.names if name != ROW.name]
        for table in read_groups(self._source, columns):
            outcome = self._table.values[self._table.places(table)]
            accepted = pc.equal(table["status"], "accepted").to_numpy()
            if (wrong := accepted != (outcome != 0)).any():
                place = int(np.flatnonzero(wrong)[0])
                record = f"{table['source'][place]}, record {table['number'][place]}"
                raise StoreError(
                    f"{record}: {self._source} and the buckets disagree about it",
                    path=self._source,
                    remedy=read_again(self._source.parent),
                )
            for batch in self._with_outcomes(table, outcome).select(self.schema.names).to_batches():
                to.write(batch)

    def _with_outcomes(self, table: pa.Table, outcome: NDArray[np.int64]) -> pa.Table:
        has, lengths = outcome > 0, pc.fill_null(table["length"], 0).to_numpy()
        windows = np.where(has, window_counts(np.where(has, lengths, 0), self._policy), 1)
        changed = np.flatnonzero((windows != 1) | (outcome < 0)).tolist()
        names = ("reason", "detail", "events") if changed else ()
        texts: dict[str, list[str | None]] = {name: table[name].to_pylist() for name in names}
        for place in changed:
            if has[place]:
                cropped = f"cropped={lengths[place] - self._policy.max_residues}"
                event = f"windowed={windows[place]}" if windows[place] > 1 else cropped
                texts["events"][place] = ";".join(filter(None, [texts["events"][place], event]))
            else:
                texts["reason"][place] = self._reasons[-outcome[place]]
                texts["detail"][place] = f"{lengths[place]} residues"
        new = {name: pa.array(values, pa.string()) for name, values in texts.items()}
        events = pc.fill_null(new.get("events", table["events"]), "")
        kinds = np.where(has, 1 + np.asarray(pc.not_equal(events, "")), 0)
        status = pa.array(["skipped", "embedded", "embedded_with_events"])
        new["status"] = status.take(pa.array(kinds))
        for name, values in new.items():
            table = table.set_column(table.schema.get_field_index(name), name, values)
        return table.append_column(ROW, pa.array(outcome - 1, mask=~has))
