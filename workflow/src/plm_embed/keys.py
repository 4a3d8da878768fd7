"""Keys, and the equal contiguous ranges of key space that are called buckets.

A key's place is decided by its first 64 bits: bucket i of n holds the keys with floor(prefix * n /
2**64) = i.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.errors import ConfigError, StoreError

KEY_BYTES = 32
SPACE = 1 << 64
MOST_RANGES = 64
MAX_BUCKETS = 20_000


def key(sequence: str) -> str:
    """The SHA-256 of a normalized sequence, 64 lower-case hexadecimal digits."""
    return hashlib.sha256(sequence.encode("ascii")).hexdigest()


def key_words(keys: pa.FixedSizeBinaryArray) -> NDArray[np.uint64]:
    """Binary keys as numbers that sort as the keys do: (n, 4), the most significant word first."""
    count = KEY_BYTES // 8
    values = np.frombuffer(
        keys.buffers()[1], ">u8", count=count * len(keys), offset=KEY_BYTES * keys.offset
    )
    return values.reshape(-1, count).astype(np.uint64)


def bucket_of(key: str, n: int) -> int:
    """The number, 0 to n - 1, of the bucket that holds `key`."""
    return int(key[:16], 16) * n >> 64


def bucket_names(n: int) -> list[str]:
    """`0000`, `0001` ... for n buckets, with five digits for more than 10,000, so that they sort as
    numbers do; ConfigError unless 1 <= n <= 20,000.
    """
    if not 1 <= n <= MAX_BUCKETS:
        raise ConfigError(f"buckets: {n} is not between 1 and {MAX_BUCKETS:,}", key="buckets")
    digits = max(4, len(str(n - 1)))
    return [f"{number:0{digits}d}" for number in range(n)]


def bucket_ranges(names: Sequence[str]) -> list[Sequence[str]]:
    """The buckets in at most 64 groups of neighbors, each of which one job takes when there are
    many.
    """
    count = min(len(names), MOST_RANGES)
    return [names[len(names) * at // count : len(names) * (at + 1) // count] for at in range(count)]


def range_bounds(n: int) -> list[int]:
    """The boundaries of the ranges of n buckets, as `bucket_bounds` are those of the buckets."""
    bounds = bucket_bounds(n)
    return [*(bounds[int(names[0])] for names in bucket_ranges(bucket_names(n))), SPACE]


def bucket_bounds(n: int) -> list[int]:
    """The n + 1 boundaries of n buckets: bucket i holds the prefixes p with bounds[i] <= p <
    bounds[i + 1].
    """
    return [-(-number * SPACE // n) for number in range(n + 1)]


Keys = NDArray[np.bytes_]


def key_array(column: pa.ChunkedArray) -> Keys:
    """A string column of keys as S64; null becomes 64 undefined bytes."""
    try:
        whole = column.cast(pa.binary()).cast(pa.binary(64)).combine_chunks()
    except pa.ArrowInvalid as error:
        raise StoreError(f"a key is not 64 characters long: {error}") from None
    return np.frombuffer(
        whole.buffers()[1] or b"", dtype="S64", count=len(whole), offset=64 * whole.offset
    )


KEY = pa.binary(KEY_BYTES)


def keys_sha256(keys: Keys) -> str:
    """What a completion record says about the keys of its bucket: SHA-256 of the sorted keys,
    joined.
    """
    return hashlib.sha256(np.ascontiguousarray(keys).tobytes()).hexdigest()
