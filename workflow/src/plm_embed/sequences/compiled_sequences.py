"""FASTA parsed, and keys computed, in C: one pass over the text where NumPy takes ten, and SHA-256
of OpenSSL, as in `hashlib`, without what Python does before and after each sequence, under the lock
that all its threads share.

For inputs that are worth a compiler. Without one, or where Python hides its OpenSSL,
`fasta.parse_plain` and `keys.digests` do the same in more time.
"""

import ctypes
import hashlib
import logging
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.errors import PassingError
from plm_embed.io import compiled
from plm_embed.keys import KEY_BYTES
from plm_embed.sequences.fasta import MOST_RECORDS, PlainBatch, between

log = logging.getLogger(__name__)
WORTH_IT = 1 << 26
"""Bytes of input from which on compiling pays."""
_SIZES = (0, 1, 55, 56, 64, 1000)
"""Of texts whose digests are known: at both sides of what fits into a block of SHA-256."""


def worth_it(input_bytes: int) -> bool:
    """Whether to use what is here: for large inputs where it is usable, and then for small ones
    too.
    """
    return (input_bytes >= WORTH_IT or usable.cache_info().currsize > 0) and usable()


@cache
def usable() -> bool:
    """Whether this machine has what it takes; compiles the code if nobody did before."""
    try:
        text, ends = bytes(sum(_SIZES)), np.cumsum(_SIZES)
        known = b"".join(hashlib.sha256(bytes(size)).digest() for size in _SIZES)
        if digests(text, ends) == known:
            return True
        log.warning("OpenSSL's SHA256_Update gives other digests than Python's hashlib: not used")
    except (RuntimeError, PassingError, ImportError, AttributeError, OSError) as error:
        log.info("sequences are read without C: %s", error)
    return False


def parse_plain(block: bytes, first: int) -> PlainBatch | None:
    """As `fasta.parse_plain`."""
    buffer = pa.allocate_buffer(len(block))
    ends, starts, word_ends, header_ends = places = np.empty((4, MOST_RECORDS), np.int64)
    count = _library().parse(
        block, len(block), MOST_RECORDS, buffer.address, *(each.ctypes.data for each in places)
    )
    if count < 0:
        return None
    ids = between(block, starts[:count], word_ends[:count])
    headers = between(block, starts[:count], header_ends[:count])
    ends = ends[:count].copy()  # the rest is given back
    text = memoryview(buffer).cast("B")[: ends[-1]]
    if len(text) < len(block) / 2:  # else all of the buffer would be held, and little of it counted
        text = memoryview(text.tobytes())
    return PlainBatch(first, ids, headers, text, ends)


def digests(text: bytes | memoryview, ends: NDArray[np.int64]) -> bytes:
    """As `keys.digests`."""
    ends, found = np.ascontiguousarray(ends, np.int64), np.empty(KEY_BYTES * len(ends), np.uint8)
    where = pa.py_buffer(text).address, ends.ctypes.data, len(ends), found.ctypes.data
    openssl = _openssl()
    if not _library().digests(*where, *openssl):
        raise RuntimeError("OpenSSL's SHA-256 has failed")
    return found.tobytes()


@cache
def _library() -> ctypes.CDLL:
    library = compiled.load(Path(__file__).with_suffix(".c"))
    number, address = ctypes.c_int64, ctypes.c_void_p
    library.parse.argtypes = [ctypes.c_char_p, number, number, *[address] * 5]
    library.parse.restype = number
    library.digests.argtypes = [address, address, number, *[address] * 4]
    return library


@cache
def _openssl() -> list[ctypes.c_void_p]:
    import _hashlib  # not part of each Python

    # finds names in what it is linked with; Python itself may be
    library = ctypes.CDLL(getattr(_hashlib, "__file__", None))
    names = ("SHA256_Init", "SHA256_Update", "SHA256_Final")
    return [ctypes.cast(getattr(library, name), ctypes.c_void_p) for name in names]
