"""The files that deduplicate writes for all later steps, believed only as they were written.

The sealed summary.json of a folder of sequences holds the SHA-256 of every other file in it.
"""

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from plm_embed import keys
from plm_embed.errors import PlmEmbedError, StoreError, delete
from plm_embed.fingerprint import AlphabetName, Strand
from plm_embed.io.files import sha256_file
from plm_embed.io.json_files import read_sealed
from plm_embed.sequences.residues import ResiduePolicy

SUMMARY = "summary.json"


@dataclass(frozen=True)
class InputFile:
    """A sequence file as it was read."""

    path: str
    format: str
    """fasta, csv, tsv or parquet."""
    compression: str
    """none, gzip, ..."""
    bytes: int
    """Size of the file as it lies on disk."""
    sha256: str
    records: int


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Content of summary.json. Every record is counted once: `records` = `accepted` + all of
    `skipped`.
    """

    buckets: int
    """Their number; files of an earlier, larger number may lie beside them."""
    keep: tuple[str, ...]
    """The columns of tables that go into the results."""
    records: int
    accepted: int
    skipped: dict[str, int]
    """Records by reason."""
    events: dict[str, int]
    """Accepted records by the name of what was changed in them."""
    unique: int
    """Sequences."""
    residues: int
    """Residues of the unique sequences."""
    lengths: dict[int, int]
    """Unique sequences by their number of residues."""
    inputs: tuple[InputFile, ...]
    warnings: tuple[str, ...]
    files: dict[str, str]
    """SHA-256 of each file that was written, by its name relative to the summary."""
    policy: ResiduePolicy | None = None
    """Policy for residues; None of version 0.1, which knew proteins alone."""


def read_again(folder: Path) -> str:
    """Return the remedy for any file in a folder of sequences: one step makes them all."""
    return delete(folder / SUMMARY)


def read_summary(sequences: Path) -> Summary:
    """Return the summary of a folder of sequences, which is read again only when it was replaced;
    the caller must not change it.

    StoreError when it is missing or was changed.
    """
    path = sequences / SUMMARY
    with suppress(FileNotFoundError):
        stat = path.stat()
        return _read(path, (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    return _read(path, ())


@lru_cache(128)
def _read(path: Path, _: tuple[int, ...]) -> Summary:
    return read_sealed(path, Summary, "a summary of sequences")


def known_summary(sequences: Path) -> Summary | None:
    """`read_summary` for those who can do without: None when it is missing or damaged."""
    try:
        return read_summary(sequences)
    except PlmEmbedError:
        return None


def verified(sequences: Path, name: str) -> Path:
    """Return the path of a file that deduplicate wrote, such as `members/0001.parquet`.

    StoreError when it is missing, or its SHA-256 is not that in the summary.
    """
    path, sha256 = sequences / name, read_summary(sequences).files.get(name)
    if not path.exists():
        problem = "there is no such file"
    elif sha256_file(path) != sha256:
        problem = "changed since it was written"
    else:
        return path
    raise StoreError(f"{path}: {problem}", remedy=read_again(sequences), path=path)


def check_kind(bucket: Path, alphabet: AlphabetName, strand: Strand) -> None:
    """StoreError when the folder of a bucket holds sequences of another alphabet or strand."""
    sequences = bucket.parent.parent
    if not (sequences / SUMMARY).is_file():
        return
    policy = read_summary(sequences).policy or ResiduePolicy()
    if (policy.alphabet, policy.strand) != (alphabet, strand):
        raise StoreError(
            f"{sequences}: was not made for alphabet {alphabet}, strand {strand}",
            remedy=read_again(sequences),
            path=sequences,
        )


def bucket_table(path: Path, columns: list[str]) -> pa.Table:
    """Return columns of a bucket file, `key` among them. StoreError unless each key is the SHA-256
    of its `sequence`.

    A bucket in the folder of deduplicate must be the file that the summary names.
    """
    from plm_embed.io.parquet import read_table  # the rules, which import this, read no tables

    sequences = path.parent.parent
    if (sequences / SUMMARY).is_file():
        verified(sequences, f"{path.parent.name}/{path.name}")
    table = read_table(path, columns)
    if "sequence" in columns:
        check_keys(path, table)
    return table


def check_keys(path: Path, table: pa.Table) -> None:
    """StoreError unless each `key` of a table from the bucket file `path` is the SHA-256 of its
    `sequence`.
    """
    for key, sequence in zip(table["key"].to_pylist(), table["sequence"].to_pylist(), strict=True):
        if sequence is None or keys.key(sequence) != key:
            raise StoreError(
                f"{path}: {key} is not the SHA-256 of its sequence",
                remedy=read_again(path.parent.parent),
                path=path,
            )
