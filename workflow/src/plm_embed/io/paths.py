"""Paths: which of the configuration's can be used, and what to say of the others; the cache."""

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from plm_embed.wording import did_you_mean

_OF_PATHS = (
    errno.EACCES,
    errno.EPERM,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
)
"""Messages of the system about a path that a user named and that is of no use."""


def cache_folder() -> Path:
    """The folder for what can be made again: ~/.cache/plm-embed (below XDG_CACHE_HOME)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "plm-embed"


def unusable(path: str) -> str:
    """Say why a path of the configuration cannot be used whatever lies there; '' when it can."""
    if set("{}<>") & set(path):
        return "must not hold braces or < >, which Snakemake takes for wildcards"
    if re.match(r"\$\w+(/|$)", path):
        return "environment variables are not expanded; write ~ or the path"
    return ""


def not_writable(path: Path) -> str:
    """Return a message when nothing can be written at a path, which need not exist; '' when it can
    be.
    """
    there = next(place for place in (path, *path.parents) if os.path.exists(place))  # noqa: PTH110
    if os.access(there, os.W_OK):
        return ""
    return (
        f"{there}: cannot be written to; change its permissions or name another place, and "
        "run again"
    )


def unusable_path(error: BaseException) -> str:
    """Return a message when `error` is the system's, about a path that is of no use; else ''."""
    if not (isinstance(error, OSError) and error.errno in _OF_PATHS):
        return ""
    # of two, the second is where a file was to go; the first has a temporary name
    path = error.filename2 or error.filename
    if not path:
        return str(error)
    denied = isinstance(error, PermissionError) and not Path(path).is_file()
    return (not_writable(Path(path)) if denied else "") or f"{path}: {error.strerror}"


def missing(path: Path) -> str:
    """Why there is nothing to be read at a path, with the nearest name in its folder; else
    empty.
    """
    wrong = _trouble(path)
    if wrong in ("", "a file"):
        return ""
    return _not_found(path) if wrong == "not there" else wrong


def repeated(inputs: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Each input that is the same file as an earlier one, and that one."""
    seen: dict[str, Path] = {}
    for path in inputs:
        real = os.path.realpath(path)  # Path.resolve raises an error for links in a circle
        if seen.setdefault(real, path) is not path:
            yield path, seen[real]


def _trouble(path: Path) -> str:
    """Return what hinders a path from being a folder: 'not there', 'a file', or the system's words;
    '' when it is one.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return "not there" if error.errno == errno.ENOENT else f"{error.strerror}"
    return "" if stat.S_ISDIR(mode) else "a file"


def _not_found(path: Path) -> str:
    """'not found', with the nearest name in its folder, or with the first folder that does not
    exist.
    """
    if path.is_symlink():
        return "is a link to something that is not there"
    if set("*?[") & set(path.name):
        return "not found; patterns are not expanded here: name the files, or leave it to the shell"
    if path.parent.is_dir():
        names = os.listdir(path.parent) if os.access(path.parent, os.R_OK) else []  # noqa: PTH208
        return "not found" + did_you_mean(path.name, names)
    absent = next(folder for folder in reversed(path.parents) if not folder.is_dir())
    return f"not found: there is no folder {absent}" + (
        "" if path.is_absolute() else f" in {Path.cwd()}"
    )
