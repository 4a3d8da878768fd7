"""The gather job: parts of the store to one master file in key order, its index, and what became of
every record.
"""

import logging
import shutil
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa

from plm_embed.errors import PlmEmbedError, StoreError
from plm_embed.fingerprint import has_matrix
from plm_embed.io.files import atomic_path, remove_abandoned, sha256_file
from plm_embed.io.parquet import RowGroupWriter, read_groups, read_schema, row_group_writer
from plm_embed.io.threads import ahead
from plm_embed.jobs.bucket import Bucket
from plm_embed.keys import find, key_array
from plm_embed.master.attributes import attributes
from plm_embed.master.campaign import Campaign, read_campaign
from plm_embed.master.outcomes import Outcomes
from plm_embed.sequences.summary import read_again, read_summary, verified
from plm_embed.store import checksums
from plm_embed.store.blocks import blocks, locate
from plm_embed.store.hdf5 import connect, create_column, create_vectors, write_bits

INDEX = {
    "id": pa.string(), "cache_key": pa.string(), "row": pa.int64(), "length": pa.int32(),
    "source": pa.string(), "number": pa.int64(),
}  # fmt: skip
"""Columns of the index, besides those that the user asked to keep."""
INDEX_COLUMNS = tuple(INDEX)
_log = logging.getLogger(__name__)


def gather(  # noqa: PLR0917
    sequences: Path, embedded: Path, store: Path, master: Path, index: Path, records: Path,
    provenance: Mapping[str, str],
) -> None:  # fmt: skip
    """Write the master HDF5 (n rows in key order), its Parquet index (a line per record that has a
    vector) and records.parquet (a line per record), each of them whole or not at all.

    `provenance` becomes attributes of the master. The bytes depend on the input records, the
    vectors and the provenance, not on the number of buckets or parts. PlmEmbedError for anything
    missing, changed or unfitting, and for a disk with too little room.
    """
    campaign = read_campaign(sequences, embedded, store)
    for folder in {master.parent, index.parent, records.parent}:
        folder.mkdir(parents=True, exist_ok=True)
    remove_abandoned(embedded, master.parent, index.parent, records.parent)
    check_room(campaign, master)
    outcomes = Outcomes(sequences, records.parent, campaign.fingerprint.long_sequences)
    with ExitStack() as stack:
        # the master is renamed last: whoever sees it finds its index beside it
        file = stack.enter_context(connect(stack.enter_context(atomic_path(master)), "w"))
        lines = stack.enter_context(row_group_writer(index, _index_schema(campaign), hashed=False))
        results = stack.enter_context(row_group_writer(records, outcomes.schema, hashed=False))
        create_master(file, campaign)
        # reads every bucket a second time, which is quick, so that nothing waits for the vectors
        pool = stack.enter_context(ThreadPoolExecutor(1))
        stack.callback(pool.shutdown, cancel_futures=True)  # after an error nothing more is begun
        tables = deque(
            pool.submit(write_index, lines, campaign, name, outcomes) for name in campaign.rows
        )
        tables.append(pool.submit(outcomes.write, results))
        hashed = ahead(_hashed(campaign), 2)
        sound: set[str] = set()
        for name in campaign.rows:
            bucket = campaign.bucket(name)
            while not sound.issuperset(part.name for part in bucket.completion.parts):
                sound.add(next(hashed))
            write_vectors(file, bucket, campaign)
            while tables and tables[0].done():
                tables.popleft().result()
        file.attrs.update(attributes(campaign, read_summary(sequences), provenance))
        checksums.seal_attributes(file)
        for table in tables:
            table.result()
    _log.info("gathered %s vectors into %s", f"{campaign.vectors:,}", master)


def check_room(campaign: Campaign, master: Path) -> None:
    """Raise PlmEmbedError unless the disk has room for the master, and for the tables twice (they
    are compressed, and the new ones have a column more).
    """
    folder = campaign.sequences
    tables = [folder / "records.parquet", *(folder / "members").glob("*.parquet")]
    needed = campaign.bytes + Outcomes.BYTES * read_summary(folder).records
    needed += 2 * sum(path.stat().st_size for path in tables if path.is_file())
    free = shutil.disk_usage(master.parent).free
    vectors, about = f"{campaign.vectors:,}", f"{needed:,}"
    _log.info("gather: %s vectors, about %s bytes to write, %s free", vectors, about, f"{free:,}")
    if needed > free:
        old = f"\n{master} stays until the new one is whole; it may be removed"
        raise PlmEmbedError(
            f"{master.parent}: the master needs about {needed:,} bytes, {free:,} are free",
            path=master.parent,
            remedy="make room and run again (nothing was written, the store is whole)"
            + old * master.exists(),
        )


