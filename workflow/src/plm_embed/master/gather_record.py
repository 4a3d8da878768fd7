"""The record that gather leaves of what it wrote: master, index and records.parquet.

Snakemake removes what a rule declares before the rule runs, and again when it fails. Therefore
gather declares this record, and replaces the three files itself when their successors are whole.
What Snakemake would have seen by itself, that a file is gone or newer than its proof, `forget`
tells it.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from plm_embed.errors import PlmEmbedError
from plm_embed.io.sealed_json import read_sealed, write_sealed
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
    return read_sealed(record, Gathered, "a record of gather", "run `snakemake --forcerun gather`")


def forget(record: Path, proof: Path) -> None:
    """Remove the record when a file that it names is gone, and the proof (checksums.sha256) of one
    that has changed.
    """
    with suppress(OSError):  # a folder that cannot be written: the first job says so
        if not record.exists():
            return
        try:
            files = [record.parent / name for name in read_record(record).files]
        except PlmEmbedError:
            files = [record.parent / "damaged"]
        if not all(file.is_file() for file in files):
            record.unlink()
        elif (
            proof.exists()
            and max((file.stat().st_mtime_ns for file in files), default=0)
            > proof.stat().st_mtime_ns
        ):
            proof.unlink()
