"""Odd input files for the tests, made on the spot."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

from backports import zstd

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
