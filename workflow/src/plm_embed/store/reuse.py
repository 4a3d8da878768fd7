"""Vectors of earlier campaigns: looked up by key in their masters and stores, and copied into the
store bit for bit.

They are copied, rather than read in place by gather, so that a campaign is whole by itself: the
earlier file may be moved or deleted, and completion records, gather and validate know nothing of
it. Campaigns that should share vectors without a copy share a store.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import ConfigError, StoreError
from plm_embed.fingerprint import IMPORTED, Fingerprint, has_matrix
from plm_embed.io.files import sha256_file
from plm_embed.keys import Keys
from plm_embed.store.hdf5 import Array, decode
from plm_embed.store.part_name import names_bytes
from plm_embed.store.parts import DamagedPartError, Part, read_part
from plm_embed.store.replaced import PartList
from plm_embed.store.store import Store, fingerprint_folders, read_fingerprint
from plm_embed.store.write_parts import PartRows, write_part

log = logging.getLogger(__name__)
COPY_BYTES = 128 << 20
"""Vectors are copied in parts of about this size; bounds the memory."""


@dataclass
class Reused:
    """What was copied: keys by source, and the names of the devices that had computed them."""

    counts: Counter[str] = field(default_factory=Counter)
    devices: set[str] = field(default_factory=set)

    @property
    def total(self) -> int:
        return self.counts.total()


def fingerprints(path: Path) -> dict[Fingerprint, Path]:
    """The fingerprints of a master (.h5), or of all that a store holds, and the file or folder of
    parts of each.

    ConfigError when `path` is neither.
    """
    if path.is_file():
        with _open(path) as part:
            return {part.fingerprint: path}
    found = {read_fingerprint(one): one / "parts" for one in fingerprint_folders(path)}
    if not found:
        what = "neither a master .h5 nor a store" if path.exists() else "not found"
        raise ConfigError(
            f"reuse: {path}: {what}",
            key="reuse",
            path=path,
            remedy="give an earlier master_esm2_embeddings.h5 or the folder of a store",
        )
    return found


def check_sources(paths: Sequence[Path], known: Mapping[str, object]) -> None:
    """Refuse sources whose vectors are of another kind, as far as fields of the fingerprint are
    `known` already.

    Raises ConfigError with the difference in words.
    """
    for path in paths:
        wrong = [differing(found, known) for found in fingerprints(path)]
        if all(wrong):
            nearest = sorted(wrong, key=len)[0]
            other = any(each.startswith("engine ") for each in nearest)
            raise ConfigError(
                f"reuse: {path}: its vectors were made "
                f"{'by another kind of device or version' if other else 'with other settings'}: "
                f"{'; '.join(nearest)}\n  take it out of `reuse`"
                + ("" if other else ", or set what is computed to what it holds"),
                key="reuse",
                path=path,
            )


def differing(found: Fingerprint, known: Mapping[str, object]) -> list[str]:
    """A line for each known field that the fingerprint has otherwise."""
    stated = found.stated
    return [
        f"{name} is {stated[name]} there, {value} here"
        for name, value in known.items()
        if stated[name] != value and not (name == "engine" and found.engine == IMPORTED)
    ]


class Reuse:
    """Earlier masters and stores whose vectors stand for computed ones. ConfigError for one of
    another fingerprint.
    """

    def __init__(self, paths: Sequence[Path], fingerprint: Fingerprint) -> None:
        check_sources(paths, fingerprint.stated)
        self._fingerprint = fingerprint
        self._sources = [
            (path, found, place)
            for path in paths
            for found, place in fingerprints(path).items()
            if found.serves(fingerprint)
        ]
        self._whole: set[Path] = set()

    def copy(self, keys: Keys, length: NDArray[np.int32], store: Store, scratch: Path) -> Reused:
        """Copy what the sources hold of `keys` (S64 (n,), sorted; `length` in residues) into
        `store`.

        The first source that has a key gives its vector.
        """
        reused = Reused()
        open_keys = np.ones(len(keys), dtype=bool)
        batch = _Batch(self._fingerprint)
        for path, fingerprint, place in self._sources:
            for part in self._parts(place, fingerprint, keys):
                try:
                    found = self._take(part, keys, length, open_keys)
                    reused.counts[str(path)] += len(found)
                    if len(found):
                        reused.devices |= part.devices
                    for rows in _pieces(part, found):
                        batch.add(part, rows)
                        if batch.bytes >= COPY_BYTES:
                            batch.publish(store, scratch)
                except DamagedPartError as error:
                    raise StoreError(
                        f"reuse: {part.path}: damaged ({error.__cause__})\n"
                        "  take it out of `reuse`, or put a whole copy in its place",
                        path=part.path,
                    ) from error
        batch.publish(store, scratch)
        for path_name, count in reused.counts.items():
            log.info("reuse: %d of %d missing sequences are in %s", count, len(keys), path_name)
        return reused

    def _take(
        self, part: Part, keys: Keys, length: NDArray[np.int32], open_keys: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """The rows of a part that hold keys that are still open, which are closed."""
        at = part.locate(keys)
        new = np.flatnonzero(open_keys & (at >= 0))
        if (part.column_at("length", at[new]) != length[new]).any():
            raise StoreError(
                f"reuse: {part.path}: says other lengths than the sequences of its keys have",
                path=part.path,
            )
        open_keys[new] = False
        rows: NDArray[np.int64] = at[new]
        return rows

    def _parts(self, place: Path, fingerprint: Fingerprint, keys: Keys) -> Iterator[Part]:
        if not len(keys):
            return
        paths = (
            [place]
            if place.is_file()
            else PartList(place).between(keys[0].decode(), keys[-1].decode())
        )
        for path in paths:
            if not place.is_file() and path not in self._whole:
                if not names_bytes(path.name, sha256_file(path)):
                    raise StoreError(
                        f"reuse: {path}: its bytes are not those that were written",
                        path=path,
                        remedy="remove it",
                    )
                self._whole.add(path)
            with _open(path) as part:
                part.check(fingerprint)
                yield part


def _open(path: Path) -> Part:
    try:
        return read_part(path)
    except DamagedPartError as error:
        raise StoreError(
            f"reuse: {path}: not a whole master or part with a fingerprint ({error.__cause__})\n"
            "  masters of other programs can be adopted with `plm-embed import`",
            path=path,
        ) from error


def _pieces(part: Part, rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Cut rows into pieces that take about half of COPY_BYTES each."""
    per_row = sum(4 * dim for name, dim in part.dims.items() if not has_matrix(name))
    bytes_of = np.full(len(rows), per_row, dtype=np.int64)
    for name, dim in part.dims.items():
        if has_matrix(name):
            bytes_of += 4 * dim * part.residues_at(rows)
    numbers = np.cumsum(bytes_of) // (COPY_BYTES // 2)
    yield from np.split(rows, np.flatnonzero(np.diff(numbers)) + 1) if len(rows) else ()


