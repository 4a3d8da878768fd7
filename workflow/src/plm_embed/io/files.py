"""Files that are either whole or absent: write beside the final place, sync, rename."""

import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

ABANDONED_SECONDS = 24 * 3600
_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{16}-")
log = logging.getLogger(__name__)


@contextmanager
def exclusive(final: Path) -> Iterator[None]:
    """Keep other processes from making `final` at the same time: they wait here until this one is
    done.

    A process that ends, however it ends, lets go. Nobody waits on a filesystem without locks, nor
    does a process that may neither write beside `final` nor read the lock.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    lock = final.with_name(f".{final.name}.lock")
    while True:
        handle = _opened(lock)
        if handle is None:  # what is whole there can be read
            yield
            return
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("another process is making %s: waiting for it", final)
                fcntl.flock(handle, fcntl.LOCK_EX)
            except OSError:
                log.debug("no locks on the filesystem of %s", final)
            try:
                removed = not os.path.samestat(lock.stat(), os.fstat(handle.fileno()))
            except FileNotFoundError:
                removed = True
            if removed:  # by its last owner
                continue
            try:
                yield
            finally:
                with suppress(OSError):  # gone, or another user's where each removes their own
                    lock.unlink()
            return


def _opened(lock: Path) -> IO[str] | None:
    """The file of a lock, which may be another user's; None where one may not make it.

    Who may only read it can lock it too, but not on NFS.
    """
    for mode in ("a", "r"):
        try:
            return lock.open(mode)
        except FileNotFoundError:
            if mode == "a":
                raise
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS):
                raise
    return None


@contextmanager
def atomic_path(final: Path) -> Iterator[Path]:
    """Yield a path beside `final`; rename it to `final` when the block succeeds, remove it when it
    fails.

    A rename within a folder is atomic on POSIX and network filesystems, so a reader (or a rerun
    after a kill) sees the whole file or none. The temporary name starts with `.tmp-`.
    """
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError:  # as below a folder that an automounter fills
        said = "no folder can be made there; name another place"
        raise NotADirectoryError(errno.ENOTDIR, said, str(final.parent)) from None
    temporary = final.with_name(temporary_prefix() + final.name)
    try:
        yield temporary
        sync(temporary)
        temporary.replace(final)
        sync(final.parent)
    except OSError as error:
        # a write that fails does not say where, and nobody knows the temporary name
        if error.filename is None or str(error.filename) == str(temporary):
            error.filename = str(final)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def temporary_prefix() -> str:
    """Return the beginning of a name that nobody else takes, for files that are renamed or removed
    later: `.tmp-`, 16 hexadecimal digits, `-`.
    """
    return f".tmp-{secrets.token_hex(8)}-"


def remove_abandoned(*folders: Path) -> None:
    """Remove what killed processes left in these folders under a temporary name.

    It has not changed for ABANDONED_SECONDS, nor has anything in it. Who writes may be on another
    node, where neither its process nor, on some filesystems, its lock can be seen.
    """
    latest = time.time() - ABANDONED_SECONDS
    for folder in set(folders):
        for left in folder.glob(".tmp-*"):
            if not _TEMPORARY.match(left.name):
                continue
            try:
                if max(path.lstat().st_mtime for path in (left, *left.rglob("*"))) > latest:
                    continue
                if left.is_dir() and not left.is_symlink():
                    shutil.rmtree(left)
                else:
                    left.unlink()
            except OSError as error:  # gone meanwhile, or another user's
                log.debug("%s stays: %s", left, error)
            else:
                log.info("%s: left behind by a killed process, removed", left)


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
        temporary.write_text(
            json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8"
        )


def read_shipped(path: Path) -> Any:
    """Return the content of a YAML file of this package; by libyaml in a tenth of the time."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), loader)


def whole_files(folder: Path, pattern: str) -> list[Path]:
    """The files in a folder that match, by name, but not those that are being written there under a
    hidden name.
    """
    return sorted(path for path in folder.glob(pattern) if not path.name.startswith("."))


def size(path: Path) -> int:
    """Bytes of a file, or of all files in and below a folder; 0 if there is none. Others may be at
    work in it.
    """
    total = 0
    files = (
        (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
        if path.is_dir()
        else [path]
    )
    for file in files:
        with suppress(FileNotFoundError):
            found = file.stat()
            total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total


def last_bytes(path: Path, count: int) -> bytes:
    """The end of a file, of at most so many bytes."""
    with path.open("rb") as handle:
        handle.seek(max(0, handle.seek(0, os.SEEK_END) - count))
        return handle.read()


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, as 64 hexadecimal digits."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
