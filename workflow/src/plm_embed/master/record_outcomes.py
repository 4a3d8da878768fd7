"""What became of every input record: collected bucket by bucket, written in input order."""

from collections.abc import Callable
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.errors import StoreError
from plm_embed.fingerprint import Fingerprint
from plm_embed.io.parquet import RowGroupWriter, read_groups, read_schema
from plm_embed.master.record_places import RecordNumbers, RecordTable
from plm_embed.sequences.summary import read_again

_ROW = pa.field("row", pa.int64())
# row and reason count from 1; 0: none
_FATE = np.dtype([("row", "<i8"), ("windows", "<i4"), ("reason", "<i4")])


class Fates:
    """The row, or the reason for having none, of every record; kept on disk below `folder`
    meanwhile.
    """

    BYTES = _FATE.itemsize
    """Disk space per place."""

    def __init__(self, folder: Path, numbers: RecordNumbers, fingerprint: Fingerprint) -> None:
        self._numbers = numbers
        self._policy = fingerprint.long_sequences
        self._table = RecordTable(folder, numbers.places, _FATE)
        self._reasons: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._table.close()

    def embedded(
        self, members: pa.Table, row: NDArray[np.int64], windows: NDArray[np.int32]
    ) -> None:
        """Note that these records (columns source, number) have a vector in the given rows of the
        master.
        """
        number = self._numbers.of(members)
        self._table.values["row"][number] = row + 1
        self._table.values["windows"][number] = windows

    def skipped(self, members: pa.Table, reasons: dict[bytes, str]) -> None:
        """Note that these records have none, and the reason for their key."""
        why = [reasons[key.encode()] for key in members["key"].to_pylist()]
        self._reasons.extend(sorted(set(why) - set(self._reasons)))
        self._table.values["reason"][self._numbers.of(members)] = [
            self._reasons.index(reason) + 1 for reason in why
        ]

    @staticmethod
    def schema(source: Path) -> pa.Schema:
        """What `write` writes about the records of `source`."""
        schema = read_schema(source)
        return schema.insert(schema.get_field_index("length") + 1, _ROW)

    def write(self, source: Path, rows: RowGroupWriter, go_on: Callable[[], None]) -> None:
        """Write the records of `source` with final status, reason, detail, events and row; `go_on`
        now and then.
        """
        names = self.schema(source).names
        for table in read_groups(source, [name for name in names if name != _ROW.name]):
            go_on()
            fate = self._table.values[self._numbers.of(table)]
            for batch in self._final(source, table, fate).select(names).to_batches():
                rows.write(batch)

    def _final(self, source: Path, table: pa.Table, fate: NDArray[np.void]) -> pa.Table:
        embedded, dropped = fate["row"] > 0, fate["reason"] > 0
        accepted = pc.equal(table["status"], "accepted").to_numpy()
        if (accepted != (embedded | dropped)).any():
            at = int(np.flatnonzero(accepted != (embedded | dropped))[0])
            raise StoreError(
                f"{table['source'][at]}, record {table['number'][at]}: {source} and the buckets "
                "disagree about it",
                remedy=read_again(source.parent),
                path=source,
            )
        long = embedded & (fate["windows"] != 1)
        if long.any() or dropped.any():
            table = self._explained(table, fate, long, dropped)
        eventful = pc.not_equal(pc.fill_null(table["events"], ""), "").to_numpy()
        status = pa.array(["skipped", "embedded", "embedded_with_events"]).take(
            pa.array(np.where(embedded, 1 + eventful, 0))
        )
        table = table.set_column(table.schema.get_field_index("status"), "status", status)
        return table.append_column(_ROW, pa.array(fate["row"] - 1, mask=~embedded))

    def _explained(
        self,
        table: pa.Table,
        fate: NDArray[np.void],
        long: NDArray[np.bool_],
        dropped: NDArray[np.bool_],
    ) -> pa.Table:
        """With the events of long sequences, and why some have no vector."""
        columns: dict[str, list[str | None]] = {
            name: table[name].to_pylist() for name in ("reason", "detail", "events")
        }
        lengths: list[int] = table["length"].to_pylist()
        for at in np.flatnonzero(long).tolist():
            events = [
                columns["events"][at],
                self._long_event(int(fate["windows"][at]), lengths[at]),
            ]
            columns["events"][at] = ";".join(filter(None, events))
        for at in np.flatnonzero(dropped).tolist():
            columns["reason"][at] = self._reasons[fate["reason"][at] - 1]
            columns["detail"][at] = f"{lengths[at]} residues"
        for name, values in columns.items():
            table = table.set_column(
                table.schema.get_field_index(name), name, pa.array(values, pa.string())
            )
        return table

    def _long_event(self, windows: int, length: int) -> str:
        """In how many windows a long sequence was embedded, or how many residues were left out."""
        return (
            f"windowed={windows}"
            if windows > 1
            else f"cropped={length - self._policy.max_residues}"
        )
