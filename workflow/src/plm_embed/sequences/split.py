"""The unique sequences of one range of buckets, from the scans of all inputs."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from plm_embed.io.sorting import KeySorter, read_rows
from plm_embed.io.threads import quick_turns
from plm_embed.keys import bucket_names, bucket_ranges, range_bounds
from plm_embed.sequences.columns import accepted_schema
from plm_embed.sequences.first_pass import Tally
from plm_embed.sequences.scan import range_file, read_scans
from plm_embed.sequences.summary import SUMMARY, verified, write_summary
from plm_embed.sequences.write_buckets import OWN_MEMORY_MB, write_buckets


def split(scans: Sequence[Path], number: int, output: Path, *, memory_mb: int) -> None:
    """Write the buckets of range `number` from the scans of all inputs, in their order, to the
    folder `output`.

    buckets/{bucket}.parquet and members/{bucket}.parquet of these buckets, as `deduplicate` writes
    them; last, summary.json about the unique sequences. `memory_mb` bounds the memory of the
    process.
    """
    stated = read_scans(scans)
    buckets, keep = stated[0].buckets, stated[0].keep
    sources = pa.array([entry.path for each in stated for entry in each.inputs], pa.string())
    low, high = range_bounds(buckets)[number : number + 2]
    names = bucket_ranges(bucket_names(buckets))[number]
    files = [verified(folder, range_file(number), "scan") for folder in scans]
    total = sum(path.stat().st_size for path in files)
    output.mkdir(parents=True, exist_ok=True)
    (output / SUMMARY).unlink(missing_ok=True)
    tally = Tally.like(stated[0])
    read = 0
    with (
        quick_turns(),
        KeySorter(
            output,
            accepted_schema(keep),
            int((memory_mb - OWN_MEMORY_MB) * 1e6),
            lambda: read / total,
            span=(low, high),
        ) as sorter,
    ):
        for path in files:
            for rows in read_rows(path):
                read += rows.nbytes
                sorter.add(rows)
        write_buckets(sorter.sorted(), output, names, sources, tally)
    write_summary(output, tally.summary())
