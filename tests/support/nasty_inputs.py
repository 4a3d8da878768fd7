"""Odd input files for the tests, made on the spot, and what is read from them."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from backports import zstd

from plm_embed.sequences.records import Reader
from plm_embed.sequences.residues import Faults
from plm_embed.sequences.settings import Table

TABLE = Table("id", "seq", ("note",))

M2 = (
    "MSLLTEVETPTKNEWECKCSDSSDPLVVAASIIGILHLILWILDRLFFKCIYRRLKYGLKRGPSTEG"
    "VPESMREEYRQEQQSAVDVDDGHFVNIELE"
)
NEP = (
    "MDSNTITSFQDILQRMSKMQLESSSVDLNGMITQFERLKIYRDSLGESMMRMGDLHSLQNRNATWRNELS"
    "QKFEEIRWLIAECRNILTKTENSFEQITFLQALQLLLEVESEIRTFSFQLI"
)
PLAIN = (
    f">AAD51929.1 matrix protein 2\n{M2[:60]}\n{M2[60:]}\n>AAD51931.1 nuclear "
    f"export protein\n{NEP[:60]}\n{NEP[60:]}\n"
)

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    "gzip": lambda content: gzip.compress(content, mtime=0),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda content: zstd.compress(
        content, options={zstd.CompressionParameter.checksum_flag: 1}
    ),
}


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@dataclass
class Records:
    """Content of a file, as lists: the columns of `Batch`."""

    kept: list[list[str | None]]
    first: int = -1
    ids: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    residues: list[str] = field(default_factory=list)
    faults: Faults = field(default_factory=dict)


def read(path: Path, table: Table = TABLE) -> Records:
    """Read all records; numbers must follow one another."""
    whole = Records([[] for _ in table.keep])
    for batch in Reader(path, table):
        if whole.first < 0:
            whole.first = batch.first
        elif whole.first + len(whole.ids) != batch.first:
            raise AssertionError(f"record {batch.first} after {whole.first + len(whole.ids) - 1}")
        whole.faults |= {len(whole.ids) + place: fault for place, fault in batch.faults.items()}
        for values, more in zip(whole.kept, batch.columns, strict=False):
            values.extend(more.to_pylist())
        whole.ids += batch.ids.to_pylist()
        whole.headers += batch.headers.to_pylist()
        whole.residues += batch.residues.to_pylist()
    return whole
