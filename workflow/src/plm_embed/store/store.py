"""The store: a folder of immutable part files, each sorted by key, all of one fingerprint. The only
cache.

A part is written whole on local disk, copied beside its final place and renamed, so a job that is
killed loses at most the part that it was filling, and two jobs that compute the same keys do no
harm. Nothing is locked. What is left to compute is always `keys - store`.

The name of a part says what it holds, so that no file is opened to find a key:
`{first key}-{last key}-{rows}-{SHA-256}.h5`, of keys their first 8 hexadecimal digits, of the
SHA-256 16.
"""

import logging
import os
import re
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import EMBED_AGAIN, PlmEmbedError, StoreError
from plm_embed.fingerprint import Fingerprint
from plm_embed.io.files import atomic_path, sha256_file
from plm_embed.keys import Keys
from plm_embed.store.parts import DamagedPartError, Part, PartInfo, parts_folder

FINGERPRINT = "fingerprint.json"
"""The file in the folder of a fingerprint that says which it is."""

_ID = re.compile(r"[0-9a-f]{16}")
_PART = re.compile(r"([0-9a-f]{8})-([0-9a-f]{8})-([0-9]+)-([0-9a-f]{16})\.h5")
_log = logging.getLogger(__name__)


def fingerprint_folders(store: Path) -> list[Path]:
    """List the folders of the fingerprints in a store, by name; of such a folder, itself."""
    note = store / FINGERPRINT
    notes = [note] if note.is_file() else sorted(store.glob(f"*/{FINGERPRINT}"))
    return [note.parent for note in notes]


def read_fingerprint(folder: Path) -> Fingerprint:
    """Read fingerprint.json in a folder. StoreError when it is damaged, or not of a folder of this
    name.
    """
    note = folder / FINGERPRINT
    try:
        fingerprint = Fingerprint.from_json(note.read_text(encoding="utf-8"))
        if _ID.fullmatch(folder.name) and fingerprint.id != folder.name:
            raise ValueError("the name of its folder is the hash of another one")
    except ValueError as error:
        problem = f"{note}: not a fingerprint, or changed ({error})"
        raise StoreError(problem, remedy=EMBED_AGAIN, path=note) from None
    return fingerprint


def part_names(folder: Path) -> list[str]:
    """List the names of the parts in a folder, sorted; not of what is being copied there under a
    hidden name, or was set aside.
    """
    # names alone: of 100,000 parts a path each takes four times as long
    return sorted(filter(_PART.fullmatch, os.listdir(folder))) if folder.is_dir() else []  # noqa: PTH208


class PartList:
    """The parts that are in a folder now, by name. The folder is listed once, however many ranges
    are asked for.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = part_names(folder)
        # the greatest last key of a part and all before it
        self._reach = list(accumulate((name[9:17] for name in self._names), max))

    def between(self, first_key: str, last_key: str) -> list[Path]:
        """List those that can hold a key of the inclusive range, by their names: none is opened."""
        first, last = first_key[:8], last_key[:8]
        start = bisect_left(self._reach, first)
        stop = bisect_right(self._names, last, start, key=lambda name: name[:8])
        return [self._folder / name for name in self._names[start:stop] if first <= name[9:17]]


class Store:
    """The parts of one fingerprint below `root`; makes the folder when it is new."""

    def __init__(self, root: Path, fingerprint: Fingerprint) -> None:
        self.fingerprint = fingerprint
        self.parts_folder = parts_folder(root, fingerprint)
        self.folder = self.parts_folder.parent
        self._infos: dict[str, PartInfo] = {}
        self.parts_folder.mkdir(parents=True, exist_ok=True)
        note = self.folder / FINGERPRINT
        content = (fingerprint.to_json() + "\n").encode()
        if note.is_file() and note.read_bytes() == content:
            return
        if note.exists():  # the name of the folder is a hash of what the note has to say
            _log.warning("%s: damaged or edited; written again", note)
        with atomic_path(note) as temporary:
            temporary.write_bytes(content)

    def publish(self, local: Path) -> PartInfo:
        """Copy a whole part into the store, where it shows up all at once under its final name.

        Equal parts published at the same time replace each other by equal bytes.
        """
        with Part(local) as part:
            part.check(self.fingerprint)
            ends = [key.decode()[:8] for key in part.keys[[0, -1]]]
            rows, digest = part.count, sha256_file(local)
        name = f"{ends[0]}-{ends[1]}-{rows}-{digest[:16]}.h5"
        with atomic_path(self.parts_folder / name) as temporary:
            shutil.copyfile(local, temporary)
        info = PartInfo(name, rows, local.stat().st_size, digest)
        self.know(info)
        return info

    def know(self, info: PartInfo) -> None:
        """Take a part that a worker of this job has published as read: it need not be hashed."""
        self._infos[info.name] = info

    def missing(self, keys: Keys) -> NDArray[np.bool_]:
        """Tell which of the keys (S64, sorted) no part holds. A damaged part is set aside, so its
        keys are missing.

        A file that holds one of them is hashed, once in the life of this object.
        """
        absent = np.ones(len(keys), dtype=bool)
        for _, held in self._overlaps(keys):
            absent &= ~held
        return absent

    def covering(self, keys: Keys) -> list[PartInfo]:
        """List the parts, by name, that hold at least one of the keys (S64, sorted). A damaged part
        is set aside.
        """
        return [self._info(path) for path, held in self._overlaps(keys) if held.any()]

    def _overlaps(self, keys: Keys) -> Iterator[tuple[Path, NDArray[np.bool_]]]:
        if not len(keys):
            return
        parts = PartList(self.parts_folder).between(keys[0].decode(), keys[-1].decode())
        for path in parts:
            try:
                with Part(path) as part:
                    if part.fingerprint != self.fingerprint:
                        self._info(path)  # nobody's, if its bytes have changed
                        part.check(self.fingerprint)
                    held = part.locate(keys) >= 0
                if held.any():
                    self._info(path)
            except DamagedPartError as error:
                aside = path.with_name(f"{path.name}.damaged")
                with suppress(FileNotFoundError):  # another job was first
                    path.rename(aside)
                    _log.warning("%s; kept as %s, and computed again", error.message, aside.name)
            except (PlmEmbedError, FileNotFoundError):
                if path.exists():
                    raise
                # another job has set it aside meanwhile
            else:
                yield path, held

    def _info(self, path: Path) -> PartInfo:
        if path.name not in self._infos:
            digest = sha256_file(path)
            name = _PART.fullmatch(path.name)
            if name is None or name[4] != digest[:16]:
                raise DamagedPartError(f"{path}: its bytes are not those that were written")
            self._infos[path.name] = PartInfo(path.name, int(name[3]), path.stat().st_size, digest)
        return self._infos[path.name]
