"""The end of a deduplication in many jobs: one account of all records, all buckets in their folders, one summary."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from plm_embed.accounts import records_schema
from plm_embed.deduplicated import SUMMARY, read_summary, verified
from plm_embed.files import atomic_path
from plm_embed.progress import progress
from plm_embed.rowgroups import row_group_writer
from plm_embed.scan import BEHIND, Summary, read_scans
from plm_embed.tables import read_batches
from plm_embed.threads import Behind


def collect(scans: Sequence[Path], splits: Sequence[Path], output: Path) -> Summary:
    """Write what `deduplicate` writes, to the byte, from the scans of all inputs and the splits of all ranges.

    The files of the buckets are linked, or copied where that cannot be, so that this can be repeated.
    """
    stated = read_scans(scans)
    summary = Summary(stated[0]["buckets"], stated[0]["keep"])
    for each in stated:
        summary.add(each | {"files": {}})
    for folder in splits:
        summary.add(read_summary(folder, "split"))
    summary.end()
    output.mkdir(parents=True, exist_ok=True)
    (output / SUMMARY).unlink(missing_ok=True)
    for folder in splits:
        for name in read_summary(folder, "split")["files"]:
            with atomic_path(output / name) as temporary:
                _link(verified(folder, name, "split"), temporary)
    with (
        progress("collect", len(scans), "inputs") as meter,
        row_group_writer(output / "records.parquet", records_schema(summary.keep)) as records,
        Behind(BEHIND) as behind,
    ):
        for folder in scans:
            for table in read_batches(verified(folder, "records.parquet", "scan")):
                for rows in table.to_batches():
                    behind.do(records.write, rows)
            meter.advance(1)
    summary.files["records.parquet"] = records.sha256
    summary.write(output)
    return summary


def _link(path: Path, link: Path) -> None:
    try:
        os.link(path, link)
    except OSError:  # another filesystem, or one without links
        shutil.copyfile(path, link)
