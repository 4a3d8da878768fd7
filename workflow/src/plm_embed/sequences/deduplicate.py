"""Sequence files to unique sequences in buckets, with an account of every record, in bounded
memory.

Two passes. The first streams the inputs, writes records.parquet and hands the accepted records to a
`KeySorter`. The second takes them back in key order and cuts them into buckets/ and members/.
"""

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from plm_embed.errors import ConfigError, InputError
from plm_embed.io.parquet import row_group_writer
from plm_embed.io.paths import repeated
from plm_embed.io.sorting import KeySorter
from plm_embed.io.threads import Behind, quick_turns
from plm_embed.keys import bucket_names
from plm_embed.sequences.columns import accepted_schema, records_schema
from plm_embed.sequences.first_pass import BEHIND, Tally, check_keep, first_pass, sort
from plm_embed.sequences.records import Reader
from plm_embed.sequences.settings import LEAST_MEMORY_MB, ResiduePolicy
from plm_embed.sequences.summary import SUMMARY, Summary, write_summary
from plm_embed.sequences.tables import Table
from plm_embed.sequences.write_buckets import OWN_MEMORY_MB, write_buckets


def deduplicate(
    inputs: Sequence[Path],
    output: Path,
    *,
    buckets: int,
    table: Table,
    policy: ResiduePolicy,
    memory_mb: int,
    tables: Sequence[Table] = (),
) -> Summary:
    """Write records.parquet, buckets/, members/ and, last, summary.json to the folder `output`.

    buckets/{bucket}.parquet: the unique sequences (key, sequence, length) sorted by key;
    members/{bucket}.parquet: the accepted records (key, id, source, number, events, length, kept
    columns) sorted by key, then in input order. A file for every bucket, empty ones too.
    `tables`: the columns of each input, where they are not the same (`table`). The bytes depend on
    the inputs and options, not on `memory_mb`, which bounds the memory of the process.
    PlmEmbedError: an input that cannot be read (see `records`) or is of another kind (see
    `LetterCheck`), columns that cannot be kept, `memory_mb` below 500, `buckets` out of range.
    OSError: a full disk. After an error there is no summary.json.
    """
    names = bucket_names(buckets)
    tables = tables or [table] * len(inputs)
    keep = _check(inputs, tables, memory_mb)
    readers = [Reader(path, columns) for path, columns in zip(inputs, tables, strict=True)]
    for path, same in repeated(inputs):
        what = f"{path}: is the same file as {same}; name it once"
        raise InputError(what, path=path)
    output.mkdir(parents=True, exist_ok=True)
    _clear(output, names)
    tally = Tally(buckets, keep, policy)
    working = int((memory_mb - OWN_MEMORY_MB) * 1e6)
    total = sum(reader.bytes for reader in readers)
    try:
        with (
            quick_turns(),
            KeySorter(
                output,
                accepted_schema(keep),
                working,
                lambda: sum(reader.bytes_read for reader in readers) / total,
            ) as sorter,
            ThreadPoolExecutor(1) as pool,
            ExitStack() as stack,
        ):
            records = stack.enter_context(
                row_group_writer(output / "records.parquet", records_schema(keep))
            )
            with Behind(BEHIND) as writing, Behind(BEHIND) as sorting:
                for rows in first_pass(readers, policy, tally):
                    writing.do(records.write, rows.records)
                    sort(rows.accepted, sorting, sorter.add)
            tally.end()
            # the disk is waited for while the buckets are written
            ending = pool.submit(stack.pop_all().close)
            write_buckets(
                sorter.sorted(), output, names, pa.array(map(str, inputs), pa.string()), tally
            )
            ending.result()
    except OSError as error:
        error.filename = error.filename or str(output)  # a write that fails does not say where
        raise
    tally.files["records.parquet"] = records.sha256
    summary = tally.summary()
    write_summary(output, summary)
    return summary


def _check(inputs: Sequence[Path], tables: Sequence[Table], memory_mb: int) -> tuple[str, ...]:
    """Return the columns to keep of all tables, each once."""
    if not inputs:
        raise ConfigError("no input file is named", key="inputs")
    if memory_mb < LEAST_MEMORY_MB:
        raise ConfigError(
            f"memory_mb: {memory_mb} is too little, give {LEAST_MEMORY_MB} or more", key="memory_mb"
        )
    for table in tables:
        check_keep(table)
    return tuple(dict.fromkeys(name for table in tables for name in table.keep))


def _clear(output: Path, names: Sequence[str]) -> None:
    """Remove what marks an earlier result as whole, its surplus buckets, and what a killed run left
    behind.
    """
    kept = set(names)
    (output / SUMMARY).unlink(missing_ok=True)
    for left in output.glob(".spill-*"):
        shutil.rmtree(left)
    for folder in (output, output / "buckets", output / "members"):
        for left in folder.glob(".tmp-*"):
            left.unlink()
        if folder != output:
            for file in folder.glob("[0-9]*.parquet"):
                if file.stem.isdecimal() and file.stem not in kept:
                    file.unlink()
