"""Files that are either whole or absent: write beside the final place, sync, rename."""

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def atomic_path(final: Path) -> Iterator[Path]:
    """Yield a path beside `final`; rename it to `final` when the block succeeds, remove it when it fails.

    A rename within a folder is atomic on POSIX and network filesystems, so a reader (or a rerun after a
    kill) sees the whole file or none. The temporary name starts with `.tmp-`.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.parent / f".tmp-{secrets.token_hex(8)}-{final.name}"
    try:
        yield temporary
        sync(temporary)
        temporary.replace(final)
        sync(final.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file, or a folder's entries, to stable storage."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON with sorted keys, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, as 64 hexadecimal digits."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
