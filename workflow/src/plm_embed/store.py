"""The store: a folder of immutable HDF5 part files, each sorted by key, all of one fingerprint. The only cache.

A part is written whole on local disk, copied beside its final place and renamed, so a job that is killed loses at most
the part that it was filling, and two jobs that compute the same keys do no harm. Nothing is locked. What is left to
compute is always `keys - store`.
"""

import errno
import hashlib
import json
import logging
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import UserError
from plm_embed.files import atomic_path, sha256_file
from plm_embed.fingerprint import Fingerprint, StorageDtype
from plm_embed.hdf5 import (
    Array,
    connect,
    create_column,
    create_vectors,
    decode,
    encode,
    flat_rows,
    storage_dtype,
    take_bits,
    write_bits,
)

SCHEMA_VERSION = 1
Keys = NDArray[np.bytes_]

_PART_NAME = re.compile(r"([0-9a-f]{8})-([0-9a-f]{8})-\d+-[0-9a-f]{16}\.h5")
_log = logging.getLogger(__name__)


class DamagedPartError(UserError):
    """A part file that is truncated, corrupt, or no part at all."""


@dataclass(frozen=True)
class PartRows:
    """Vectors on their way into a part, in any order.

    keys S64 (n,); length int32 (n,): residues of the sequence; windows int32 (n,): 1 = embedded in one piece, k > 1 =
    in k windows, 0 = cropped. representations: every name of the fingerprint, as (n, D) numbers when pooled, as a list
    of n arrays (L, D) when per residue.
    """

    keys: Keys
    length: NDArray[np.int32]
    windows: NDArray[np.int32]
    representations: Mapping[str, Array | Sequence[Array]]


@dataclass(frozen=True)
class PartInfo:
    """A published part as completion records name it: file name, rows, size in bytes, SHA-256."""

    name: str
    rows: int
    bytes: int
    sha256: str


def is_per_residue(name: str) -> bool:
    """Whether a representation has a row per residue rather than one per sequence."""
    return name.startswith("per_residue_")


def write_part(path: Path, rows: PartRows, fingerprint: Fingerprint, provenance: dict[str, Any]) -> None:
    """Write a part, sorted by key, its vectors rounded to the fingerprint's storage type. Equal rows give equal bytes.

    Not atomic: meant for local scratch, from where `Store.publish` takes it. Rows that do not fit together, repeated
    keys and other representations than the fingerprint's raise ValueError.
    """
    order = np.argsort(rows.keys, kind="stable").astype(np.int64)
    keys = rows.keys[order]
    if not len(keys) or (keys[1:] == keys[:-1]).any():
        raise ValueError("a part needs at least one key, and each key once")
    if set(rows.representations) != set(fingerprint.representations):
        raise ValueError(f"vectors for {list(rows.representations)}, expected {fingerprint.representations}")
    if any(len(part) != len(keys) for part in (rows.length, rows.windows, *rows.representations.values())):
        raise ValueError("keys, lengths, windows and vectors differ in number")
    with connect(path, "w") as file:
        create_column(file, "emb_keys", len(keys), "S64")[...] = keys
        create_column(file, "length", len(keys), "<i4")[...] = rows.length[order]
        create_column(file, "windows", len(keys), "<i4")[...] = rows.windows[order]
        group = file.create_group("representations")
        for name in fingerprint.representations:
            values = rows.representations[name]
            if is_per_residue(name):
                _write_flat(file, name, [values[i] for i in order], fingerprint.storage_dtype)
            else:
                vectors = np.asarray(values)[order]
                dataset = create_vectors(group, name, vectors.shape, fingerprint.storage_dtype)
                write_bits(dataset, 0, encode(vectors, fingerprint.storage_dtype))
        file.attrs["schema_version"] = SCHEMA_VERSION
        file.attrs["fingerprint"] = fingerprint.to_json()
        file.attrs["provenance"] = json.dumps(provenance, sort_keys=True)


def _write_flat(file: h5py.File, name: str, matrices: list[Array], dtype: StorageDtype) -> None:
    offset = np.cumsum([0, *(len(matrix) for matrix in matrices)], dtype="<i8")
    if "offset" not in file:
        create_column(file, "offset", len(offset), "<i8")[...] = offset
    elif not np.array_equal(file["offset"][...], offset):
        raise ValueError(f"{name}: other numbers of residues than the layer before")
    dataset = create_vectors(file["representations"], name, (int(offset[-1]), matrices[0].shape[1]), dtype)
    for start, matrix in zip(offset.tolist(), matrices, strict=False):
        write_bits(dataset, start, encode(matrix, dtype))


