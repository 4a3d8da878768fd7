"""The end of a deduplication in many jobs: one account of all records, all buckets in their folders, one summary."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from plm_embed.accounts import records_schema
from plm_embed.errors import UserError
from plm_embed.files import atomic_path, write_json
from plm_embed.progress import progress
from plm_embed.rowgroups import row_group_writer
from plm_embed.scan import BEHIND, Summary, read_scan
from plm_embed.tables import read_batches
from plm_embed.threads import Behind


def collect(scans: Sequence[Path], splits: Sequence[Path], output: Path) -> Summary:
    """Write what `deduplicate` writes, to the byte, from the scans of all inputs and the splits of all ranges.

    The files of the buckets are linked, or copied where that cannot be, so that this can be repeated.
    """
    stated = [read_scan(folder) for folder in scans]
    summary = Summary(stated[0]["buckets"], stated[0]["keep"])
    for each in stated:
        summary.add(each)
    for folder in splits:
        try:
            summary.add(json.loads((folder / "summary.json").read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError):
            raise UserError(f"{folder}: not a whole split; run `plm-embed split` again") from None
    summary.end()
    output.mkdir(parents=True, exist_ok=True)
    (output / "summary.json").unlink(missing_ok=True)
    for kind in ("buckets", "members"):
        for folder in splits:
            for path in sorted((folder / kind).glob("[0-9]*.parquet")):
                with atomic_path(output / kind / path.name) as temporary:
                    _link(path, temporary)
    with (
        progress("collect", len(scans), "inputs") as meter,
        row_group_writer(output / "records.parquet", records_schema(summary.keep)) as records,
        Behind(BEHIND) as behind,
    ):
        for folder in scans:
            for table in read_batches(folder / "records.parquet"):
                for rows in table.to_batches():
                    behind.do(records.write, rows)
            meter.advance(1)
    write_json(output / "summary.json", vars(summary))
    return summary


def _link(path: Path, link: Path) -> None:
    try:
        os.link(path, link)
    except OSError:  # another filesystem, or one without links
        shutil.copyfile(path, link)
