"""The gather job: parts of the store to one master file in key order, its index, and the outcome of
every record.
"""

import logging
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError, StoreError
from plm_embed.fingerprint import has_matrix, storage_bytes
from plm_embed.io.files import atomic_path, remove_abandoned, sha256_file
from plm_embed.io.parquet import row_group_writer
from plm_embed.io.threads import ahead
from plm_embed.jobs.bucket import Bucket
from plm_embed.master.campaign import Campaign, read_campaign
from plm_embed.master.tables import BYTES, INDEX, Tables
from plm_embed.sequences.summary import read_summary
from plm_embed.store import checksums
from plm_embed.store.blocks import blocks, locate
from plm_embed.store.hdf5 import Array, connect, create_column, create_vectors, write_bits

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
    folders = {master.parent, index.parent, records.parent}
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    remove_abandoned(embedded, *folders)
    check_room(campaign, master)
    tables = Tables(campaign, records.parent)
    with ExitStack() as stack:
        # the master is renamed last: whoever sees it finds its index beside it
        file = stack.enter_context(connect(stack.enter_context(atomic_path(master)), "w"))
        outputs = [
            (stack.enter_context(row_group_writer(path, schema, hashed=False)), rows)
            for path, schema, rows in (
                (index, tables.index_schema, tables.index()),
                (records, tables.records_schema, tables.records()),
            )
        ]
        pool, failed = stack.enter_context(ThreadPoolExecutor(1)), Event()
        stack.callback(failed.set)

        def write_tables() -> None:
            for writer, rows in outputs:
                for batch in (batch for table in rows for batch in table.to_batches()):
                    if failed.is_set():
                        return
                    writer.write(batch)

        create_master(file, campaign)
        # reads every bucket a second time, which is quick, so that nothing waits for the vectors
        written = pool.submit(write_tables)
        for piece in pieces(unchanged_buckets(campaign), store):
            write_bits(file[piece.path], piece.start, piece.values)
            if piece.sums is not None:
                checksums.write(file, piece.name, piece.first, piece.sums)
            if written.done():
                written.result()  # its error need not wait
        file.attrs.update(campaign.attributes(provenance))
        checksums.seal_attributes(file)
        written.result()
    _log.info("gathered %s vectors into %s", f"{campaign.vectors:,}", master)


def check_room(campaign: Campaign, master: Path) -> None:
    """Raise PlmEmbedError unless the disk has room for the master, and for the tables twice (they
    are compressed, and the new ones have a column more).
    """
    folder, fingerprint = campaign.sequences, campaign.fingerprint
    tables = [folder / "records.parquet", *(folder / "members").glob("*.parquet")]
    needed = 2 * sum(path.stat().st_size for path in tables if path.is_file())
    needed += BYTES * read_summary(folder).records
    needed += (80 + 8 * (len(checksums.COLUMNS) + len(campaign.shapes))) * campaign.vectors
    needed += (4 + 8) * len(fingerprint.scores) * campaign.vectors
    numbers = sum(rows * dim for rows, dim in campaign.shapes.values())
    needed += storage_bytes(fingerprint.storage_dtype) * numbers
    free = shutil.disk_usage(master.parent).free
    vectors, about = f"{campaign.vectors:,}", f"{needed:,}"
    _log.info("gather: %s vectors, about %s bytes to write, %s free", vectors, about, f"{free:,}")
    if needed > free:
        remedy = "make room and run again (nothing was written, the store is whole)"
        if master.exists():
            remedy += f"\n{master} stays until the new one is whole; it may be removed"
        words = f"{master.parent}: the master needs about {needed:,} bytes, {free:,} are free"
        raise PlmEmbedError(words, path=master.parent, remedy=remedy)


