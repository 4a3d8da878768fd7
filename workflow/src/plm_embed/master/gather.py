"""The gather job: parts of the store to one master file in key order, its index, and what became of
every record.
"""

import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError, StoreError, embed_again
from plm_embed.fingerprint import has_matrix
from plm_embed.io.files import atomic_path, remove_abandoned, whole_files
from plm_embed.io.parquet import read_groups, read_schema, row_group_writer
from plm_embed.io.threads import Aside
from plm_embed.jobs.bucket import Bucket
from plm_embed.keys import find, key_array
from plm_embed.master.attributes import attributes
from plm_embed.master.campaign import Campaign
from plm_embed.master.outcomes import BYTES, Outcomes
from plm_embed.sequences.summary import bucket_names, read_again, read_summary, verified
from plm_embed.store import checksums
from plm_embed.store.blocks import Block, Located, Memory, blocks, locate, named_parts
from plm_embed.store.hdf5 import connect, create_column, create_vectors
from plm_embed.store.parts import read_part
from plm_embed.store.rawio import VectorWriter
from plm_embed.store.replaced import despite_compact
from plm_embed.store.store import store_folder
from plm_embed.store.verify_parts import HashAhead
from plm_embed.store.write_parts import write_checksums

MEMBER_COLUMNS = ("key", "id", "source", "number", "events", "length")
INDEX_COLUMNS = ("id", "cache_key", "row", "length", "source", "number")

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]

_log = logging.getLogger(__name__)


def gather(  # noqa: PLR0917
    sequences: Path,
    embedded: Path,
    store: Path,
    master: Path,
    index: Path,
    records: Path,
    provenance: Mapping[str, str],
) -> None:
    """Write the master HDF5, its Parquet index and records.parquet, each of them whole or not at
    all.

    `provenance` becomes attributes of the master. The bytes depend on the input records, the
    vectors and the provenance, not on the number of buckets or parts. Anything missing or
    unfitting raises PlmEmbedError before the first byte is written, and so does a disk with too
    little room. A part whose bytes have changed raises it too.
    """
    plan, again = make_plan(sequences, embedded, store), embed_again(embedded.parent)
    with ExitStack() as stack:
        hashes = stack.enter_context(
            HashAhead(
                store_folder(store, plan.fingerprint) / "parts", list(plan.parts.values()), again
            )
        )
        _make_room(plan, [master, index, records])
        members = [verified(sequences, f"members/{name}.parquet") for name in plan.names]
        index_schema = _index_schema(read_schema(members[0]))
        # the master is renamed last: whoever sees it finds its index beside it
        file = stack.enter_context(connect(stack.enter_context(atomic_path(master)), "w"))
        rows = stack.enter_context(row_group_writer(index, index_schema, hashed=False))
        outcomes = Outcomes(sequences, records.parent, plan.fingerprint.long_sequences)
        final = stack.enter_context(row_group_writer(records, outcomes.schema, hashed=False))
        create_master(file, plan)
        writer = stack.enter_context(VectorWriter(file))
        tables = stack.enter_context(Aside())

        def write_tables() -> None:
            start = 0
            for name in plan.names:
                tables.go_on()
                bucket = plan.bucket(name)
                for table, found, row in _members(sequences, bucket, start, index_schema):
                    if not found.all():
                        outcomes.skipped(table.filter(pa.array(~found)), bucket.completion.reasons)
                        table, row = table.filter(pa.array(found)), row[found]  # noqa: PLW2901
                    outcomes.embedded(table, row)
                    for batch in _index_rows(table, row, index_schema).to_batches():
                        rows.write(batch)
                start += len(bucket.keys)
            rows.sync()
            outcomes.write(final)
            final.sync()

        # reads every bucket a second time, which is quick, so that nothing of it has to wait for
        # the vectors
        tables.run(write_tables)
        memory = Memory()

        def write_vectors(bucket: Bucket, start: int, flat: int) -> int:
            hashes.check(named_parts(bucket, store))
            located = locate(bucket, store)
            ends = _write_columns(file, bucket, located, start, flat)
            for block in blocks(located, memory):
                residue = int(ends[block.start] - located.residues[block.start])
                _write_block(file, writer, block, located, start + block.start, residue)
            return int(located.residues.sum())

        start, flat = 0, 0
        for name in plan.names:
            tables.check()
            bucket = plan.bucket(name)
            flat += despite_compact(partial(write_vectors, bucket, start, flat))
            start += len(bucket.keys)
        writer.sync()
        file.attrs.update(attributes(plan, read_summary(sequences), provenance))
        checksums.seal_attributes(file)
        writer.wait()
        tables.wait()
    _log.info("gathered %s vectors into %s", f"{plan.vectors:,}", master)


