"""A master whose vectors stay in the parts: virtual data sets that say which rows lie in which file.

For what should not be copied. HDF5 finds the parts by their paths relative to the master, so both have to be moved
together. Where a part is missing, HDF5 reads the fill value, which is NaN here. One mapping is needed for each stretch
of rows that follow one another in a part, and many of them are slow to open; parts of different embed jobs that share
a bucket interleave, and have to be compacted first.

A note in the store says that such a master was made, so that `plm-embed compact` keeps the parts that it reads.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np
from h5py import h5d, h5p, h5s

from plm_embed.campaign import Served
from plm_embed.errors import UserError
from plm_embed.files import whole_files, write_json
from plm_embed.fingerprint import Fingerprint
from plm_embed.hdf5 import open_hdf5, vector_type
from plm_embed.parts import is_per_residue, read_part

MAPPINGS = 50_000
"""The most that one data set may have."""


NOTES = "virtual"
"""Folder, beside the parts, of the notes that say which masters refer to parts."""


def leave_note(master: Path, folder: Path) -> None:
    """Note in the folder of a fingerprint that `master` refers to parts in it. The two may be moved together."""
    path = os.path.relpath(master.resolve(), folder.resolve())
    write_json(folder / NOTES / f"{hashlib.sha256(path.encode()).hexdigest()[:16]}.json", {"master": path})


def references(folder: Path) -> dict[str, Path]:
    """By name of each part of a fingerprint that a master refers to: that master. Notes of masters gone say nothing."""
    return {part: master for note in whole_files(folder / NOTES, "*.json") for part, master in _parts_of(note, folder)}


def _parts_of(note: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    master = (folder / json.loads(note.read_text(encoding="utf-8"))["master"]).resolve()
    if not master.is_file():
        return
    with open_hdf5(master) as file:
        for dataset in file["representations"].values():
            for source in dataset.virtual_sources() if dataset.is_virtual else ():
                yield Path(source.file_name).name, master


@dataclass
class Mapping:
    """`count` rows from row `row` on, `flat_count` from `flat` on per residue, and where they begin in the master."""

    part: Path
    row: int
    flat: int
    count: int
    flat_count: int
    start: int
    flat_start: int


@dataclass
class Links:
    """Collects where the vectors of all buckets lie."""

    fingerprint: Fingerprint
    mappings: list[Mapping] = field(default_factory=list)

    def add(self, served: Served, start: int, flat: int) -> None:
        """The vectors of a bucket, which begin at row `start` of the master, per residue at row `flat`."""
        if not len(served.row):
            return
        apart = (np.diff(served.part) != 0) | (np.diff(served.row) != 1)
        edges = np.concatenate([[0], np.flatnonzero(apart) + 1, [len(served.row)]])
        if len(self.mappings) + len(edges) - 1 > MAPPINGS:
            raise UserError(
                f"merge: virtual: the parts interleave in more than {MAPPINGS:,} places, too many to refer to\n"
                "  run `plm-embed compact` on the store and this step again, or choose merge: copy"
            )
        ends = np.concatenate([[0], np.cumsum(served.residues)])
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            self.mappings.append(
                Mapping(
                    part=served.parts[served.part[low]],
                    row=int(served.row[low]),
                    flat=int(served.flat[low]),
                    count=high - low,
                    flat_count=int(ends[high] - ends[low]),
                    start=start + low,
                    flat_start=flat + int(ends[low]),
                )
            )

    def write(self, file: h5py.File, folder: Path, shapes: dict[str, tuple[int, int]]) -> None:
        """Make the data sets of all representations, of the given shapes; `folder` is where the master will lie."""
        group = file["representations"]
        rows = self._rows_of_parts()
        for name, shape in shapes.items():
            layout = h5p.create(h5p.DATASET_CREATE)
            layout.set_obj_track_times(False)
            layout.set_fill_value(np.array(np.nan, dtype=np.float32))
            space = h5s.create_simple(shape)
            for mapping in self.mappings:
                flat = is_per_residue(name)
                count = mapping.flat_count if flat else mapping.count
                space.select_hyperslab((mapping.flat_start if flat else mapping.start, 0), (count, shape[1]))
                source = h5s.create_simple((rows[mapping.part][name], shape[1]))
                source.select_hyperslab((mapping.flat if flat else mapping.row, 0), (count, shape[1]))
                path = os.path.relpath(mapping.part, folder)
                layout.set_virtual(space, path.encode(), f"/representations/{name}".encode(), source)
            space.select_all()
            kind = vector_type(self.fingerprint.storage_dtype)
            h5d.create(group.id, name.encode(), kind, space, layout)
            if not is_per_residue(name) and "emb" not in file:
                file["emb"] = group[name]

    def _rows_of_parts(self) -> dict[Path, dict[str, int]]:
        found = {}
        for path in sorted({mapping.part for mapping in self.mappings}):
            with read_part(path) as part:
                found[path] = {name: part.vectors(name).shape[0] for name in part.names}
        return found
