"""Compressed files: whatever stream of them is damaged, nothing is lost or changed without a
word.
"""

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_embed.errors import PlmEmbedError
from plm_embed.io.streams import Stream, named_errors
from support.nasty_inputs import COMPRESS, write

CODECS = sorted(set(COMPRESS) - {"none"})
TEXT = "".join(
    f">{number}\n{'MKTAYIAKQR' * (number % 5)}{number * 7919}\n" for number in range(40)
).encode()


def content(path: Path) -> bytes:
    with named_errors(path), Stream(path) as stream:
        return b"".join(stream.pieces)


def in_streams(codec: str) -> list[bytes]:
    return [COMPRESS[codec](TEXT[start : start + 600]) for start in range(0, len(TEXT), 600)]


@settings(deadline=None, max_examples=60)
@given(
    pieces=st.lists(st.binary(max_size=300), min_size=1, max_size=6),
    codec=st.sampled_from(CODECS),
    padding=st.integers(0, 3),
)
def test_streams_are_read_one_after_the_other(
    pieces: list[bytes], codec: str, padding: int
) -> None:
    # what may lie between and behind these
    zeros = bytes(4 * padding) if codec in ("xz", "gzip") else b""
    data = b"".join(COMPRESS[codec](piece) + zeros for piece in pieces)
    with TemporaryDirectory() as folder:
        assert content(write(Path(folder, "many"), data)) == b"".join(pieces)


@settings(deadline=None, max_examples=60)
@given(pieces=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=4), data=st.data())
def test_what_follows_the_last_stream_is_an_error(pieces: list[bytes], data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from(CODECS))
    garbage = data.draw(st.binary(min_size=1, max_size=100).filter(any))
    with TemporaryDirectory() as folder:
        path = write(Path(folder, "many"), b"".join(map(COMPRESS[codec], pieces)) + garbage)
        with pytest.raises(PlmEmbedError, match=r"compressed data (are damaged|end too early)"):
            content(path)


@pytest.mark.parametrize("codec", CODECS)
def test_a_flipped_bit_in_any_stream_changes_nothing_or_is_an_error(
    tmp_path: Path, codec: str
) -> None:
    streams = in_streams(codec)
    whole, generator = b"".join(streams), random.Random(7)
    places = [generator.randrange(8 * len(whole)) for _ in range(200)]
    start = 0
    for stream in streams:  # the first bytes of each, by which it is known
        places += range(8 * start, 8 * start + 48)
        start += len(stream)
    for place in places:
        changed = bytearray(whole)
        changed[place // 8] ^= 1 << place % 8
        path = write(tmp_path / "changed", bytes(changed))
        with Stream(path) as stream:
            if stream.compression == "none":  # as it begins now, it is no compressed file at all
                continue
        try:
            assert content(path) == TEXT, place
        except PlmEmbedError as error:
            assert "compressed data" in str(error)


@pytest.mark.parametrize("codec", CODECS)
def test_a_file_cut_short_anywhere_ends_between_streams_or_is_an_error(
    tmp_path: Path, codec: str
) -> None:
    streams = in_streams(codec)
    whole = b"".join(streams)
    ends = {sum(map(len, streams[:count])): count for count in range(1, len(streams) + 1)}
    for size in range(8, len(whole) + 1, 3):
        path = write(tmp_path / "cut", whole[:size])
        if size in ends:
            assert content(path) == TEXT[: 600 * ends[size]]
        else:
            with pytest.raises(PlmEmbedError, match="compressed data"):
                content(path)
