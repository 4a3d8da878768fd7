"""The store: a folder of immutable HDF5 part files, each sorted by key, all of one fingerprint. The
only cache.

A part is written whole on local disk, copied beside its final place and renamed, so a job that is
killed loses at most the part that it was filling, and two jobs that compute the same keys do no
harm. Nothing is locked. What is left to compute is always `keys - store`.
"""

import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import EMBED_AGAIN, PlmEmbedError, StoreError
from plm_embed.fingerprint import Fingerprint
from plm_embed.io.files import atomic_path, sha256_file
from plm_embed.keys import Keys
from plm_embed.store.part_name import names_bytes, part_name, rows_in
from plm_embed.store.parts import DamagedPartError, read_part
from plm_embed.store.replaced import PartInfo, PartList

FINGERPRINT = "fingerprint.json"
"""The file in the folder of a fingerprint that says which it is."""

_ID = re.compile(r"[0-9a-f]{16}")
_log = logging.getLogger(__name__)


def store_folder(root: Path, fingerprint: Fingerprint) -> Path:
    """Where the parts' folder and fingerprint.json of one fingerprint lie."""
    return root / fingerprint.id


def fingerprint_folders(store: Path) -> list[Path]:
    """The folders of the fingerprints that a store holds, by name; of such a folder, itself."""
    own = store / FINGERPRINT
    notes = [own] if own.is_file() else sorted(store.glob(f"*/{FINGERPRINT}"))
    return [note.parent for note in notes]


class Store:
    """The parts of one fingerprint below `root`; makes the folder when it is new."""

    def __init__(self, root: Path, fingerprint: Fingerprint) -> None:
        self.fingerprint = fingerprint
        self.folder = store_folder(root, fingerprint)
        self.parts_folder = self.folder / "parts"
        self._infos: dict[str, PartInfo] = {}
        self.parts_folder.mkdir(parents=True, exist_ok=True)
        note = self.folder / FINGERPRINT
        content = (fingerprint.to_json() + "\n").encode()
        if note.is_file() and note.read_bytes() == content:
            return
        if note.exists():  # the name of the folder is a hash of what the note has to say
            _log.warning("%s: damaged or edited; written anew", note)
        with atomic_path(note) as temporary:
            temporary.write_bytes(content)

    def publish(self, local: Path) -> PartInfo:
        """Copy a whole part into the store, where it shows up all at once under its final name.

        Equal parts published at the same time replace each other by equal bytes.
        """
        with read_part(local) as part:
            part.check(self.fingerprint)
            first, last, rows = part.keys[0].decode(), part.keys[-1].decode(), part.count
        digest = sha256_file(local)
        final = self.parts_folder / part_name(first, last, rows, digest)
        with atomic_path(final) as temporary:
            shutil.copyfile(local, temporary)
        info = PartInfo(final.name, rows, local.stat().st_size, digest)
        self._infos[final.name] = info
        return info

    def know(self, info: PartInfo) -> None:
        """Take a part that a worker of this job has published as read: it need not be hashed."""
        self._infos[info.name] = info

    def infos(self, paths: list[Path]) -> list[PartInfo]:
        """What completion records say about these parts; each is hashed once in the life of this
        object.
        """
        return [self._info(path) for path in paths]

    def parts(self, first_key: str, last_key: str) -> list[Path]:
        """Parts, by name, that can hold a key of the inclusive range: their names say so, no file
        is opened.
        """
        return PartList(self.parts_folder).between(first_key, last_key)

    def missing(self, keys: Keys) -> NDArray[np.bool_]:
        """Which of the keys (S64, sorted) no part holds. A damaged part is set aside, so its keys
        are missing.

        A file that holds one of them is hashed, once in the life of this object.
        """
        absent = np.ones(len(keys), dtype=bool)
        for _, held in self._overlaps(keys):
            absent &= ~held
        return absent

    def covering(self, keys: Keys) -> list[PartInfo]:
        """The parts, by name, that hold at least one of the keys (S64, sorted). A damaged part is
        set aside.
        """
        return [self._info(path) for path, held in self._overlaps(keys) if held.any()]

    def _overlaps(self, keys: Keys) -> Iterator[tuple[Path, NDArray[np.bool_]]]:
        if not len(keys):
            return
        for path in self.parts(keys[0].decode(), keys[-1].decode()):
            try:
                with read_part(path) as part:
                    if part.fingerprint != self.fingerprint:
                        self._info(path)  # nobody's, if its bytes have changed
                        part.check(self.fingerprint)
                    held = part.locate(keys) >= 0
                if held.any():
                    self._info(path)
            except DamagedPartError as error:
                if path.exists():
                    self._set_aside(path, error)
                continue
            except (PlmEmbedError, FileNotFoundError):
                if path.exists():
                    raise
                continue  # another job has set it aside meanwhile
            yield path, held

    def _info(self, path: Path) -> PartInfo:
        if path.name not in self._infos:
            digest = sha256_file(path)
            if not names_bytes(path.name, digest):
                damage = DamagedPartError(f"{path}: its bytes are not those that were written")
                self._set_aside(path, damage)
                raise damage
            self._infos[path.name] = PartInfo(
                path.name, rows_in(path.name), path.stat().st_size, digest
            )
        return self._infos[path.name]

    def _set_aside(self, path: Path, error: DamagedPartError) -> None:
        aside = path.with_name(f"{path.name}.damaged")
        _log.warning(
            "%s. It is set aside as %s; its sequences are computed again", error, aside.name
        )
        with suppress(FileNotFoundError):  # another job was first
            path.rename(aside)


def read_fingerprint(folder: Path) -> Fingerprint:
    """What fingerprint.json in a folder says. StoreError when it is damaged, or not of a folder of
    this name.
    """
    note = folder / FINGERPRINT
    try:
        found = Fingerprint.from_json(note.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StoreError(
            f"{note}: not a fingerprint ({error}), or {folder} is no store",
            remedy=EMBED_AGAIN,
            path=note,
        ) from None
    if _ID.fullmatch(folder.name) and found.id != folder.name:
        raise StoreError(
            f"{note}: changed, or of another store (the folder's name is its hash)",
            remedy=EMBED_AGAIN,
            path=note,
        )
    return found