class Part:
    """One part file, open for reading. Columns are read when first asked for.

    path; fingerprint; provenance (dict); names: its representations; count: rows; dims {name: D}.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._reading():
            self._file = connect(path)
        try:
            self._describe()
        except BaseException:
            self._file.close()
            raise

    def _describe(self) -> None:
        with self._reading():
            self.fingerprint = Fingerprint.from_json(self._file.attrs["fingerprint"])
            self.provenance: dict[str, Any] = json.loads(self._file.attrs["provenance"])
            self.count: int = self._file["emb_keys"].shape[0]
            if not self.count:
                raise ValueError("it holds no keys")
            self.names = self.fingerprint.representations
            self.dims: dict[str, int] = {name: self.vectors(name).shape[1] for name in self.names}
            for name in self.names:
                dataset, wanted = self.vectors(name), self.fingerprint.storage_dtype
                if storage_dtype(dataset) != wanted:
                    raise ValueError(f"{name} is stored as {storage_dtype(dataset)}, its fingerprint says {wanted}")
                if not is_per_residue(name) and dataset.shape[0] != self.count:
                    raise ValueError(f"{name} has {dataset.shape[0]} rows for {self.count} keys")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn what h5py says about a bad file into DamagedPartError, and leave errors of the system apart from it."""
        try:
            yield
        except OSError as error:
            if error.errno is not None:
                raise UserError(f"{self.path}: cannot be read: {error}") from error
            raise DamagedPartError(self._damage(error)) from error
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise DamagedPartError(self._damage(error)) from error

    def _damage(self, error: Exception) -> str:
        return f"{self.path}: truncated, corrupt or not a part of a store ({error}); remove it and run again"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def vectors(self, name: str) -> h5py.Dataset:
        """The data set of a representation: (n, D), or flat (R, D) when per residue."""
        return self._file["representations"][name]

    @cached_property
    def keys(self) -> Keys:
        """S64 (n,), strictly increasing."""
        keys: Keys = self._column("emb_keys")
        with self._reading():
            if not (keys[1:] > keys[:-1]).all():
                raise ValueError("its keys are not sorted")
        return keys

    @cached_property
    def length(self) -> NDArray[np.int32]:
        """Residues of each sequence (n,), before cropping."""
        return self._column("length")

    @cached_property
    def windows(self) -> NDArray[np.int32]:
        """(n,): 1 = embedded in one piece, k > 1 = in k windows, 0 = cropped."""
        return self._column("windows")

    @cached_property
    def offset(self) -> NDArray[np.int64]:
        """(n + 1,): where each sequence begins in the flat per-residue data sets."""
        return self._column("offset")

    def _column(self, name: str) -> Array:
        with self._reading():
            column: Array = self._file[name][...]
        return column

    def bits(self, name: str, indices: NDArray[np.int64]) -> Array:
        """Stored bits of the given rows (strictly increasing): (k, D), or flat (r, D) when per residue."""
        rows = flat_rows(self.offset, indices) if is_per_residue(name) else indices
        with self._reading():
            return take_bits(self.vectors(name), rows)

    def rows(self, name: str, indices: NDArray[np.int64]) -> Array | list[Array]:
        """Vectors of the given rows, in any order: (k, D), or a list of k matrices (L, D) when per residue."""
        unique, back = np.unique(np.asarray(indices, dtype=np.int64), return_inverse=True)
        values = decode(self.bits(name, unique), self.fingerprint.storage_dtype)
        if not is_per_residue(name):
            return values[back]
        ends = np.cumsum(self.offset[unique + 1] - self.offset[unique])
        matrices = np.split(values, ends[:-1])
        return [matrices[i] for i in back]

    def check(self, fingerprint: Fingerprint) -> None:
        """Raise UserError, with the difference in words, unless the part has this fingerprint."""
        if self.fingerprint != fingerprint:
            differences = "; ".join(self.fingerprint.differences(fingerprint))
            raise UserError(f"{self.path}: a part of another fingerprint ({differences}); move it out of this store")


def read_part(path: Path) -> Part:
    """Open a part (a context manager). A truncated or foreign file raises DamagedPartError, which names it."""
    return Part(path)


def store_folder(root: Path, fingerprint: Fingerprint) -> Path:
    """Where the parts' folder and fingerprint.json of one fingerprint lie."""
    return root / fingerprint.id