def create_master(file: h5py.File, campaign: Campaign) -> None:
    """Create all datasets of the master at their final size."""
    scores, names = campaign.fingerprint.scores, campaign.fingerprint.representations
    checksums.create(file, (*scores, *names), campaign.vectors)
    columns = {"emb_keys": "S64", "length": "<i4", "windows": "<i4"}
    columns |= dict.fromkeys(scores, "<f4")
    for name, kind in columns.items():
        create_column(file, name, campaign.vectors, kind)
    group = file.create_group("representations")
    for name, shape in campaign.shapes.items():
        create_vectors(group, name, shape, campaign.fingerprint.storage_dtype)
        if has_matrix(name) and "offset" not in file:
            create_column(file, "offset", campaign.vectors + 1, "<i8")
        if not has_matrix(name) and "emb" not in file:
            file["emb"] = group[name]


def unchanged_buckets(campaign: Campaign) -> Iterator[Bucket]:
    """Yield the buckets, each once the bytes of its parts are those that were written. StoreError
    for a part that has changed.
    """
    paths = [campaign.parts_folder / name for name in campaign.parts]
    # two parts ahead, so that they are in memory when they are read
    hashes = ahead(map(sha256_file, paths), 2)
    unchecked = iter(campaign.parts.values())
    unchanged: set[str] = set()
    for bucket in map(campaign.bucket, campaign.rows):
        while not unchanged.issuperset(part.name for part in bucket.completion.parts):
            part = next(unchecked)
            if next(hashes) != part.sha256:
                path = campaign.parts_folder / part.name
                raise StoreError(
                    f"{path}: its bytes are not those that were written",
                    path=path,
                    remedy=campaign.part_remedy(part.name),
                )
            unchanged.add(part.name)
        yield bucket


class Piece(NamedTuple):
    """Rows of a column or representation `name` of the master, whose dataset is at `path`: from
    `start` on `values` (k,), or stored bits (k, D).

    They are of m sequences in a row, the first in row `first` of the master, with `counts` (m,)
    rows each. sums (m,): their checksums, None where none are kept.
    """

    name: str
    path: str
    start: int
    values: Array
    first: int
    counts: NDArray[np.int64]
    sums: checksums.Sums | None


def pieces(buckets: Iterable[Bucket], store: Path) -> Iterator[Piece]:
    """Yield all that a master holds, bucket by bucket. StoreError for a part that does not fit."""
    row = residue = 0
    for bucket in buckets:
        located = locate(bucket, store)
        ones = np.ones(len(bucket.keys), np.int64)
        columns = {"emb_keys": bucket.keys, "length": bucket.length, "windows": located.windows}
        for name, values in (columns | dict(located.scores)).items():
            yield Piece(name, name, row, values, row, ones, checksums.of_rows(values))
        edges = residue + np.concatenate([[0], np.cumsum(located.residues)])
        if any(map(has_matrix, bucket.completion.fingerprint.representations)):
            yield Piece("offset", "offset", row, edges, row, np.ones(len(edges), np.int64), None)
        for block in blocks(located):
            inside, first = slice(block.start, block.stop), row + block.start
            for name, bits in block.bits.items():
                flat = has_matrix(name)
                counts = located.residues[inside] if flat else ones[inside]
                if name in located.sums:  # as the part keeps them: what changes a row here shows
                    sums = located.sums[name][inside]
                else:  # a part of release 0.1
                    sums = sums_of(name, bits, counts)
                start = int(edges[block.start]) if flat else first
                yield Piece(name, f"representations/{name}", start, bits, first, counts, sums)
        row, residue = row + len(bucket.keys), int(edges[-1])


def sums_of(name: str, bits: Array, counts: NDArray[np.int64]) -> checksums.Sums:
    """Return the checksums (m,) of sequences with so many rows each of a representation."""
    return checksums.of_sequences(bits, counts) if has_matrix(name) else checksums.of_rows(bits)


def workflow_commit() -> str:
    """Return the commit of the clone that this package lies in, ending in -dirty when files were
    changed; 'unknown' outside of a clone.
    """
    root = Path(__file__).parents[4]
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    if not (root / ".git").exists():
        return "unknown"
    try:
        command = ["git", "-C", str(root), *describe]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
