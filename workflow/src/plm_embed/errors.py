"""Exceptions that a user can cause and fix, and their remedies."""

import errno
import operator
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import SupportsIndex

AnyPath = str | PathLike[str]


class PlmEmbedError(Exception):
    """Error that a user can cause: what is wrong and where (file, record, line, key), in one or two
    lines, and the remedy.

    `message` says what is wrong, `remedy` what to do, if possible a command; `path` is the file or
    folder concerned, if there is one. As text, the message with the remedy. The command line prints
    that without a traceback and exits with 1; any other exception is a bug and keeps its traceback.
    """

    def __init__(self, message: str, *, path: AnyPath | None = None, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.path = None if path is None else Path(path)
        self.remedy = remedy

    def __str__(self) -> str:
        return "; ".join(filter(None, (self.message, self.remedy)))


class InputError(PlmEmbedError):
    """An input file of sequences that cannot be read.

    `record` is the number of the first record that could not be read, `line` a line of the file;
    None if unknown.
    """

    def __init__(
        self,
        message: str,
        *,
        path: AnyPath | None = None,
        record: int | None = None,
        line: int | None = None,
        remedy: str = "",
    ) -> None:
        super().__init__(message, path=path, remedy=remedy)
        self.record, self.line = record, line


class ConfigError(PlmEmbedError):
    """A setting that is wrong, unknown or at odds with another one.

    `key` is the key of the configuration (`embedding.layers`) or the option (`--queue`), the first
    of several; `path` the file that it names, if that is at fault. `problems` has a line for each.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        path: AnyPath | None = None,
        problems: Sequence[str] = (),
        remedy: str = "",
    ) -> None:
        super().__init__(message, path=path, remedy=remedy)
        self.key, self.problems = key, tuple(problems) or (str(self),)


class WeightsError(PlmEmbedError):
    """Weights that are missing, damaged, of another model, or cannot be downloaded."""


class StoreError(PlmEmbedError):
    """A file that this program writes (records, a store, a master ...): missing, damaged, or of
    another run.
    """


class UnknownIdError(PlmEmbedError, KeyError):
    """An id, or a key, that no vector has."""


class PassingError(PlmEmbedError):
    """A failure that another attempt, later or elsewhere, may well avoid."""


class NodeError(PassingError):
    """A fault of this node, such as a full or missing scratch folder: another node may do the same
    work, and the command line exits with a status that says so.
    """


class DeviceError(NodeError):
    """A device that cannot be used or computes wrongly: another one may do the same work."""


EXTRAS = {
    "anndata": ("anndata", "anndata"),
    "esm": ("fair-esm", "reference"),
    "huggingface_hub": ("huggingface_hub", "embed"),
    "jinja2": ("jinja2", "report"),
    "markupsafe": ("jinja2", "report"),
    "pandas": ("pandas", "pandas"),
    "safetensors": ("safetensors", "embed"),
    "snakemake": ("snakemake", "workflow"),
    "torch": ("torch", "embed"),
}
"""Modules that may be absent: the package of each, and the extra of plm-embed that installs it."""
_MEMORY = ("out of memory", "STATUS_ALLOC_FAILED", "can't allocate memory")
_LOST = (
    *("CUDA error", "CUDA driver error", "Triton Error [CUDA]", "CUBLAS_STATUS", "CUDNN_STATUS"),
    "HIP error",
)


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error is about memory, the device's or the host's, after which the device
    works as before. Torch's allocators, CUDA and cuBLAS have no common type, so their words decide.
    """
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or any(text in str(error) for text in _MEMORY)
    )


def device_lost(error: BaseException) -> bool:
    """Return whether an error leaves the device unusable for this process (device assert, Xid, ECC,
    a failed launch).
    """
    return any(text in str(error) for text in _LOST) and not out_of_memory(error)


def missing_extra(error: BaseException) -> str:
    """Return a message when `error` is that a package of an extra is not installed; else ''."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if module not in EXTRAS:
        return ""
    package, name = EXTRAS[module]
    return f"{package} is not installed: pip install 'plm-embed[{name}]'"


@contextmanager
def extra() -> Iterator[None]:
    """Raise PlmEmbedError, with what to install, where an import needs an absent extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not (words := missing_extra(error)):
            raise
        raise PlmEmbedError(words) from error


