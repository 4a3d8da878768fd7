"""Small files of a campaign that is at work: read again only after they changed, absent ones are no
error.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Kept:
    """What was read of files, kept until they change."""

    def __init__(self) -> None:
        self._files: dict[tuple[Path, str], tuple[tuple[int, int, int], Any]] = {}

    def forget(self) -> None:
        """Read all files again."""
        self._files.clear()

    def read(self, path: Path, read: Callable[[Path], T]) -> T | None:
        """What `read` makes of a file; None when there is none or it cannot be read."""
        key = path, read.__qualname__
        try:
            found = path.stat()
            # two versions of a file may be of the same instant
            changed = found.st_mtime_ns, found.st_size, found.st_ino
            if key not in self._files or self._files[key][0] != changed:
                self._files[key] = changed, read(path)
        except (OSError, ValueError):
            self._files.pop(key, None)
            return None
        kept: T = self._files[key][1]
        return kept


def time_of(path: Path) -> int | None:
    """When a file was changed, in nanoseconds; None when it is gone."""
    try:
        return path.stat().st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return None


def names(folder: Path) -> list[str]:
    """Names in a folder, without temporary ones; none when it does not exist."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
