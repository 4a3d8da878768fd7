"""The record that gather leaves of what it wrote: master, index and records.parquet.

Snakemake removes what a rule declares before the rule runs, and again when it fails. Therefore
gather declares this record, and replaces the three files itself when their successors are whole.
What Snakemake would have seen by itself, that a file is gone or newer than its proof, `outdated`
says.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from plm_embed.errors import PlmEmbedError, make_again
from plm_embed.io.files import sha256_file
from plm_embed.io.sealed_json import read_sealed, write_sealed
from plm_embed.master.validation_record import VALIDATION, read_validation
from plm_embed.typed_json import IF_KNOWN


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """What gather has written: paths, relative to the folder of the record."""

    schema_version: Literal[1] = 1
    files: tuple[str, ...]
    made: str = field(default="", metadata=IF_KNOWN)
    """ISO 8601, with its zone. Snakemake goes by what a small file holds: another gather must be
    told by it, or proof and report would stay those of the last one.
    """


def write_record(record: Path, files: Iterable[Path]) -> None:
    """Say that gather has written these files, all of them."""
    names = tuple(os.path.relpath(file, record.parent) for file in files)
    made = datetime.now(UTC).isoformat(timespec="milliseconds")
    write_sealed(record, Gathered(files=names, made=made))


def read_record(record: Path) -> Gathered:
    """What gather has left. StoreError when it is missing or damaged."""
    return read_sealed(record, Gathered, "a record of gather", make_again(record))


def outdated(record: Path, proof: Path) -> tuple[Path, str] | None:
    """What of the two no longer holds, and why: the record when a file that it names is gone, the
    proof (checksums.sha256) when one is younger than it, or when what validate said is gone or
    another than it names.
    """
    if not record.exists():
        return None
    try:
        files = [record.parent / name for name in read_record(record).files]
    except PlmEmbedError:
        return record, f"{record} is damaged"
    if gone := [file for file in files if not file.is_file()]:
        return record, f"{gone[0]} is gone"
    proven = proof.stat().st_mtime_ns if proof.exists() else None
    for file in files:
        if proven is not None and _changed(file) > proven:
            return proof, f"{file} has changed since it was proven, or was copied"
    said = proof.with_name(VALIDATION)
    if proven is not None and not _names(proof, said):
        return proof, f"{said} or {proof.name} is damaged, or gone"
    return None


def _changed(file: Path) -> int:
    """When the content of a file changed last, at the latest. A time of change can be set to
    anything, also to next year; when that was done cannot.
    """
    found = file.stat()
    return min(found.st_mtime_ns, found.st_ctime_ns)


def _names(proof: Path, said: Path) -> bool:
    """Whether the proof has what validate said as it is, and all files with the digests in it."""
    try:
        validation = read_validation(said)
    except PlmEmbedError:
        return False
    if validation is None:
        return False
    files = validation.files | {said.name: sha256_file(said)}
    listed = sorted(proof.read_bytes().splitlines())
    return listed == sorted(f"{digest}  {name}".encode() for name, digest in files.items())
