"""The parts of a store by their names, and which of them stand for which: notes of `plm-embed
compact`, `compacted/{digest}.json` beside the parts. No part is opened.
"""

import hashlib
import json
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from plm_embed.errors import EMBED_AGAIN, PlmEmbedError, StoreError
from plm_embed.io.files import whole_files
from plm_embed.io.json_files import read_sealed, to_plain, write_sealed
from plm_embed.store.part_name import DIGITS, first_digits, last_digits, part_names, rows_in

NOTES = "compacted"
"""Folder, beside the parts, of the notes."""

Found = TypeVar("Found")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PartInfo:
    """A published part as completion records name it: file name, rows, size in bytes, SHA-256."""

    name: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Replacement:
    """What a note says: the names of parts that were replaced, and the parts that replace them."""

    replaced: tuple[str, ...]
    by: tuple[PartInfo, ...]


def write_note(folder: Path, note: Replacement) -> None:
    """Write a note into the folder of a fingerprint, under a name of its own."""
    content = json.dumps(to_plain(note), sort_keys=True).encode()
    write_sealed(folder / NOTES / f"{hashlib.sha256(content).hexdigest()[:16]}.json", note)


def read_note(path: Path) -> Replacement:
    """What a note says. StoreError when it is damaged."""
    remedy = EMBED_AGAIN
    return read_sealed(path, Replacement, "a note of compact", remedy)


def note_files(folder: Path) -> list[Path]:
    """The notes in the folder of a fingerprint, by name."""
    return whole_files(folder / NOTES, "*.json")


def replacements(folder: Path) -> Mapping[str, tuple[PartInfo, ...]]:
    """By the name of each part that was replaced: the parts that replace it; `folder` is that of
    the fingerprint.
    """
    sound = []
    for path in note_files(folder):
        try:
            _read_once(path)
            sound.append(path)
        except PlmEmbedError as error:  # without it old parts and new ones count alike
            _log.warning("%s", error)
    return _together(tuple(sound))


# gather asks for every bucket; a note never changes, its name is a hash of its content
@lru_cache(1 << 14)
def _read_once(path: Path) -> Replacement:
    return read_note(path)


@lru_cache(4)
def _together(notes: tuple[Path, ...]) -> Mapping[str, tuple[PartInfo, ...]]:
    found: dict[str, tuple[PartInfo, ...]] = {}
    for note in map(_read_once, notes):
        found |= dict.fromkeys(note.replaced, note.by)
    return found


def current_parts(named: Iterable[PartInfo], folder: Path) -> tuple[PartInfo, ...]:
    """The parts, by name, that hold what these held when they were named; `folder` is that of the
    fingerprint.

    For a part that was replaced stand those that replaced it, whether it was removed already or
    not.
    """
    replaced = replacements(folder)

    def there(part: PartInfo) -> bool:
        return (folder / "parts" / part.name).exists()

    found: dict[str, PartInfo] = {}
    open_parts = list(named)
    while open_parts:
        part = open_parts.pop()
        by = replaced.get(part.name, ())
        if by and (all(map(there, by)) or not there(part)):
            open_parts.extend(by)
        else:
            found[part.name] = part
    return tuple(found[name] for name in sorted(found))


def was_compacted(path: Path) -> bool:
    """Whether a part is gone because `plm-embed compact` removed it, which may happen meanwhile."""
    return not path.exists() and path.name in replacements(path.parent.parent)


def despite_compact(work: Callable[[], Found]) -> Found:
    """What `work` returns, which looks parts up and reads them. It begins anew whenever `plm-embed
    compact` has removed one in between: what replaces it holds the same.
    """
    while True:
        try:
            return work()
        except (FileNotFoundError, StoreError) as error:
            path = error.path if isinstance(error, StoreError) else error.filename
            if path is None or not was_compacted(Path(path)):
                raise
            _log.info("%s was compacted meanwhile; what replaces it is read", path)


def stored_vectors(store: Path) -> int:
    """Vectors in a store, of the settings that were written to last; by names alone."""
    folders = [path for path in store.glob("*/parts") if path.is_dir()]
    newest = max(folders, key=lambda path: path.stat().st_mtime_ns, default=None)
    return PartList(newest).rows if newest else 0


class PartList:
    """The parts that are in a folder now, by name, but for those that `plm-embed compact` has
    replaced. The folder is listed once, however many ranges are asked for.
    """

    def __init__(self, folder: Path) -> None:
        names = part_names(folder)
        there, replaced = set(names), replacements(folder.parent)
        self._folder = folder
        self._names = [
            name
            for name in names
            if name not in replaced or not there.issuperset(part.name for part in replaced[name])
        ]
        # the greatest last key of a part and all before it
        self._reach = list(accumulate(map(last_digits, self._names), max))

    def between(self, first_key: str, last_key: str) -> list[Path]:
        """Those that can hold a key of the inclusive range: their names say so, none is opened."""
        first, last = first_key[:DIGITS], last_key[:DIGITS]
        start = bisect_left(self._reach, first)
        stop = bisect_right(self._names, last, start, key=first_digits)
        names = self._names[start:stop]
        return [self._folder / name for name in names if first <= last_digits(name)]

    @property
    def rows(self) -> int:
        """Vectors in all of them; what two parts both hold counts twice."""
        return sum(map(rows_in, self._names))

    def all(self) -> list[Path]:
        """Every one of them."""
        return [self._folder / name for name in self._names]
