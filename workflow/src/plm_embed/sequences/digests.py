"""Keys of many sequences at a time, in C.

Python needs more time around each sequence than OpenSSL's SHA-256 for it, under the lock that all
threads share; a loop in C does not. It is for inputs that are worth a compiler.
"""

import ctypes
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.errors import PassingError
from plm_embed.io import compiled
from plm_embed.keys import KEY_BYTES, digests

log = logging.getLogger(__name__)
WORTH_COMPILING = 1 << 26
"""Bytes of input from which on a compiler saves more time than it takes."""
Digests = Callable[[memoryview, NDArray[np.int64]], bytes]


@cache
def compiled_digests() -> Digests:
    """Return `keys.digests` in C, or that in Python where it cannot be compiled or OpenSSL is
    hidden.
    """
    try:
        import _hashlib  # not part of each Python

        function = compiled.load(Path(__file__).with_suffix(".c")).digests
        openssl = ctypes.CDLL(_hashlib.__file__)  # finds names in what it is linked with, too
        names = ("SHA256_Init", "SHA256_Update", "SHA256_Final")
        calls = [ctypes.cast(getattr(openssl, name), ctypes.c_void_p) for name in names]
    except (RuntimeError, PassingError, ImportError, AttributeError, OSError) as error:
        log.info("keys are computed without C: %s", error)
        return digests
    address = ctypes.c_void_p
    function.argtypes = [address, address, ctypes.c_int64, *[address] * 4]

    def in_c(text: memoryview, ends: NDArray[np.int64]) -> bytes:
        ends, out = np.ascontiguousarray(ends, np.int64), np.empty(KEY_BYTES * len(ends), np.uint8)
        places = pa.py_buffer(text).address, ends.ctypes.data, len(ends), out.ctypes.data
        if not function(*places, *calls):
            raise RuntimeError("OpenSSL's SHA-256 has failed")
        return out.tobytes()

    return in_c
