"""What is parsed as arrays is what is parsed line by line."""

import io
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_embed.sequences import compiled_sequences, fasta
from plm_embed.sequences.fasta import PlainBatch, TooLarge, parse_plain, record_blocks
from plm_embed.sequences.records import Reader
from plm_embed.sequences.tables import Table
from support.nasty_inputs import PLAIN, write

Parser = Callable[[bytes, int], PlainBatch | None]
# not what it remembers, which would let all other tests read in C
IN_C = compiled_sequences.usable.__wrapped__()
PARSERS = [parse_plain, *([compiled_sequences.parse_plain] if IN_C else [])]
each_parser = pytest.mark.parametrize("parse", PARSERS, ids=["NumPy", "C"][: len(PARSERS)])
HEADER = st.text("ab|> \t\x0b\x1c\u00e9", max_size=6)
LINE = st.text("ACDKX", max_size=8) | st.text("ACDk*- \t>\x1c\u00e9", max_size=5)
RECORD = st.tuples(HEADER, st.lists(LINE, max_size=4))
LINE_END = st.sampled_from(["\n", "\n", "\n", "\r\n", "\r"])


def blocks(content: bytes, size: int, at_once: int = 7) -> list[bytes | TooLarge]:
    handle = io.BytesIO(content)
    return list(record_blocks(lambda count: handle.read(min(count, at_once)), size))


@settings(deadline=None, max_examples=75)
@given(
    st.lists(RECORD, min_size=1, max_size=6),
    LINE_END,
    st.booleans(),
    st.sampled_from([3, 20, 1 << 22]),
)
def test_both_ways_read_the_same(
    records: list[tuple[str, list[str]]], line_end: str, closed: bool, size: int
) -> None:
    lines = [line for header, residues in records for line in (">" + header, *residues)]
    content = (line_end.join(lines) + line_end * closed).encode()
    found = []
    with (
        TemporaryDirectory() as folder,
        patch("plm_embed.sequences.records.BATCH_CHARACTERS", size),
    ):
        path = write(Path(folder, "a.fasta"), content)
        for way in (*PARSERS, lambda *_: None):
            with (
                patch("plm_embed.sequences.records.parse_plain", way),
                patch.object(compiled_sequences, "worth_it", lambda _: False),
            ):
                batches = list(Reader(path, Table("id", "sequence")))
            firsts = [batch.first + place for batch in batches for place in range(len(batch.ids))]
            assert firsts == list(range(1, len(firsts) + 1))
            names = ("ids", "headers", "residues")
            found.append(
                [[text for batch in batches for text in getattr(batch, name)] for name in names]
            )
    assert found[1:] == found[:-1]


@given(
    st.lists(st.text("A>\n\r", max_size=12), max_size=8).map("".join),
    st.integers(1, 12),
    st.integers(1, 9),
)
def test_blocks_are_cut_where_records_start(text: str, size: int, at_once: int) -> None:
    content = text.encode()
    found = blocks(content, size, at_once)
    assert b"".join(found) == content
    assert all(block.startswith(b">") for block in found[1:])
    assert all(len(block) >= size for block in found[:-1])
    assert found == blocks(content, size, 1000)


@given(
    st.lists(st.text("A>\n\r", max_size=40), max_size=8).map("".join),
    st.integers(1, 20),
    st.integers(1, 9),
    st.integers(20, 30),
)
def test_records_that_are_too_large_are_left_out_wherever_they_lie(
    text: str, size: int, at_once: int, largest: int
) -> None:
    content = text.encode()
    starts = [0, *(found.start() for found in re.finditer(rb"(?<=[\r\n])>", content)), len(content)]
    pieces = [content[start:end] for start, end in pairwise(starts)]
    with (
        patch("plm_embed.sequences.fasta.LARGEST_RECORD", largest),
        patch("plm_embed.sequences.fasta._HEAD_BYTES", 8),
    ):
        found = blocks(content, size, at_once)
    left_out = [block for block in found if isinstance(block, TooLarge)]
    assert left_out == [TooLarge(piece[:8], len(piece)) for piece in pieces if len(piece) > largest]
    kept = b"".join(block for block in found if isinstance(block, bytes))
    assert kept == b"".join(piece for piece in pieces if len(piece) <= largest)


def test_damage_within_a_record_that_is_too_large() -> None:
    pieces = iter([b">a\nMK\n>b\n", b"A" * 30])
    with patch("plm_embed.sequences.fasta.LARGEST_RECORD", 20):
        found = record_blocks(lambda _: next(pieces), 10)
        assert next(found) == b">a\nMK\n"
        with pytest.raises(RuntimeError):
            next(found)


def test_complete_records_come_before_an_error() -> None:
    pieces = iter([b">a\nMK\n>b\nMT\n>c\nM"])
    found = record_blocks(lambda _: next(pieces), 1000)
    assert next(found) == b">a\nMK\n>b\nMT\n"
    with pytest.raises(RuntimeError):
        next(found)


@each_parser
def test_plain_records_become_columns(parse: Parser) -> None:
    batch = parse(PLAIN.encode(), 5)
    assert batch and batch.first == 5 and batch.ids == ["AAD51929.1", "AAD51931.1"]
    assert batch.headers == ["AAD51929.1 matrix protein 2", "AAD51931.1 nuclear export protein"]
    assert "".join(batch.residues).encode() == batch.text
    assert batch.ends.tolist() == [97, 218]


@each_parser
def test_letters_are_left_to_those_who_know_the_alphabet(parse: Parser) -> None:
    batch = parse(b">a\nmk-J*\n", 1)
    assert batch and batch.residues == ["mk-J*"]


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\n>a\nMK\n",
        b"\xef\xbb\xbf>a\nMK\n",
        b">a\n\n",
        b">\nMK\n",
        b"> a\nMK\n",
        b">a \nMK\n",
        b">a\tb\nMK\n",
        b">a\nM K\n",
        b">a\r\nMK\r\n",
        b">\xc3\xa9\nMK\n",
        b">a\nMK\n>b\n",
        b">a\n>b\nMK\n",
        b">a\nM K\n>b\nMK\n",
        b">a\n\xff\n>b\nMK\n",
        b">a\nM\x7f\n",
        b">a\x7f\nMK\n",
        b">a\nMK\n> b\nMK\n",
        b">a",
    ],
)
@each_parser
def test_what_needs_a_closer_look_is_left_to_it(block: bytes, parse: Parser) -> None:
    assert parse(block, 1) is None


@each_parser
def test_a_block_of_very_many_records_is_left_too(parse: Parser) -> None:
    block = b">a\nM\n" * fasta.MOST_RECORDS
    found = parse(block, 1)
    assert found and found.count == fasta.MOST_RECORDS
    assert parse(block + b">a\nM\n", 1) is None


@pytest.mark.skipif(not IN_C, reason="no C compiler here")
@given(
    st.lists(st.sampled_from([b"\n>a\nM", b"\n", b">", b" ", b"a", b"~!"])),
    st.sampled_from([b"", b"", b" ", b"\x1f", b"\x7f", b"\0", b"\xff"]),
    st.integers(0, 30),
)
def test_both_parsers_take_the_same_blocks_for_plain(
    pieces: list[bytes], odd: bytes, place: int
) -> None:
    plain = b">a\nM" + b"".join(pieces)
    block = plain[:place] + odd + plain[place:]
    numpys, cs = (parse(block, 1) for parse in PARSERS)
    assert (numpys is None) == (cs is None)
    if numpys and cs:
        for name in ("ids", "headers", "residues"):
            assert getattr(numpys, name) == getattr(cs, name)