class Store:
    """The parts of one fingerprint below `root`; makes the folder when it is new."""

    def __init__(self, root: Path, fingerprint: Fingerprint) -> None:
        self.fingerprint = fingerprint
        self.folder = store_folder(root, fingerprint)
        self.parts_folder = self.folder / "parts"
        self._infos: dict[str, PartInfo] = {}
        note = self.folder / "fingerprint.json"
        if note.exists():
            self._check_note(note)
        else:
            self.parts_folder.mkdir(parents=True, exist_ok=True)
            with atomic_path(note) as temporary:
                temporary.write_text(fingerprint.to_json() + "\n", encoding="utf-8")

    def _check_note(self, note: Path) -> None:
        try:
            found = Fingerprint.from_json(note.read_text(encoding="utf-8"))
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{note}: not a fingerprint ({error}); is {self.folder} a store?") from None
        if found != self.fingerprint:
            differences = "; ".join(found.differences(self.fingerprint))
            raise UserError(f"{note}: edited, or of another store ({differences}); use another store folder")

    def publish(self, local: Path) -> PartInfo:
        """Copy a whole part into the store, where it shows up all at once under its final name.

        Equal parts published at the same time replace each other by equal bytes.
        """
        with read_part(local) as part:
            part.check(self.fingerprint)
            first, last, rows = part.keys[0].decode(), part.keys[-1].decode(), part.count
        digest = sha256_file(local)
        final = self.parts_folder / f"{first[:8]}-{last[:8]}-{rows}-{digest[:16]}.h5"
        try:
            with atomic_path(final) as temporary:
                shutil.copyfile(local, temporary)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise UserError(f"{final}: no space for a part of {local.stat().st_size:,} bytes; make room") from error
            raise
        info = PartInfo(final.name, rows, local.stat().st_size, digest)
        self._infos[final.name] = info
        return info

    def parts(self, first_key: str, last_key: str) -> list[Path]:
        """Parts, by name, that can hold a key of the inclusive range: their names say so, no file is opened."""
        named = ((match, path) for path in self.parts_folder.iterdir() if (match := _PART_NAME.fullmatch(path.name)))
        return sorted(path for match, path in named if match[1] <= last_key[:8] and first_key[:8] <= match[2])

    def missing(self, keys: Keys) -> NDArray[np.bool_]:
        """Which of the keys (S64, sorted) no part holds. A damaged part is set aside, so its keys are missing."""
        absent = np.ones(len(keys), dtype=bool)
        for _, held in self._overlaps(keys):
            absent &= ~held
        return absent

    def covering(self, keys: Keys) -> list[PartInfo]:
        """The parts, by name, that hold at least one of the keys (S64, sorted).

        Each file is hashed, once in the life of this object; one whose bytes are not those that its name tells is set
        aside and raises UserError, since its keys have to be computed again.
        """
        return [self._info(path) for path, held in self._overlaps(keys) if held.any()]

    def _overlaps(self, keys: Keys) -> Iterator[tuple[Path, NDArray[np.bool_]]]:
        if not len(keys):
            return
        for path in self.parts(keys[0].decode(), keys[-1].decode()):
            try:
                with read_part(path) as part:
                    part.check(self.fingerprint)
                    held = _contained(keys, part.keys)
            except DamagedPartError as error:
                self._set_aside(path, error)
                continue
            except UserError:
                if path.exists():
                    raise
                continue  # another job has set it aside meanwhile
            yield path, held

    def _info(self, path: Path) -> PartInfo:
        if path.name not in self._infos:
            digest = sha256_file(path)
            if not path.stem.endswith(digest[:16]):
                damage = DamagedPartError(f"{path}: its bytes are not those that were written; run again")
                self._set_aside(path, damage)
                raise damage
            self._infos[path.name] = PartInfo(path.name, int(path.stem.split("-")[2]), path.stat().st_size, digest)
        return self._infos[path.name]

    def _set_aside(self, path: Path, error: DamagedPartError) -> None:
        aside = path.with_name(f"{path.name}.damaged")
        _log.warning("%s. It is set aside as %s; its sequences are computed again", error, aside.name)
        with suppress(FileNotFoundError):  # another job was first
            path.rename(aside)


def _contained(keys: Keys, sorted_keys: Keys) -> NDArray[np.bool_]:
    """For each key whether it is among `sorted_keys`."""
    at = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    contained: NDArray[np.bool_] = sorted_keys[at] == keys
    return contained


def keys_sha256(keys: Keys) -> str:
    """What a completion record says about the keys of its bucket: SHA-256 of the sorted keys, joined."""
    return hashlib.sha256(np.ascontiguousarray(keys).tobytes()).hexdigest()
