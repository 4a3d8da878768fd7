"""Arrow parses a table as Python's parser does, wherever blocks are cut."""

import csv
import io
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_embed.errors import PlmEmbedError
from plm_embed.sequences.settings import Table
from plm_embed.sequences.tables import DelimitedText
from support.nasty_inputs import Records, read, write

PLAIN_CELL = st.text("MKa", max_size=6).map(str.encode)
ODD = [
    *(b"", b"NaN", b" null", b"\xe9", "流".encode(), b"\xef\xbb\xbf", b"\0", b"\x85", b"\xc2"),
    *(b'"a"', b'"a,b"', b'"a""b"', b'""', b'""""', b'"a\nb"', b'"\r\n"', b'"\r"'),
    *(b'a"b', b'"a"b', b'"', b'a""', b' "a"', b'"a" '),
]
CELL = PLAIN_CELL | st.sampled_from(ODD)
LINE_END = st.sampled_from([b"\n"] * 4 + [b"\r\n"] * 3 + [b"\r", b"\n\n", b"\n \n"])


PLAIN_ROW = st.tuples(st.lists(PLAIN_CELL, min_size=3, max_size=3), st.just(b"\n"))
ROW = PLAIN_ROW | st.tuples(st.lists(CELL, min_size=2, max_size=4), LINE_END)


def outcome(path: Path) -> Records | str:
    """All that is told about each record, or the error."""
    try:
        return read(path)
    except PlmEmbedError as error:
        return str(error)


@settings(deadline=None, max_examples=60)
@given(
    lines=st.lists(ROW, max_size=12),
    quoted=st.booleans(),
    delimiter=st.sampled_from([b",", b"\t"]),
    size=st.sampled_from([1, 20, 1 << 22]),
    at_once=st.sampled_from([1, 7, 1 << 20]),
)
def test_both_parsers_read_the_same(
    lines: list[tuple[list[bytes], bytes]], quoted: bool, delimiter: bytes, size: int, at_once: int
) -> None:
    sign = b'"' if quoted else b""
    content = delimiter.join([b"id", b"seq", b"note"]) + b"\n"
    for cells, end in lines:
        content += delimiter.join(sign + cell + sign for cell in cells) + end
    both = []
    with (
        TemporaryDirectory() as folder,
        patch("plm_embed.sequences.tables.BLOCK", size),
        patch("plm_embed.io.streams._PIECE", at_once),
    ):
        path = write(Path(folder, "table"), content)
        both.append(outcome(path))
        with patch.object(DelimitedText, "_by_arrow", lambda *_: None):
            both.append(outcome(path))
    assert both[0] == both[1]
    if isinstance(found := both[0], Records):
        text = io.StringIO(content.decode(errors="plm_embed.latin1"), newline="")
        rows = [row for row in csv.reader(text, delimiter=delimiter.decode(), strict=True) if row]
        columns = zip(found.ids, found.residues, found.kept[0], rows[1:], strict=True)
        assert all([*cells] == row for *cells, row in columns if len(row) == 3)


@pytest.mark.parametrize("at_once", [1, 1 << 20])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_lines_are_counted_and_marks_kept(tmp_path: Path, mark: str, at_once: int) -> None:
    rows = f'a,MK,x\r\n{mark}b,"M\r\nK",x\r\n\nc,MK,x\rd,MK,x\n{mark}e,MK\r\nf,MK,x\r\ng\r\n'
    path = write(tmp_path / "marks.csv", f"{mark}id,seq,note\n{rows}")
    with (
        patch("plm_embed.sequences.tables.BLOCK", 1),
        patch("plm_embed.io.streams._PIECE", at_once),
    ):
        found = read(path)
    assert found.ids == ["a", f"{mark}b", "c", "d", f"{mark}e", "f", "g"]
    assert [detail for _, detail in found.faults.values()] == [
        "line 8: 2 fields instead of 3",
        "line 10: 1 fields instead of 3",
    ]


def test_reading_that_an_error_ended_takes_nothing_from_the_next_file(tmp_path: Path) -> None:
    """The system may give it the same number while a thread still reads."""
    whole = write(tmp_path / "whole.csv", "id,seq,note\n" + "a,MK,x\n" * 20)
    wrong = write(tmp_path / "wrong.csv", 'id,seq,note\na,"M"K,x\n' + "a,MK,x\n" * 20)
    with patch("plm_embed.sequences.tables.BLOCK", 20), patch("plm_embed.io.streams._PIECE", 1):
        for _ in range(30):
            assert "a quote that is never closed" in str(outcome(wrong))
            assert read(whole).ids == ["a"] * 20


@pytest.mark.parametrize("rows", ['""\n\n""\n', " \n\n \n", '"a""b"\r\nNA\r\n', "a\r\rb\r"])
def test_one_column(tmp_path: Path, rows: str) -> None:
    path = write(tmp_path / "one.csv", "seq\n" + rows)
    table = Table("seq", "seq")
    with patch.object(DelimitedText, "_by_arrow", lambda *_: None):
        expected = read(path, table)
    assert read(path, table) == expected and len(expected.ids) == 2
