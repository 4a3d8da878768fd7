"""Merging a store's small parts into large ones, while others read it and jobs publish into it.

New parts are published first. Then a note says which parts they replace; from that moment nobody
lists the old ones, and what names them (completion records, which are never touched) is answered by
the new ones once the old are gone. The old parts are removed by a later run, when the note is old
enough for every reader to have ended. A kill at any instant leaves a whole store, in which the next
run goes on.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from plm_embed.errors import StoreError
from plm_embed.fingerprint import has_matrix, storage_bytes
from plm_embed.io.files import remove_abandoned, sha256_file, sync
from plm_embed.io.scratch import scratch_folder
from plm_embed.store.blocks import Located, blocks
from plm_embed.store.hdf5 import Array, connect
from plm_embed.store.part_name import DIGITS, first_digits, last_digits
from plm_embed.store.parts import read_part
from plm_embed.store.rawio import VectorWriter, extents
from plm_embed.store.replaced import (
    NOTES,
    PartList,
    Replacement,
    current_parts,
    note_files,
    read_note,
    write_note,
)
from plm_embed.store.store import FINGERPRINT, Store, read_fingerprint
from plm_embed.store.write_parts import Columns, create_part, write_checksums

log = logging.getLogger(__name__)


@dataclass
class Compacted:
    """Parts that were merged, parts that they became, and old parts that were removed, with their
    size in bytes.
    """

    merged: int = 0
    published: int = 0
    removed: int = 0
    freed: int = 0


def compact(root: Path, part_bytes: int, keep_hours: float) -> Compacted:
    """Merge the parts of every fingerprint in a store into parts of about `part_bytes`.

    Replaced parts stay for `keep_hours`, and are removed by the first run after that; so is, after
    a day, what killed jobs left half copied.
    """
    notes = sorted(root.glob(f"*/{FINGERPRINT}"))
    if not notes:
        raise StoreError(
            f"{root}: no store",
            path=root,
            remedy=f"give the folder that holds the folders with {FINGERPRINT}",
        )
    done = Compacted()
    for note in notes:
        store = Store(root, read_fingerprint(note.parent))
        for group in _groups(PartList(store.parts_folder).all(), part_bytes):
            _merge(store, group, part_bytes, done)
        _remove(store, 3600 * keep_hours, done)
        remove_abandoned(store.folder, store.parts_folder, store.folder / NOTES)
    return done


def _groups(parts: list[Path], part_bytes: int) -> Iterator[list[Path]]:
    """Parts, neighbors in key space, that would be fewer if they were merged."""
    group: list[Path] = []
    total, last = 0, ""
    for path in [*sorted(parts), None]:
        if group and (path is None or (total >= part_bytes and first_digits(path.name) > last)):
            if len(group) > -(-total // part_bytes):
                yield group
            group, total, last = [], 0, ""
        if path is not None:
            group.append(path)
            total += path.stat().st_size
            last = max(last, last_digits(path.name))


def _merge(store: Store, group: list[Path], part_bytes: int, done: Compacted) -> None:
    replaced = store.infos(group)
    count = -(-sum(part.bytes for part in replaced) // part_bytes)
    # keys are hashes, so that equal ranges hold about equally many
    first = int(min(first_digits(path.name) for path in group), 16)
    stop = int(max(last_digits(path.name) for path in group), 16) + 1
    edges = [f"{first + (stop - first) * number // count:0{DIGITS}x}" for number in range(count)]
    published = []
    with scratch_folder("", 2 * part_bytes, store.folder / "scratch") as scratch:
        for low, high in pairwise([*edges, None]):
            local = scratch / "part.h5"
            if _write_range(store, group, low or "", high, local):
                published.append(store.publish(local))
                local.unlink()
    names = [part.name for part in published]
    old = tuple(part.name for part in replaced if part.name not in names)
    write_note(store.folder, Replacement(replaced=old, by=tuple(published)))
    done.merged += len(group)
    done.published += len(published)
    log.info("%s: %d parts merged into %s", store.folder, len(group), ", ".join(names))


def _write_range(store: Store, group: list[Path], low: str, high: str | None, local: Path) -> bool:
    """Write the keys from `low` to `high` (excluded) of all parts as one part; whether there are
    any.
    """
    ragged = any(map(has_matrix, store.fingerprint.representations))
    found: dict[str, list[Array]] = {
        name: [] for name in ("emb_keys", "length", "windows", "part", "row", "flat", "size")
    }
    places, devices = [], set[str]()
    dims: dict[str, int] = {}
    for number, path in enumerate(group):
        with read_part(path) as part:
            part.check(store.fingerprint)
            rows = part.rows_between(low, high)
            dims = part.dims
            places.append({name: extents(part.vectors(name)) for name in part.names})
            devices |= part.devices if len(rows) else set()
            for name in ("emb_keys", "length", "windows"):
                found[name].append(part.column_at(name, rows))
            found["part"].append(np.full(len(rows), number, dtype=np.int32))
            found["row"].append(rows)
            found["flat"].append(part.column_at("offset", rows) if ragged else np.zeros_like(rows))
            found["size"].append(part.residues_at(rows) if ragged else np.zeros_like(rows))
    columns = {name: np.concatenate(pieces) for name, pieces in found.items()}
    _, at = np.unique(columns["emb_keys"], return_index=True)  # of equal keys the first part's
    if not len(at):
        return False
    columns = {name: column[at] for name, column in columns.items()}
    offset = np.concatenate([[0], np.cumsum(columns["size"])])
    located = Located(
        parts=tuple(group),
        places=tuple(places),
        part=columns["part"],
        row=columns["row"],
        windows=columns["windows"],
        residues=columns["size"],
        flat=columns["flat"],
        dims=dims,
        width=storage_bytes(store.fingerprint.storage_dtype),
    )
    head = Columns(
        columns["emb_keys"], columns["length"], columns["windows"], offset if ragged else None
    )
    with connect(local, "w") as file:
        create_part(file, head, dims, store.fingerprint, {"device": ", ".join(sorted(devices))})
        with VectorWriter(file) as writer:
            for block in blocks(located):
                for name, bits in block.bits.items():
                    write_checksums(
                        file, name, block.start, bits, located.residues[block.start : block.stop]
                    )
                    writer.write(
                        name,
                        int(offset[block.start]) if has_matrix(name) else block.start,
                        bits,
                    )
            writer.wait()
    return True


def _remove(store: Store, keep_seconds: float, done: Compacted) -> None:
    """Remove the parts that notes older than `keep_seconds` replace, if what replaces them is
    whole.
    """
    for file in note_files(store.folder):
        if time.time() - file.stat().st_mtime < keep_seconds:
            continue
        note = read_note(file)
        old = [path for name in note.replaced if (path := store.parts_folder / name).exists()]
        if not old:
            continue
        for part in current_parts(note.by, store.folder):
            path = store.parts_folder / part.name
            if not path.exists() or sha256_file(path) != part.sha256:
                raise StoreError(
                    f"{path}: missing or damaged; the {len(old)} parts that it replaces are kept",
                    path=path,
                )
        for path in old:
            done.freed += path.stat().st_size
            path.unlink(missing_ok=True)
            done.removed += 1
        sync(store.parts_folder)
