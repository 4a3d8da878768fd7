"""Keys, and the equal contiguous ranges of key space that are called buckets.

A key's place is decided by its first 64 bits: bucket i of n holds the keys with floor(prefix * n /
2**64) = i.
"""

import hashlib

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.errors import ConfigError, StoreError

KEY_BYTES = 32
KEY_DIGITS = 2 * KEY_BYTES
KEY = pa.binary(KEY_BYTES)
"""The type of a column of binary keys."""
Keys = NDArray[np.bytes_]
"""Keys as text, S64."""
SPACE = 1 << 64
"""Number of prefixes."""
MAX_BUCKETS = 20_000


def key(sequence: str) -> str:
    """Return the SHA-256 of a normalized sequence, 64 lower-case hexadecimal digits."""
    return hashlib.sha256(sequence.encode("ascii")).hexdigest()


def digests(text: memoryview, ends: NDArray[np.int64]) -> bytes:
    """Return the keys, 32 bytes each, of the sequences that `text` holds one after the other, and
    that end at `ends` (n,).
    """
    sha256, stops = hashlib.sha256, ends.tolist()
    starts = [0, *stops[:-1]]
    return b"".join([sha256(text[a:b]).digest() for a, b in zip(starts, stops, strict=False)])


def key_words(keys: pa.FixedSizeBinaryArray) -> NDArray[np.uint64]:
    """Return binary keys as numbers that sort as the keys do: (n, 4), the first word first."""
    count = KEY_BYTES // 8
    values = np.frombuffer(
        keys.buffers()[1], ">u8", count=count * len(keys), offset=KEY_BYTES * keys.offset
    )
    return values.reshape(-1, count).astype(np.uint64)


def bucket_names(n: int) -> list[str]:
    """Return `0000`, `0001` ... for n buckets, with five digits for more than 10,000, so that they
    sort as numbers do; ConfigError unless 1 <= n <= 20,000.
    """
    if not 1 <= n <= MAX_BUCKETS:
        raise ConfigError(f"buckets: {n} is not between 1 and {MAX_BUCKETS:,}", key="buckets")
    digits = max(4, len(str(n - 1)))
    return [f"{number:0{digits}d}" for number in range(n)]


def bucket_bounds(n: int) -> list[int]:
    """Return the n + 1 boundaries of n buckets: bucket i holds the prefixes p with bounds[i] <= p <
    bounds[i + 1].
    """
    return [-(-number * SPACE // n) for number in range(n + 1)]


def key_array(column: pa.ChunkedArray) -> Keys:
    """Return a string column of keys as S64; null becomes 64 undefined bytes."""
    pieces: list[Keys] = []
    for chunk in filter(len, column.chunks):
        keys = chunk.fill_null("-" * KEY_DIGITS) if chunk.null_count else chunk
        keys = keys.cast(pa.binary())
        _, edges, text = keys.buffers()
        edges = np.frombuffer(edges, "<i4", len(keys) + 1, 4 * keys.offset)
        if (np.diff(edges) != KEY_DIGITS).any():
            raise StoreError("a key is not 64 characters long")
        pieces.append(np.frombuffer(text, "S64", len(keys), int(edges[0])))
    return pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, "S64"), *pieces])


def increasing(keys: Keys) -> bool:
    """Return whether the keys are sorted, each once."""
    heads = _heads(keys)
    close = np.flatnonzero(heads[1:] <= heads[:-1])
    return bool((keys[close + 1] > keys[close]).all())


def find(keys: Keys, queries: Keys) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the place among `keys` (sorted, each once) of each query, and whether it is there; the
    place of an absent one means nothing.
    """
    places = np.zeros(len(queries), dtype=np.int64)
    present = np.zeros(len(queries), dtype=np.bool_)
    if len(keys):
        # numbers are compared much faster than strings, and two keys seldom begin alike
        places = np.minimum(np.searchsorted(_heads(keys), _heads(queries)), len(keys) - 1)
        present = (keys[places].view("<u8") == queries.view("<u8")).reshape(-1, 8).all(axis=1)
        rest = np.flatnonzero(~present)
        places[rest] = np.minimum(np.searchsorted(keys, queries[rest]), len(keys) - 1)
        present[rest] = keys[places[rest]] == queries[rest]
    return places, present


def _heads(keys: Keys) -> NDArray[np.uint64]:
    """Return the first eight characters of each key, as numbers that sort as they do."""
    return keys.view(">u8")[::8].astype(np.uint64)


def keys_sha256(keys: Keys) -> str:
    """Return the SHA-256 of the sorted keys, joined, as a completion record has it."""
    return hashlib.sha256(np.ascontiguousarray(keys).data).hexdigest()