def create_master(file: h5py.File, campaign: Campaign) -> None:
    """Create all datasets of the master at their final size."""
    checksums.create(file, campaign.fingerprint.representations, campaign.vectors)
    for name, kind in (("emb_keys", "S64"), ("length", "<i4"), ("windows", "<i4")):
        create_column(file, name, campaign.vectors, kind)
    group = file.create_group("representations")
    for name, shape in campaign.shapes.items():
        create_vectors(group, name, shape, campaign.fingerprint.storage_dtype)
        if has_matrix(name) and "offset" not in file:
            create_column(file, "offset", campaign.vectors + 1, "<i8")[0] = 0
        if not has_matrix(name) and "emb" not in file:
            file["emb"] = group[name]


def _hashed(campaign: Campaign) -> Iterator[str]:
    """Yield the names of parts whose bytes are those that were written. StoreError for another."""
    for name, info in campaign.parts.items():
        if sha256_file(path := campaign.parts_folder / name) != info.sha256:
            raise StoreError(
                f"{path}: its bytes are not those that were written",
                path=path,
                remedy=campaign.part_remedy(name),
            )
        yield name


def write_vectors(file: h5py.File, bucket: Bucket, campaign: Campaign) -> None:
    """Write all that the master holds about the keys of a bucket."""
    start, located = campaign.rows[bucket.name], locate(bucket.wanted, campaign.store)
    columns = {"emb_keys": bucket.keys, "length": bucket.length, "windows": located.windows}
    for name, values in columns.items():
        file[name][start : start + len(values)] = values
        checksums.write(file, name, start, checksums.of_rows(values))
    # as the parts keep them: what changes a vector on its way into the master shows
    for name, sums in located.sums.items():
        checksums.write(file, name, start, sums)
    edges = np.concatenate([[0], np.cumsum(located.residues)])
    if "offset" in file:
        edges += file["offset"][start]
        file["offset"][start : start + len(edges)] = edges
    for block in blocks(located):
        for name, bits in block.bits.items():
            if name not in located.sums:  # a part of release 0.1
                counts = located.residues[block.start : block.stop]
                flat = has_matrix(name)
                sums = checksums.of_sequences(bits, counts) if flat else checksums.of_rows(bits)
                checksums.write(file, name, start + block.start, sums)
            row = edges[block.start] if has_matrix(name) else start + block.start
            write_bits(file["representations"][name], int(row), bits)


def _index_schema(campaign: Campaign) -> pa.Schema:
    first = verified(campaign.sequences, f"members/{next(iter(campaign.rows))}.parquet")
    columns = [
        column for column in read_schema(first) if column.name not in ("key", "events", *INDEX)
    ]
    return pa.schema([*INDEX.items(), *columns])


def write_index(lines: RowGroupWriter, campaign: Campaign, name: str, outcomes: Outcomes) -> None:
    """Write the lines of a bucket's records, and note what became of these."""
    bucket = campaign.bucket(name)
    path = verified(campaign.sequences, f"members/{name}.parquet")
    skipped = np.array(sorted(bucket.completion.reasons), dtype="S64")
    columns = [name for name in lines.schema.names if name not in ("cache_key", "row")]
    for table in read_groups(path, ["key", *columns]):
        keys = key_array(table["key"])
        place, has = find(bucket.keys, keys)
        if not has.all():
            if not np.isin(keys[~has], skipped).all():
                message = f"{path}: has keys that bucket {name} lacks"
                raise StoreError(message, path=path, remedy=read_again(campaign.sequences))
            outcomes.skipped(table.filter(pa.array(~has)), bucket.completion.reasons)
            table, place = table.filter(pa.array(has)), place[has]  # noqa: PLW2901
        row = campaign.rows[name] + place
        outcomes.embedded(table, row)
        more = table.append_column("row", pa.array(row)).append_column("cache_key", table["key"])
        for batch in more.select(lines.schema.names).cast(lines.schema).to_batches():
            lines.write(batch)
