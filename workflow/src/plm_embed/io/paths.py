"""Paths: which of the configuration's can be used, and messages about the others."""

import errno
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from plm_embed.wording import did_you_mean

_UNUSABLE = (
    errno.EACCES,
    errno.EPERM,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
)
"""Errors of the system about a path that a user named and that cannot serve."""


def unusable(path: str) -> str:
    """Return why a path of the configuration cannot be used whatever lies there; '' when it can."""
    if set("{}<>") & set(path):
        return "must not hold braces or < >, which Snakemake takes for wildcards"
    if re.match(r"\$\w+(/|$)", path):
        return "environment variables are not expanded; write ~ or the path"
    return ""


def unusable_path(error: BaseException) -> str:
    """Return a message when `error` is the system's, about a path that cannot serve; else ''."""
    if not (isinstance(error, OSError) and error.errno in _UNUSABLE):
        return ""
    # of two, the second is where a file was to go; the first has a temporary name
    path = error.filename2 or error.filename
    if not path:
        return str(error)
    if isinstance(error, PermissionError) and not Path(path).is_file():
        places = Path(path), *Path(path).parents
        nearest = next(place for place in places if os.path.exists(place))  # noqa: PTH110
        if not os.access(nearest, os.W_OK):
            remedy = "change its permissions or name another place, and rerun"
            return f"{nearest}: cannot be written to; {remedy}"
    return f"{path}: {error.strerror}"


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
