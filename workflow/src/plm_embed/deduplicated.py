"""The files that deduplicate writes for all later steps, believed only as they were written.

The sealed summary.json of a folder of sequences holds the SHA-256 of every other file in it.
"""

import shlex
from functools import lru_cache
from pathlib import Path
from typing import Any

from plm_embed.errors import UserError
from plm_embed.files import sha256_file
from plm_embed.sealed import read_sealed

SUMMARY = "summary.json"


def make_again(folder: Path, command: str = "deduplicate") -> str:
    """How to make a folder of sequences anew: a file's name serves whichever rule makes it."""
    made = folder / SUMMARY if command == "deduplicate" else folder
    return f"run `snakemake --forcerun {shlex.quote(str(made))}`, or by hand `plm-embed {command}`"


def read_summary(sequences: Path, command: str = "deduplicate") -> dict[str, Any]:
    """What deduplicate (or scan, or split) says about its inputs, records and files; the caller must not change it.

    UserError when it is missing or was changed.
    """
    path = sequences / SUMMARY
    try:
        return _read_summary(path, command, _state(path))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; {make_again(sequences, command)}") from None


def known_summary(sequences: Path) -> dict[str, Any] | None:
    """`read_summary` for those who can do without: None when it is missing or not to be believed."""
    try:
        return read_summary(sequences)
    except UserError:
        return None


@lru_cache(128)
def _read_summary(path: Path, command: str, _: tuple[int, ...]) -> dict[str, Any]:
    return read_sealed(path, "a summary of sequences", make_again(path.parent, command))


def verified(sequences: Path, name: str, command: str = "deduplicate") -> Path:
    """The path of a file that deduplicate (or scan, or split) wrote, such as `members/0001.parquet`, unchanged.

    UserError when it is missing, or its SHA-256 is not that in the summary.
    """
    path, again = sequences / name, make_again(sequences, command)
    try:
        sound = _sha256(path, _state(path)) == read_summary(sequences, command).get("files", {}).get(name)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; {again}") from None
    if not sound:
        raise UserError(f"{path}: changed since it was written; {again}")
    return path


@lru_cache(1 << 15)
def _sha256(path: Path, _: tuple[int, ...]) -> str:
    return sha256_file(path)


def _state(path: Path) -> tuple[int, ...]:
    """What differs when a file was written or replaced: read once in a process, it need not be hashed again."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