class _Batch:
    """Rows from several parts on their way into one."""

    def __init__(self, fingerprint: Fingerprint) -> None:
        self._fingerprint = fingerprint
        self._clear()

    def _clear(self) -> None:
        self.bytes = 0
        self._devices: set[str] = set()
        self._columns: dict[str, list[Array]] = {"emb_keys": [], "length": [], "windows": []}
        self._vectors: dict[str, list[Any]] = {
            name: [] for name in self._fingerprint.representations
        }

    def add(self, part: Part, rows: NDArray[np.int64]) -> None:
        self._devices |= part.devices
        for name, column in self._columns.items():
            column.append(part.column_at(name, rows))
        for name, vectors in self._vectors.items():
            values = decode(part.bits(name, rows), self._fingerprint.storage_dtype)
            if not np.isfinite(values).all():
                raise StoreError(
                    f"reuse: {part.path}: {name} holds NaN or infinity",
                    path=part.path,
                    remedy="take it out of `reuse`",
                )
            self.bytes += values.nbytes
            if has_matrix(name):
                vectors.extend(np.split(values, np.cumsum(part.residues_at(rows))[:-1]))
            else:
                vectors.append(values)

    def publish(self, store: Store, scratch: Path) -> None:
        if not self._columns["emb_keys"]:
            return
        columns = {name: np.concatenate(pieces) for name, pieces in self._columns.items()}
        rows = PartRows(
            keys=columns["emb_keys"],
            length=columns["length"],
            windows=columns["windows"],
            representations={
                name: vectors if has_matrix(name) else np.concatenate(vectors)
                for name, vectors in self._vectors.items()
            },
        )
        local = scratch / "reused.h5"
        write_part(
            local,
            rows,
            self._fingerprint,
            {"device": ", ".join(sorted(self._devices)), "reused": True},
        )
        self._clear()
        store.publish(local)
        local.unlink()