def make_plan(sequences: Path, embedded: Path, store: Path) -> Campaign:
    """Read all completion records. StoreError unless they go together and name parts."""
    plan = Campaign(sequences, embedded, store)
    for name in bucket_names(sequences):
        plan.add(plan.bucket(name))
    plan.check_sizes()
    for part_name in list(plan.parts)[:1]:
        with read_part(plan.parts_folder / part_name) as part:
            plan.dims = part.dims
    if "per_token" in plan.fingerprint.pooling:  # letters do not tell the rows
        for name in plan.names:
            plan.residues += int(locate(plan.bucket(name), store).residues.sum())
    return plan


def _make_room(plan: Campaign, outputs: list[Path]) -> None:
    for path in outputs:
        path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(plan.embedded, *(path.parent for path in outputs))
    sequences = plan.sequences
    tables = [sequences / "records.parquet", *whole_files(sequences / "members", "*.parquet")]
    # twice the tables: they are compressed, and the new ones have a column more
    needed = plan.bytes + 2 * sum(path.stat().st_size for path in tables if path.exists())
    needed += BYTES * read_summary(sequences).records
    free = shutil.disk_usage(outputs[0].parent).free
    _log.info(
        "gather: %s vectors, about %s bytes to write, %s free",
        f"{plan.vectors:,}",
        f"{needed:,}",
        f"{free:,}",
    )
    old = (
        f"\n{outputs[0]} stays until the new one is whole; it may be removed"
        if outputs[0].exists()
        else ""
    )
    if needed > free:
        raise PlmEmbedError(
            f"{outputs[0].parent}: the master needs about {needed:,} bytes, {free:,} are free",
            path=outputs[0].parent,
            remedy="make room and run again (nothing was written, the store is whole)" + old,
        )


def create_master(file: h5py.File, plan: Campaign) -> None:
    """Lay out all datasets of the master at their final size."""
    checksums.create(file, plan.fingerprint.representations, plan.vectors)
    create_column(file, "emb_keys", plan.vectors, "S64")
    create_column(file, "length", plan.vectors, "<i4")
    create_column(file, "windows", plan.vectors, "<i4")
    group = file.create_group("representations")
    for name, shape in plan.shapes.items():
        create_vectors(group, name, shape, plan.fingerprint.storage_dtype)
        if has_matrix(name) and "offset" not in file:
            create_column(file, "offset", plan.vectors + 1, "<i8")[0] = 0
        if not has_matrix(name) and "emb" not in file:
            file["emb"] = group[name]


def _write_columns(
    file: h5py.File, bucket: Bucket, located: Located, start: int, flat: int
) -> Numbers:
    """Write what there is about each key of a bucket but its vectors, from row `start`; where its
    residues end.

    `flat`: where the bucket's per-residue rows begin.
    """
    stop = start + len(bucket.keys)
    for name, values in zip(
        checksums.COLUMNS, (bucket.keys, bucket.length, located.windows), strict=True
    ):
        file[name][start:stop] = values
        checksums.write(file, name, start, checksums.of_rows(values))
    # as the parts keep them: what changes a vector on its way into the master shows
    for name, sums in located.sums.items():
        checksums.write(file, name, start, sums)
    ends = flat + np.cumsum(located.residues)
    if "offset" in file:
        file["offset"][start + 1 : stop + 1] = ends
    return ends


def _write_block(  # noqa: PLR0917
    file: h5py.File, writer: VectorWriter, block: Block, located: Located, row: int, residue: int
) -> None:
    """Write the vectors of a block from row `row`, or per residue from row `residue`."""
    for name, bits in block.bits.items():
        if name not in located.sums:
            residues = located.residues[block.start : block.stop]
            write_checksums(file, name, row, bits, residues)
        writer.write(name, residue if has_matrix(name) else row, bits)


def _index_schema(members: pa.Schema) -> pa.Schema:
    kept = [column for column in members if column.name not in MEMBER_COLUMNS]
    types = [pa.string(), pa.string(), pa.int64(), pa.int32(), pa.string(), pa.int64()]
    return pa.schema([*zip(INDEX_COLUMNS, types, strict=True), *kept])


def _members(
    sequences: Path, bucket: Bucket, start: int, index: pa.Schema
) -> Iterator[tuple[pa.Table, Mask, Numbers]]:
    """The records of a bucket: the columns that the index is made of, whether each has a vector,
    and its row in the master if so.
    """
    columns = ["key", *(name for name in index.names if name not in ("cache_key", "row"))]
    path = verified(sequences, f"members/{bucket.name}.parquet")
    skipped = np.array(sorted(bucket.completion.reasons), dtype="S64")
    for table in read_groups(path, columns):
        keys = key_array(table["key"])
        at, found = find(bucket.keys, keys)
        if not np.isin(keys[~found], skipped).all():
            raise StoreError(
                f"{path}: has keys that bucket {bucket.name} lacks",
                remedy=read_again(sequences),
                path=path,
            )
        yield table, found, start + at


def _index_rows(table: pa.Table, row: Numbers, schema: pa.Schema) -> pa.Table:
    table = table.append_column("row", pa.array(row)).append_column("cache_key", table["key"])
    return table.select(schema.names).cast(schema)
