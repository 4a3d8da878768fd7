"""All that a master is gathered from: the completion records of a campaign, added up, and the
vectors of a bucket as its parts hold them, found by key and read piece by piece in key order.

Parts are sorted by key, as the bucket is: of each part a piece needs one contiguous slab.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import StoreError, delete
from plm_embed.fingerprint import (
    IMPORTED_DEVICE,
    POOLING_DEFINITIONS,
    Fingerprint,
    has_matrix,
    storage_bytes,
)
from plm_embed.io.files import sha256_file
from plm_embed.jobs.completion_record import Bucket, read_bucket
from plm_embed.keys import bucket_names
from plm_embed.sequence_windows import stored_residues
from plm_embed.sequences.summary import read_summary
from plm_embed.store import checksums
from plm_embed.store.hdf5 import Array, Numbers, flat_rows
from plm_embed.store.parts import SCHEMA_VERSION, Part, PartInfo, column_types, parts_folder

BLOCK_BYTES = 16 << 20
"""Vectors are moved in blocks of at most about this size, or of one sequence if that is larger."""

CHANGED = "its bytes are not those that were written"
"""The fault of a part."""


class Campaign:
    """The buckets whose completion records were added, with n vectors in all.

    sequences: folder of deduplicate; embedded: folder of the completion records. rows: the first
    row of each bucket in the master, in key order; parts: by name, as they are first named;
    records: the completion records that name a part.
    """

    fingerprint: Fingerprint
    parts_folder: Path

    def __init__(self, sequences: Path, embedded: Path, store: Path) -> None:
        self.sequences, self.embedded, self.store = sequences, embedded, store
        self.rows: dict[str, int] = {}
        self.parts: dict[str, PartInfo] = {}
        self.records = defaultdict[str, list[Path]](list)
        self.vectors = self._residues = 0
        self.devices: set[str] = set()
        self._versions = defaultdict[str, set[str]](set)
        self._batch_dependent = False

    def bucket(self, name: str) -> Bucket:
        """Read a bucket's keys and completion record. StoreError where one is not whole."""
        path = self.sequences / "buckets" / f"{name}.parquet"
        return read_bucket(path, self.embedded / f"{name}.json")

    def add(self, name: str) -> None:
        """Count a bucket. StoreError where its completion record is not whole or of other
        settings.
        """
        bucket = self.bucket(name)
        completion, fingerprint = bucket.completion, bucket.completion.fingerprint
        if not self.rows:
            self.fingerprint = fingerprint
            self.parts_folder = parts_folder(self.store, fingerprint)
        elif fingerprint != self.fingerprint:
            differences = "; ".join(fingerprint.differences(self.fingerprint))
            raise StoreError(
                f"{bucket.record}: its settings differ from those of bucket "
                f"{next(iter(self.rows))} ({differences})",
                path=bucket.record,
                remedy=delete(self.embedded),
            )
        for part in completion.parts:
            self.parts[part.name] = part
            self.records[part.name].append(bucket.record)
        self.rows[name] = self.vectors
        self.vectors += len(bucket.keys)
        if "per_residue" in fingerprint.pooling:
            rows = stored_residues(bucket.length, fingerprint.long_sequences)
            self._residues += int(rows.sum())
        self.devices.update(worker.device for worker in completion.workers)
        self.devices.update(completion.reused_devices)
        tested = completion.self_test
        self._batch_dependent |= tested is not None and not tested.batch_invariant
        for library, version in completion.versions.items():
            self._versions[library].add(version)

    def wrong_parts(self, *, hashed: bool) -> list[StoreError]:
        """Return the errors for parts that are missing or have changed, each with the remedy for
        all of them; `hashed`: read all of their bytes.
        """
        faults = {}
        for name, info in sorted(self.parts.items()):
            path = self.parts_folder / name
            if not path.is_file():
                faults[name] = f"missing, but {self.records[name][0]} names it"
            elif (size := path.stat().st_size) != info.bytes:
                faults[name] = f"has {size:,} bytes instead of {info.bytes:,} (truncated?)"
            elif hashed and sha256_file(path) != info.sha256:
                faults[name] = CHANGED
        folder, remedy = self.parts_folder, self.part_remedy(*faults) if faults else ""
        return [
            StoreError(f"{folder / name}: {fault}", path=folder / name, remedy=remedy)
            for name, fault in faults.items()
        ]

    def part_remedy(self, *names: str) -> str:
        """Return the remedy for damaged or missing parts: delete them, and their records."""
        records = dict.fromkeys(record for name in names for record in self.records[name])
        parts = map(self.parts_folder.joinpath, names)
        return delete(*parts, *(records if len(records) <= 3 else [self.embedded]))

    @cached_property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Shapes by representation: (n, D), or (R, D) where there are matrices. D is as the first
        part has it; 0 where there are no parts.
        """
        dims, residues = dict[str, int](), self._residues
        for name in [*self.parts][:1]:
            with Part(self.parts_folder / name) as part:
                dims = part.dims
        if "per_token" in self.fingerprint.pooling:  # letters do not tell the number of tokens
            residues = 0
            for name in self.rows:
                with located(self.bucket(name), self.parts_folder) as vectors:
                    residues += int(vectors.counts.sum())
        return {
            name: (residues if has_matrix(name) else self.vectors, dims.get(name, 0))
            for name in self.fingerprint.representations
        }

    def attributes(self, provenance: Mapping[str, str]) -> dict[str, Any]:
        """Return all attributes of the master by name: the fingerprint whole, and again as plain
        attributes for readers that do not know it (max_length 0: no limit).
        """
        fingerprint, counted = self.fingerprint, asdict(read_summary(self.sequences))
        named = ("inputs", "records", "accepted", "skipped", "unique", "policy")
        inputs = {name: counted[name] for name in named if counted[name] is not None}
        invariance = "not promised by the engine"
        if fingerprint.batch_invariant:
            invariance = "promised by the engine"
            if self._batch_dependent:
                invariance += ", but a self-test of this campaign saw otherwise"
            if any(IMPORTED_DEVICE in name for name in self.devices):
                invariance += ", except for vectors that another program computed"
        values: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "fingerprint": fingerprint.to_json(),
            "fingerprint_id": fingerprint.id,
            "model_name": fingerprint.model,
            "weights_sha256": fingerprint.weights_sha256,
            "layers": list(fingerprint.layers),
            "pooling": list(fingerprint.pooling),
            "pooling_definition": "\n".join(
                f"{name}: {POOLING_DEFINITIONS[name]}" for name in fingerprint.pooling
            ),
            "precision": fingerprint.storage_dtype,
            "compute_dtype": fingerprint.compute_dtype,
            "long_sequences": fingerprint.long_sequences.policy,
            "max_length": fingerprint.long_sequences.max_residues,
            "window_overlap": fingerprint.long_sequences.overlap,
            "engine": fingerprint.engine,
            "batch_invariance": invariance,
            "library_versions": {
                name: ", ".join(sorted(several)) for name, several in self._versions.items()
            },
            "devices": sorted(self.devices),
            "inputs": inputs | {"embedded": self.vectors},
            "scores": list(fingerprint.scores),
            "linker": fingerprint.linker,
            "strand": fingerprint.strand.replace("as_given", ""),
            **provenance,
        }
        # masters of earlier versions, which know of one strand and no scores, lack the last three
        return {
            name: json.dumps(value, sort_keys=True) if isinstance(value, dict) else value
            for name, value in sorted(values.items())
            if value or name not in {"scores", "linker", "strand"}
        }


def read_campaign(sequences: Path, embedded: Path, store: Path) -> Campaign:
    """Read all completion records. StoreError unless they go together and their parts are there."""
    campaign = Campaign(sequences, embedded, store)
    for name in bucket_names(read_summary(sequences).buckets):
        campaign.add(name)
    for error in campaign.wrong_parts(hashed=False):
        raise error
    return campaign


class Located(NamedTuple):
    """Places of the vectors of a bucket: for each of its n keys the part (index into `parts`) and
    the row in it.

    columns: emb_keys, length, windows and scores (n,); starts, counts (n,): first row and number of
    rows in the per-residue datasets of the part, 0 if there are none; sums: checksums (n,) by
    representation, where all parts keep them.
    """

    parts: Sequence[Part]
    part: NDArray[np.int32]
    row: Numbers
    columns: Mapping[str, Array]
    starts: Numbers
    counts: Numbers
    sums: Mapping[str, checksums.Sums]


@contextmanager
def located(bucket: Bucket, folder: Path) -> Iterator[Located]:
    """Find every vector of a bucket: in the first of its parts in `folder`, by name, that holds its
    key. The parts are open within.

    StoreError when a part is missing, damaged or does not fit, and for a key that is in none.
    """
    fingerprint, count = bucket.completion.fingerprint, len(bucket.keys)
    places, (row, starts, counts) = np.full(count, -1, np.int32), np.zeros((3, count), np.int64)
    columns = {name: np.zeros(count, kind) for name, kind in column_types(fingerprint).items()}
    del columns["emb_keys"]
    sums = {name: np.zeros(count, np.uint64) for name in fingerprint.representations}
    with ExitStack() as stack:
        names = sorted(info.name for info in bucket.completion.parts)
        parts = [stack.enter_context(Part(folder / name)) for name in names]
        for number, part in enumerate(parts):
            part.check(fingerprint)
            if part.dims != parts[0].dims:
                words = f"its vectors have dimensions {part.dims}, others {parts[0].dims}"
                raise bucket.error(part.path, words)
            stored = part.locate(bucket.keys)
            new = np.flatnonzero((places < 0) & (stored >= 0))
            rows = stored[new]
            places[new], row[new] = number, rows
            for name, values in columns.items():
                values[new] = part.column_at(name, rows)
            if part.matrices:
                starts[new], counts[new] = part.matrix_rows(rows)
            for name in tuple(sums):
                if (part_sums := part.sums_at(name, rows)) is None:
                    del sums[name]
                else:
                    sums[name][new] = part_sums
        if (lost := places < 0).any():
            key = bucket.keys[lost][0].decode()
            words = f"{lost.sum()} sequences are in none of its parts (first: {key})"
            raise bucket.error(bucket.record, words)
        wrong = columns["length"] != bucket.length
        if "per_residue" in fingerprint.pooling:  # else letters do not tell the rows
            wrong |= counts != stored_residues(bucket.length, fingerprint.long_sequences)
        for place in np.flatnonzero(wrong)[:1].tolist():
            key = bucket.keys[place].decode()
            words = f"says another length for {key} than bucket {bucket.name}"
            raise bucket.error(parts[places[place]].path, words)
        columns = {"emb_keys": bucket.keys, **columns}
        yield Located(parts, places, row, columns, starts, counts, sums)


class Piece(NamedTuple):
    """Rows of a dataset of a master: from `start` on `values` (k,), or stored bits (k, D).

    They are of m sequences in a row, the first in row `first` of the master, with `counts` (m,)
    rows each.
    """

    path: str
    start: int
    values: Array
    first: int
    counts: Numbers


def pieces(buckets: Iterable[Bucket], folder: Path) -> Iterator[Piece]:
    """Yield all that a master of these buckets holds, bucket by bucket, from the parts in `folder`.
    Vectors are read without a look at their checksums, which go along.

    StoreError for a part that does not fit.
    """
    row = residue = 0
    for bucket in buckets:
        fingerprint = bucket.completion.fingerprint
        with located(bucket, folder) as vectors:
            ones = np.ones(len(bucket.keys), np.int64)
            for name, values in vectors.columns.items():
                yield Piece(name, row, values, row, ones)
                yield Piece(f"{checksums.GROUP}/{name}", row, checksums.of_rows(values), row, ones)
            offset = residue + np.concatenate([[0], np.cumsum(vectors.counts)])
            if any(map(has_matrix, fingerprint.representations)):
                yield Piece("offset", row, offset, row, np.ones_like(offset))
            width = storage_bytes(fingerprint.storage_dtype)
            for name, dim in vectors.parts[0].dims.items() if vectors.parts else ():
                counts, starts = ones, row + np.arange(len(ones))
                if has_matrix(name):
                    counts, starts = vectors.counts, offset[:-1]
                number = np.cumsum(counts) * dim * width // BLOCK_BYTES
                edges = np.flatnonzero(np.diff(number, prepend=-1, append=np.iinfo(np.int64).max))
                for first, stop in pairwise(edges.tolist()):
                    rows = counts[first:stop]
                    bits = _read(vectors, name, first, rows)
                    path, start = f"representations/{name}", int(starts[first])
                    yield Piece(path, start, bits, row + first, rows)
                    if name in vectors.sums:  # as the part keeps them: a change here shows
                        sums = vectors.sums[name][first:stop]
                    elif has_matrix(name):  # in a part of release 0.1
                        sums = checksums.of_sequences(bits, rows)
                    else:
                        sums = checksums.of_rows(bits)
                    path, start = f"{checksums.GROUP}/{name}", row + first
                    yield Piece(path, start, sums, start, ones[first:stop])
        row, residue = row + len(bucket.keys), int(offset[-1])


def _read(vectors: Located, name: str, first: int, counts: Numbers) -> Array:
    """Read the stored bits of the keys from `first` on, each with so many rows."""
    part_of, ends = vectors.part[first : first + len(counts)], np.cumsum(counts)
    bits = np.empty(0)
    for number in np.unique(part_of).tolist():
        mine = np.flatnonzero(part_of == number)
        part, rows = vectors.parts[number], vectors.row[first + mine]
        if has_matrix(name):
            rows = flat_rows(vectors.starts[first + mine], counts[mine])
            mine = flat_rows((ends - counts)[mine], counts[mine])
        slab: Array = part.unchecked_bits(name, rows)
        if len(slab) == ends[-1]:
            return slab
        bits = bits if len(bits) else np.empty((ends[-1], slab.shape[1]), slab.dtype)
        bits[mine] = slab
    return bits
