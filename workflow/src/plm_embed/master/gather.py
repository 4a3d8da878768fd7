"""The gather job: parts of the store to one master file in key order, its index, and the outcome of
every record.
"""

import logging
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event

import h5py

from plm_embed.errors import PlmEmbedError, StoreError
from plm_embed.fingerprint import has_matrix, storage_bytes
from plm_embed.io.files import atomic_path, remove_abandoned, sha256_file
from plm_embed.io.parquet import row_group_writer
from plm_embed.io.threads import ahead, behind
from plm_embed.jobs.completion_record import Bucket
from plm_embed.master.campaign import CHANGED, Campaign, Piece, pieces, read_campaign
from plm_embed.master.tables import Tables
from plm_embed.store import checksums
from plm_embed.store.hdf5 import connect, create_dataset, write_bits
from plm_embed.store.parts import create_datasets

_log = logging.getLogger(__name__)
SYNC_BYTES = 64 << 20
"""Bytes written between two calls that bring them to the disk."""


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
    master.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(embedded, master.parent, index.parent, records.parent)
    check_room(campaign, master.parent)
    tables = Tables(campaign)
    with ExitStack() as stack:
        # the master is renamed last: whoever sees it finds its index beside it
        path = stack.enter_context(atomic_path(master))
        file = stack.enter_context(connect(path, "w"))
        lines = stack.enter_context(row_group_writer(index, tables.index_schema, hashed=False))
        answers = stack.enter_context(
            row_group_writer(records, tables.records_schema, hashed=False)
        )
        pool, failed = stack.enter_context(ThreadPoolExecutor(1)), Event()
        stack.callback(failed.set)

        def write_tables() -> None:
            for writer, rows in ((lines, tables.index), (answers, tables.records())):
                for batch in (batch for table in rows for batch in table.to_batches()):
                    if failed.is_set():
                        return
                    writer.write(batch)

        create_master(file, campaign)
        # reads every bucket a second time, which is quick, so that nothing waits for the vectors
        written = pool.submit(write_tables)
        write_pieces(
            path, file, pieces(unchanged_buckets(campaign, written), campaign.parts_folder)
        )
        file.attrs.update(campaign.attributes(provenance))
        file.attrs[checksums.SEAL] = checksums.of_attributes(file.attrs)
        written.result()
    _log.info("gathered %s vectors into %s", f"{campaign.vectors:,}", master)


def check_room(campaign: Campaign, folder: Path) -> None:
    """Raise PlmEmbedError unless the disk of a folder has room for the master, and for the tables
    twice (they are compressed, and the new ones have a column more).
    """
    fingerprint, sequences = campaign.fingerprint, campaign.sequences
    tables = [*sequences.glob("records.parquet"), *sequences.glob("members/*.parquet")]
    # a row has a key, three numbers, and a checksum of each of these and of its vectors
    row = 80 + 8 * (3 + len(campaign.shapes)) + 12 * len(fingerprint.scores)
    numbers = sum(rows * dim for rows, dim in campaign.shapes.values())
    needed = 2 * sum(path.stat().st_size for path in tables) + row * campaign.vectors
    needed += storage_bytes(fingerprint.storage_dtype) * numbers
    free = shutil.disk_usage(folder).free
    words = f"the master needs about {needed:,} bytes, {free:,} are free"
    _log.info("%s", words)
    if needed > free:
        remedy = "make room and run again (nothing was written, the store is whole)"
        raise PlmEmbedError(f"{folder}: {words}", path=folder, remedy=remedy)


def create_master(file: h5py.File, campaign: Campaign) -> None:
    """Create all datasets of the master at their final size."""
    create_datasets(file, campaign.fingerprint, campaign.vectors)
    group = file.create_group("representations")
    for name, shape in campaign.shapes.items():
        create_dataset(group, name, shape, campaign.fingerprint.storage_dtype)
        if has_matrix(name) and "offset" not in file:
            create_dataset(file, "offset", (campaign.vectors + 1,), "<i8")
        if not has_matrix(name) and "emb" not in file:
            file["emb"] = group[name]


def unchanged_buckets(campaign: Campaign, tables: Future[None]) -> Iterator[Bucket]:
    """Yield the buckets, each once the bytes of its parts are those that were written. StoreError
    for a part that has changed; an error of the tables, which need not wait for the vectors.
    """
    # two parts ahead, so that they are in memory when they are read
    digests = ahead(map(sha256_file, map(campaign.parts_folder.joinpath, campaign.parts)), 2)
    unchanged = set[str]()
    for bucket in map(campaign.bucket, campaign.rows):
        if tables.done():
            tables.result()
        for part in bucket.completion.parts:
            if part.name in unchanged:
                continue
            unchanged.add(part.name)
            digest = ""
            with suppress(FileNotFoundError):  # it has gone meanwhile
                digest = next(digests, "")
            if digest != part.sha256:
                path = campaign.parts_folder / part.name
                remedy = campaign.part_remedy(part.name)
                raise StoreError(f"{path}: {CHANGED}", path=path, remedy=remedy)
        yield bucket


def write_pieces(path: Path, file: h5py.File, pieces: Iterator[Piece]) -> None:
    """Write pieces of a master to its file at `path`, while a thread reads ahead and another one
    brings what is written to the disk, so that little is left to wait for at the end.
    """
    unsynced = 0
    with path.open("rb") as disk, behind(1) as sync:
        for piece in ahead(pieces, 4):  # two of vectors, each with its checksums
            write_bits(file[piece.path], piece.start, piece.values)
            unsynced += piece.values.nbytes
            if unsynced > SYNC_BYTES:
                sync(os.fdatasync, disk.fileno())
                unsynced = 0


def workflow_commit() -> str:
    """Return the commit of the clone that this package lies in, ending in -dirty when files were
    changed; 'unknown' outside of a clone.
    """
    root = Path(__file__).parents[4]
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    if not (root / ".git").exists() or not shutil.which("git"):
        return "unknown"
    done = subprocess.run(describe, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
