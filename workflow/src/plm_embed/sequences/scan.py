"""One of many sequence files, in a job of its own: the account of its records, and the accepted
ones by ranges of keys. `split` takes up what the scans of all files left for a range.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pyarrow as pa

from plm_embed.errors import StoreError
from plm_embed.io.files import sha256_file
from plm_embed.io.parquet import row_group_writer
from plm_embed.io.sorting import PIECE, Range, distribute, sort_rows
from plm_embed.io.threads import Behind, quick_turns
from plm_embed.keys import range_bounds
from plm_embed.sequences.columns import accepted_schema, records_schema
from plm_embed.sequences.first_pass import BEHIND, Tally, check_keep, first_pass, sort
from plm_embed.sequences.records import Reader
from plm_embed.sequences.settings import ResiduePolicy
from plm_embed.sequences.summary import SUMMARY, ScanSummary, read_again, read_scan, write_summary
from plm_embed.sequences.tables import Table


class _Ranges:
    """Takes rows in any order and appends them, sorted piece by piece, to a file for each range of
    key space.
    """

    def __init__(self, paths: Sequence[Path], schema: pa.Schema, bounds: Sequence[int]) -> None:
        self._bounds = bounds
        self._rows: list[pa.RecordBatch] = []
        self._bytes = 0
        self._stack = ExitStack()
        self._ranges = [Range(path, schema) for path in paths]
        for each in self._ranges:
            self._stack.callback(each.close)

    def add(self, rows: pa.RecordBatch) -> None:
        self._rows.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= PIECE:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            distribute(sort_rows(self._rows), self._ranges, self._bounds)
        self._rows, self._bytes = [], 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def range_file(number: int) -> str:
    """The name of the file that a scan leaves for a range of keys."""
    return f"{number:04d}.arrows"


def scan(
    path: Path, number: int, output: Path, *, buckets: int, table: Table, policy: ResiduePolicy
) -> None:
    """Write the account of input file `number` (from 0), called `path`, to the folder `output`.

    records.parquet: as `deduplicate` writes it; 0000.arrows ...: the accepted records in each range
    of buckets, each batch sorted by key; last, summary.json. Needs some 400 MB of memory whatever
    the input. Errors as `deduplicate`.
    """
    check_keep(table)
    reader = Reader(path, table)
    output.mkdir(parents=True, exist_ok=True)
    (output / SUMMARY).unlink(missing_ok=True)
    tally = Tally(buckets, table.keep, policy, table.read)
    bounds = range_bounds(buckets)
    files = [output / range_file(each) for each in range(len(bounds) - 1)]
    with (
        quick_turns(),
        row_group_writer(output / "records.parquet", records_schema(table.keep)) as records,
        _Ranges(files, accepted_schema(table.keep), bounds[1:-1]) as ranges,
        Behind(BEHIND) as writing,
        Behind(BEHIND) as sorting,
    ):
        for rows in first_pass({number: reader}, table, policy, tally):
            writing.do(records.write, rows.records)
            sort(rows.accepted, sorting, ranges.add)
        sorting.do(ranges.flush)
    with ThreadPoolExecutor(BEHIND) as pool:
        tally.files = dict(
            zip((path.name for path in files), pool.map(sha256_file, files), strict=True)
        )
    tally.files["records.parquet"] = records.sha256
    write_summary(output, tally.scan(number))


def read_scans(folders: Sequence[Path]) -> list[ScanSummary]:
    """The summaries of the scans of all inputs. StoreError unless all are whole and come in the
    inputs' order.
    """
    stated = [read_scan(folder) for folder in folders]
    for number, (folder, summary) in enumerate(zip(folders, stated, strict=True)):
        if summary.number != number:
            raise StoreError(
                f"{folder}: is the scan of input {summary.number}, not of {number}",
                remedy=read_again(folder, "scan"),
                path=folder,
            )
    return stated
