"""Records of FASTA are what lies between its headers, however the file is cut into blocks."""

import re
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from plm_embed.sequences.records import Reader, read_fasta
from plm_embed.sequences.settings import Table
from support.nasty_inputs import write

HEADER = st.text("ab|> \t\x0b\x1c\u00e9", max_size=6)
LINE = st.text("ACDKX", max_size=8) | st.text("ACDk*- \t>\x1c\u00e9", max_size=5)
RECORD = st.tuples(HEADER, st.lists(LINE, max_size=4))
LINE_END = st.sampled_from(["\n", "\n", "\n", "\r\n", "\r"])


def as_text(content: bytes) -> str:
    text = content.decode("utf-8-sig", "plm_embed.latin1")
    return text.replace("\r\n", "\n").replace("\r", "\n")


@settings(deadline=None, max_examples=75)
@given(
    records=st.lists(RECORD, min_size=1, max_size=6),
    line_end=LINE_END,
    closed=st.booleans(),
    before=st.sampled_from(["", "\ufeff", "\n \n", "\ufeff# notes\n\u2003\n"]),
    size=st.sampled_from([3, 20, 1 << 22]),
    most=st.sampled_from([1, 2, 1 << 16]),
)
def test_records_are_what_lies_between_headers(
    *,
    records: list[tuple[str, list[str]]],
    line_end: str,
    closed: bool,
    before: str,
    size: int,
    most: int,
) -> None:
    lines = [line for header, residues in records for line in (">" + header, *residues)]
    content = (before + line_end.join(lines) + line_end * closed).encode()
    with (
        TemporaryDirectory() as folder,
        patch("plm_embed.sequences.records.BLOCK", size),
        patch("plm_embed.sequences.records.MOST_RECORDS", most),
    ):
        read = list(Reader(write(Path(folder, "a.fasta"), content), Table("id", "sequence")))
    notes, *pieces = re.split(r"(?:^|(?<=\n))>", as_text(content))
    assert [batch.faults for batch in read if not batch.first] == (
        [{0: ("text_before_first_header", "lines: 1")}] if notes.strip() else []
    )
    batches = [batch for batch in read if batch.first]
    numbers = [batch.first + place for batch in batches for place in range(len(batch.ids))]
    assert numbers == list(range(1, len(pieces) + 1))
    headers = [piece.split("\n")[0].rstrip() for piece in pieces]
    for name, expected in (
        ("headers", headers),
        ("ids", [(header.split() or [""])[0] for header in headers]),
        ("residues", ["".join(piece.split("\n")[1:]) for piece in pieces]),
    ):
        assert [text for batch in batches for text in getattr(batch, name).to_pylist()] == expected


@given(
    st.lists(st.text("A>\n\r", max_size=40), max_size=8).map("".join),
    st.integers(1, 11),
    st.integers(1, 9),
    st.integers(20, 30),
)
def test_records_that_are_too_large_are_left_out_wherever_they_lie(
    text: str, size: int, at_once: int, largest: int
) -> None:
    content = f">{text}".encode()
    starts = [0, *(match.start() for match in re.finditer(rb"(?<=[\r\n])>", content))]
    records = [content[start:end] for start, end in pairwise([*starts, len(content)])]
    pieces = (content[start : start + at_once] for start in range(0, len(content), at_once))
    stream: Any = SimpleNamespace(pieces=pieces)
    with (
        patch("plm_embed.sequences.records.BLOCK", size),
        patch("plm_embed.sequences.records.LARGEST_RECORD", largest),
        patch("plm_embed.sequences.records._HEAD_BYTES", 8),
    ):
        batches = list(read_fasta(stream))
    rows = [row for batch in batches for row in batch.residues.to_pylist()]
    faults = [batch.faults.get(place) for batch in batches for place in range(len(batch.ids))]
    assert [batch.first for batch in batches][:1] == [1] and len(rows) == len(records)
    for row, fault, record in zip(rows, faults, records, strict=True):
        if len(record) > largest:
            detail = f"{len(record)} bytes, more than {largest}"
            cut = "" if {*b"\r\n"} & {*record[:8]} else "; the header is cut"
            assert (row, fault) == ("", ("too_large", detail + cut))
        else:
            lines = as_text(record).split("\n")
            assert (row, fault) == ("".join(lines[1:]), None)
