"""Files that are either whole or absent: write beside the final place, sync, rename. And paths that
a user names.
"""

import errno
import fcntl
import hashlib
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from plm_embed.errors import PlmEmbedError
from plm_embed.wording import did_you_mean

ABANDONED_SECONDS = 24 * 3600
_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{16}-")
log = logging.getLogger(__name__)


@contextmanager
def exclusive(final: Path) -> Iterator[None]:
    """Keep other processes from making `final` at the same time: they wait here until this one is
    done.

    A process that ends, however it ends, lets go; the file of the lock stays. Nobody waits on a
    filesystem without locks, or where one may neither make the lock nor read it.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        with suppress(OSError):
            lock = os.open(final.with_name(f".{final.name}.lock"), os.O_RDONLY | os.O_CREAT, 0o666)
            stack.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("another process is making %s: waiting for it", final)
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def refuse_existing(*paths: Path) -> None:
    """Raise PlmEmbedError for the first of these paths that exists: nothing is overwritten."""
    for path in paths:
        if path.exists() or path.is_symlink():
            remedy = "remove it, or choose another name"
            raise PlmEmbedError(f"{path}: exists", path=path, remedy=remedy)


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
        problem = "no folder can be made there; name another place"
        raise NotADirectoryError(errno.ENOTDIR, problem, str(final.parent)) from None
    temporary = final.with_name(f".tmp-{secrets.token_hex(8)}-{final.name}")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(final)
        _sync(final.parent)
    except OSError as error:
        # a write that fails names no file, and nobody knows the temporary name
        if error.filename is None or str(error.filename) == str(temporary):
            error.filename = str(final)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def remove_abandoned(*folders: Path) -> None:
    """Remove what killed processes left in these folders under a temporary name.

    Neither it nor anything in it has changed for ABANDONED_SECONDS. The writer may be on another
    node, where neither its process nor, on some filesystems, its lock can be seen.
    """
    latest = time.time() - ABANDONED_SECONDS
    for left in (path for folder in set(folders) for path in folder.glob(".tmp-*")):
        with suppress(OSError):  # gone meanwhile, or another user's
            if not _TEMPORARY.match(left.name) or any(
                path.lstat().st_mtime > latest for path in (left, *left.rglob("*"))
            ):
                continue
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()
            log.info("removed %s, which a killed process left behind", left)


def _sync(path: Path) -> None:
    """Flush a file, or a folder's entries, to stable storage."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_shipped(path: Path) -> Any:
    """Return the content of a YAML file of this package; by libyaml in a tenth of the time."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), loader)


def whole_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files in a folder that match, by name, but not those that are being written there
    under a hidden name.
    """
    return sorted(path for path in folder.glob(pattern) if not path.name.startswith("."))


def missing(path: Path) -> str:
    """Return why nothing can be read at a path, with the nearest name in its folder; else ''."""
    try:
        path.stat()
    except FileNotFoundError:
        pass
    except OSError as error:
        return f"{error.strerror}"
    else:
        return ""
    if path.is_symlink():
        return "is a link to something that does not exist"
    if set("*?[") & set(path.name):
        return "not found; patterns are not expanded here: name the files, or leave it to the shell"
    if ":/" in str(path) or str(path) == "-":
        return "addresses and standard input are not read: save them to a file, and name that"
    base = "" if path.is_absolute() else f" in {Path.cwd()}"
    if path.parent.is_dir():
        names = os.listdir(path.parent) if os.access(path.parent, os.R_OK) else []  # noqa: PTH208
        return "not found" + (did_you_mean(path.name, names) or base)
    absent = next(folder for folder in reversed(path.parents) if not folder.is_dir())
    return f"not found: there is no folder {absent}{base}"


def repeated(inputs: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield each input that is the same file as an earlier one, and that one."""
    earlier: dict[str, Path] = {}
    for path in inputs:
        real = os.path.realpath(path)  # Path.resolve raises an error for links in a circle
        if earlier.setdefault(real, path) is not path:
            yield path, earlier[real]


def cache_folder() -> Path:
    """Return the folder for what can be made again: ~/.cache/plm-embed (below XDG_CACHE_HOME)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "plm-embed"


def size(path: Path) -> int:
    """Return the bytes of a file, or of all files in and below a folder; 0 if there is none. Others
    may be at work in it.
    """
    total = 0
    below = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    for file in below if path.is_dir() else [path]:
        with suppress(FileNotFoundError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, as 64 hexadecimal digits."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
