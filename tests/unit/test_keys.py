import hashlib
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_embed.errors import PlmEmbedError
from plm_embed.keys import (
    MAX_BUCKETS,
    SPACE,
    bucket_bounds,
    bucket_names,
    find,
    increasing,
    key,
    key_array,
    key_words,
)
from support.buckets import bucket_of

ALIKE = st.lists(st.sampled_from(["a" * 8, "b" * 8, "a" * 7 + "b"]), min_size=8, max_size=8).map(
    lambda words: "".join(words).encode()
)
"""Keys of which many begin alike."""


def test_key_is_the_sha256_of_the_residues() -> None:
    assert key("MKT") == hashlib.sha256(b"MKT").hexdigest()


@settings(deadline=None)
@given(st.lists(st.binary(min_size=32, max_size=32)), st.integers(0, 5))
def test_key_words_sort_as_keys_do(keys: list[bytes], start: int) -> None:
    words = key_words(pa.array(keys, pa.binary(32)).slice(start))
    assert [b"".join(int(word).to_bytes(8) for word in row) for row in words] == keys[start:]


@settings(deadline=None)
@given(st.sets(ALIKE), st.lists(ALIKE))
def test_keys_that_begin_alike_are_told_apart(held: set[bytes], wanted: list[bytes]) -> None:
    keys = np.array(sorted(held), "S64")
    at, found = find(keys, np.array(wanted, "S64"))
    assert found.tolist() == [key in held for key in wanted]
    assert keys[at[found]].tolist() == [key for key in wanted if key in held]
    assert increasing(np.array(wanted, "S64")) == (wanted == sorted(set(wanted)))


def test_a_column_of_keys_is_read_whatever_its_pieces() -> None:
    texts = [chr(97 + number) * 64 for number in range(6)]
    pieces = [pa.array(texts[:3]), pa.array([], pa.string()), pa.array(["", *texts]).slice(4)]
    column = pa.chunked_array(pieces)
    assert key_array(column).tolist() == [text.encode() for text in texts]
    assert key_array(column.slice(2, 2)).tolist() == [texts[2].encode(), texts[3].encode()]
    assert key_array(column.slice(0, 0)).shape == (0,)
    assert key_array(pa.chunked_array([[None, texts[0]]]))[1] == texts[0].encode()
    with pytest.raises(PlmEmbedError, match="64 characters"):
        key_array(pa.chunked_array([["a" * 63, "a" * 65]]))


def test_buckets_are_contiguous_ordered_complete_and_equal_for_every_number() -> None:
    for count in [*range(1, 130), *range(130, MAX_BUCKETS, 997), MAX_BUCKETS]:
        bounds = bucket_bounds(count)
        sizes = {high - low for low, high in pairwise(bounds)}
        assert bounds[0] == 0 and bounds[-1] == SPACE and len(bounds) == count + 1
        assert min(sizes) > 0 and max(sizes) - min(sizes) <= 1
        for number in (0, count // 2, count - 1):
            first, last = bounds[number], bounds[number + 1] - 1
            assert bucket_of(f"{first:016x}", count) == bucket_of(f"{last:016x}", count) == number


@pytest.mark.parametrize("count", [1, 9_999, 10_000, 10_001, MAX_BUCKETS])
def test_names_sort_as_numbers_do(count: int) -> None:
    names = bucket_names(count)
    assert len(set(names)) == count and names == sorted(names) and int(names[-1]) == count - 1
    assert len(names[0]) == (4 if count <= 10_000 else 5)


def test_a_number_of_buckets_out_of_range_is_refused() -> None:
    for count in (0, MAX_BUCKETS + 1):
        with pytest.raises(PlmEmbedError, match=r"buckets: \d+ is not between 1 and 20,000"):
            bucket_names(count)
