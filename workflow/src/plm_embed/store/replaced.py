"""Which parts of a store stand for which: notes of `plm-embed compact`, `compacted/{digest}.json`
beside the parts, and the parts as notes and completion records name them.
"""

import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from plm_embed.errors import PlmEmbedError
from plm_embed.io.files import whole_files
from plm_embed.io.sealed_json import read_sealed, write_sealed
from plm_embed.typed_json import to_plain

NOTES = "compacted"
"""Folder, beside the parts, of the notes."""

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
    remedy = "remove it, and run `snakemake --forcerun embed`"
    return read_sealed(path, Replacement, "a note of compact", remedy)


def note_files(folder: Path) -> list[Path]:
    """The notes in the folder of a fingerprint, by name."""
    return whole_files(folder / NOTES, "*.json")


def replacements(folder: Path) -> dict[str, tuple[PartInfo, ...]]:
    """By the name of each part that was replaced: the parts that replace it; `folder` is that of
    the fingerprint.
    """
    found: dict[str, tuple[PartInfo, ...]] = {}
    for path in note_files(folder):
        try:
            note = read_note(path)
        except PlmEmbedError as error:  # without it old parts and new ones count alike
            _log.warning("%s", error)
            continue
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