def delete(*paths: "str | PathLike[str]") -> str:
    """Return the remedy for files of a campaign that are damaged, or missing if none exists.

    Snakemake makes again what is missing. So a file's own path is named, for one of several that
    are declared as a folder that folder, and for a part its completion records, too.
    """
    named = [shlex.quote(str(path)) for path in paths if os.path.lexists(path)]
    return f"delete {' and '.join(named)} and {RUN_AGAIN}" if named else RUN_AGAIN


RUN_AGAIN = "run the campaign again"


EMBED_AGAIN = f"delete it and results/{{model}}/embedded and {RUN_AGAIN}"
"""Remedy for a part whose campaign is not known."""


def no_space(error: BaseException, written: str = "") -> str:
    """Return a message when `error`, or its cause, is a full or read-only disk or a spent quota;
    else ''. `written`: the file being written, for an error that names none.
    """
    seen: BaseException | None = error
    while seen:
        if isinstance(seen, OSError) and seen.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            # of a copy, the second one is written
            path = seen.filename2 or seen.filename or written
            where = f" ({path})" if path else ""
            words = f"no space left on the disk, or no quota{where}\nmake room"
            if seen.errno == errno.EROFS:
                words = f"the disk is read-only{where}\nmake it writable"
            return f"{words} and run again; finished work is kept"
        seen = seen.__cause__ or seen.__context__
    return ""


_NO_THREADS = ("can't start new thread", "Failed to launch worker thread", "EAGAIN")
_NO_MEMORY = ("malloc of size", "failed to map segment")


def limit_reached(error: BaseException) -> str:
    """Return a message when `error` is a limit of the system on this process, and no fault of a
    file; else ''.
    """
    if any(text in str(error) for text in _NO_THREADS) or isinstance(error, BlockingIOError):
        return (
            "the system allows no more threads: processes (ulimit -u) or memory (ulimit -v) are "
            "limited\nraise the limit, or set OMP_NUM_THREADS=1, and run again"
        )
    if isinstance(error, MemoryError) or any(text in str(error) for text in _NO_MEMORY):
        limits = "ulimit -v, or the memory of the job"
        return f"not enough memory\nraise the limit ({limits}), and run again"
    return ""


def unusable_path(error: BaseException) -> str:
    """Return a message when `error` is the system's, about a path that cannot serve; else ''."""
    kinds = (PermissionError, FileExistsError, NotADirectoryError, IsADirectoryError)
    numbers = (errno.ELOOP, errno.ENAMETOOLONG)
    if not isinstance(error, OSError) or not (isinstance(error, kinds) or error.errno in numbers):
        return ""
    # of two, the second is where a file was to go; the first has a temporary name
    path = error.filename2 or error.filename
    if path and isinstance(error, PermissionError) and not Path(path).is_file():
        places = Path(path), *Path(path).parents
        nearest = next(place for place in places if os.path.exists(place))  # noqa: PTH110
        if not os.access(nearest, os.W_OK):
            remedy = "change its permissions or name another place, and rerun"
            return f"{nearest}: cannot be written to; {remedy}"
    return f"{path}: {error.strerror}" if path else str(error)


def in_words(error: BaseException, written: str = "") -> str:
    """Return a message when a disk, a path or a package is at fault and no bug; else ''. `written`:
    as for `no_space`.
    """
    return no_space(error, written) or unusable_path(error) or missing_extra(error)


def whole_number(name: str, value: SupportsIndex, *, above_zero: bool = False) -> int:
    """Return a whole number that a caller in Python gave. ConfigError for anything else."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise ConfigError(f"{name}: {value!r} is not a whole number", key=name)
    if above_zero and number < 1:
        raise ConfigError(f"{name}: {number} is not above 0", key=name)
    return number


def some_path(name: str, value: object) -> Path:
    """Return a path that a caller in Python gave; `~` is the home folder. ConfigError for anything
    else, for what no file can be called, and for an empty text, which would be the current folder.
    """
    text = os.fspath(value) if isinstance(value, PathLike) else value
    if not isinstance(text, str):
        raise ConfigError(f"{name}: {value!r} is not a path", key=name)
    if not text:
        remedy = "give a path, or '.' for this folder"
        raise ConfigError(f"{name}: is empty", key=name, remedy=remedy)
    try:
        path = Path(text).expanduser()
        path.lstat()
    except (OSError, RuntimeError, ValueError) as error:  # too long; the home of nobody; with a NUL
        if not isinstance(error, OSError) or error.errno == errno.ENAMETOOLONG:
            words = f"{name}: {text[:40]!r}: no file can be called that"
            raise ConfigError(words, key=name) from None
    return path
