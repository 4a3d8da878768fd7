"""Scans and splits brought together: what `deduplicate` writes, from many jobs."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from plm_embed.io.files import atomic_path
from plm_embed.io.parquet import read_batches, row_group_writer
from plm_embed.io.progress import progress
from plm_embed.io.threads import Behind
from plm_embed.sequences.columns import records_schema
from plm_embed.sequences.first_pass import BEHIND, Tally
from plm_embed.sequences.scan import read_scans
from plm_embed.sequences.summary import SUMMARY, Summary, read_summary, verified, write_summary


def collect(scans: Sequence[Path], splits: Sequence[Path], output: Path) -> Summary:
    """Write what `deduplicate` writes, to the byte, from the scans of all inputs and the splits of
    all ranges.

    The files of the buckets are linked, or copied where that cannot be, so that this can be
    repeated.
    """
    stated = read_scans(scans)
    tally = Tally.like(stated[0])
    for each in stated:
        tally.add(each)
    for folder in splits:
        tally.add(read_summary(folder, "split"))
    tally.end()
    output.mkdir(parents=True, exist_ok=True)
    (output / SUMMARY).unlink(missing_ok=True)
    for folder in splits:
        for name in read_summary(folder, "split").files:
            with atomic_path(output / name) as temporary:
                _link(verified(folder, name, "split"), temporary)
    with (
        progress("collect", len(scans), "inputs") as meter,
        row_group_writer(output / "records.parquet", records_schema(tally.keep)) as records,
        Behind(BEHIND) as behind,
    ):
        for folder in scans:
            for table in read_batches(verified(folder, "records.parquet", "scan")):
                for rows in table.to_batches():
                    behind.do(records.write, rows)
            meter.advance(1)
    tally.files["records.parquet"] = records.sha256
    summary = tally.summary()
    write_summary(output, summary)
    return summary


def _link(path: Path, link: Path) -> None:
    try:
        os.link(path, link)
    except OSError:  # another filesystem, or one without links
        shutil.copyfile(path, link)
