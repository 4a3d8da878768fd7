"""Tables are read as they were written: CSV, TSV and Parquet."""

import csv
import hashlib
import io
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_embed.errors import PlmEmbedError
from plm_embed.sequences.records import LARGEST_RECORD, Reader
from plm_embed.sequences.settings import Table
from plm_embed.sequences.tables import MISSING
from support.nasty_inputs import COMPRESS, TABLE, read, write

UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "seq", "note")])


@settings(deadline=None, max_examples=30)
@given(
    rows=st.lists(st.tuples(UNICODE, UNICODE, UNICODE), min_size=1),
    delimiter=st.sampled_from(",;\t"),
    line_end=st.sampled_from(["\n", "\r\n"]),
    codec=st.sampled_from(sorted(COMPRESS)),
)
def test_cells_are_read_as_they_were_written(
    rows: list[tuple[str, str, str]], delimiter: str, line_end: str, codec: str
) -> None:
    text = io.StringIO(newline="")
    quoting = csv.QUOTE_ALL if line_end == "\n" else csv.QUOTE_MINIMAL
    writer = csv.writer(text, delimiter=delimiter, lineterminator=line_end, quoting=quoting)
    writer.writerows([("note", " seq ", "id"), *rows])
    with TemporaryDirectory() as folder:
        path = write(Path(folder, "table"), COMPRESS[codec](text.getvalue().encode()))
        reader = Reader(path, TABLE)
        assert (reader.format, reader.compression) == ("tsv" if delimiter == "\t" else "csv", codec)
        found = read(path)
    assert list(zip(found.kept[0], found.residues, found.ids, strict=True)) == rows
    assert found.headers == found.ids and found.first == 1


def test_text_is_never_taken_for_a_number_or_a_missing_value(tmp_path: Path) -> None:
    ids = ["NA", "00123", "1e5", "123456789012345678901", "3.10", "TRUE", "", " x "]
    content = "id,seq,note\n" + "".join(f"{name},MK,NA\n" for name in ids)
    found = read(write(tmp_path / "ids.csv", content))
    assert found.ids == ids and found.kept == [["NA"] * len(ids)] and not found.faults


def test_missing_values_are_faults_only_in_the_sequence_column(tmp_path: Path) -> None:
    words = ["NaN", "nan", "N/A", "None", "null", "NULL", "<NA>", " NaN "]
    rows = [*(f"{word},{word},{word}" for word in words), "a,,", "b,NAN,", "", "c, ,", "d,NA,"]
    found = read(write(tmp_path / "missing.csv", "\n".join(["id,seq,note", *rows])))
    assert found.faults == dict.fromkeys(range(len(words)), ("missing_value", None))
    assert found.ids == [*words, "a", "b", "c", "d"]
    assert found.residues[-4:] == ["", "NAN", " ", "NA"]


def test_ragged_rows_are_faults_that_name_the_line(tmp_path: Path) -> None:
    content = 'id,seq,note\na,MK,x\nb,MK\n\nc,MK,x,y\nd\ne,MK,x,"two\nlines"\n'
    found = read(write(tmp_path / "ragged.csv", content))
    assert found.ids == ["a", "b", "c", "d", "e"] and found.residues == ["MK", "", "", "", ""]
    assert found.faults == {
        1: ("ragged_row", "line 3: 2 fields instead of 3"),
        2: ("ragged_row", "line 5: 4 fields instead of 3"),
        3: ("ragged_row", "line 6: 1 fields instead of 3"),
        4: ("ragged_row", "lines 7 to 8: 4 fields instead of 3"),
    }


@pytest.mark.parametrize("last", ["c,MK,x\n", "ragged\n"])
def test_the_header_of_a_table_that_was_joined_is_no_peptide(tmp_path: Path, last: str) -> None:
    """As Arrow reads rows, and, because of a ragged one, as Python does."""
    names = "id,sequence,note\n"
    content = f"{names}a,MK,x\n{names}b,sequence,x\n\ufeffid, sequence ,note\nid,MK,x\n{last}"
    found = read(write(tmp_path / "joined.csv", content), Table("id", "sequence", ("note",)))
    headers = [place for place, (why, _) in found.faults.items() if why == "repeated_header"]
    assert headers == [1, 3]


@pytest.mark.parametrize(
    "content",
    [
        'id,seq,note\na,MK,"never closed\nb,MKV,x\n',
        'id\tseq\tnote\na\tMK\t"five prime\nb\tMKV\tthe "end" of it\n',
    ],
)
def test_a_quote_never_swallows_records(tmp_path: Path, content: str) -> None:
    words = r"line \d after 0 complete records: .*is there a quote that is never closed"
    with pytest.raises(PlmEmbedError, match=words):
        read(write(tmp_path / "quotes.csv", content))


@pytest.mark.parametrize("end", ["M", "\n"])
def test_a_row_too_large_for_memory_is_named(tmp_path: Path, end: str) -> None:
    row = ",".join([f'"{"M" * (LARGEST_RECORD // 4)}{end}"'] * 5)
    words = r"line \d after 1 complete records: a row of more than 16,777,216 characters"
    with pytest.raises(PlmEmbedError, match=words):
        read(write(tmp_path / "wide.csv", f"id,seq,note,b,c\na,MK,x,,\n{row}\n"))


def test_one_column_may_serve_twice_and_one_column_is_a_table(tmp_path: Path) -> None:
    found = read(write(tmp_path / "one.csv", "seq\nMK\nMT\n"), Table("seq", "seq", ("seq",)))
    assert found.ids == found.residues == found.kept[0] == ["MK", "MT"]


def test_parquet_of_any_plain_type_is_read_as_text(tmp_path: Path) -> None:
    path = tmp_path / "table"
    columns = {
        " id ": pa.array([7, None, 9, 10]),
        "seq": pa.array(["MK", None, "", "nan"]).dictionary_encode(),
        "note": pa.array([True, None, False, True]),
        "other": pa.array([[1], [2], [3], [4]]),
    }
    pq.write_table(pa.table(columns), path)
    reader = Reader(path, TABLE)
    found = read(path)
    assert reader.format == "parquet" and found.first == 1
    assert found.ids == ["7", "", "9", "10"] and found.residues == ["MK", "", "", "nan"]
    assert found.kept == [["true", None, "false", "true"]]
    assert found.faults == {1: ("missing_value", None), 3: ("missing_value", None)}


CELLS = st.none() | st.sampled_from(["NaN", " null\u2003", "<NA>\x1c", "流", "nan流"]) | UNICODE


@settings(max_examples=40)
@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=8), st.integers(1, 9))
def test_parquet_cells_are_read_as_they_were_written(
    rows: list[tuple[str | None, ...]], largest: int
) -> None:
    ids, residues, notes = map(list, zip(*rows, strict=True))
    with (
        TemporaryDirectory() as folder,
        patch("plm_embed.sequences.tables.LARGEST_RECORD", largest),
    ):
        path = Path(folder, "table")
        pq.write_table(pa.table({"id": ids, "seq": residues, "note": notes}, SCHEMA), path)
        found = read(path)
    words = {place for place, text in enumerate(residues) if (text or "NaN").strip() in MISSING}
    empty = {place for place, text in enumerate(residues) if text == ""}
    large = {place for place, text in enumerate(residues) if len(text or "") > largest} - words
    assert found.faults == dict.fromkeys(words - empty, ("missing_value", None)) | {
        place: ("too_large", f"{len(residues[place] or '')} characters, more than {largest}")
        for place in large
    }
    assert found.ids == [text or "" for text in ids] and found.kept == [notes]
    assert found.residues == [
        "" if place in large else text or "" for place, text in enumerate(residues)
    ]


def test_parquet_pages_are_read_with_their_checksums(tmp_path: Path) -> None:
    path = tmp_path / "sums.parquet"
    table = pa.table({"id": ["a", "b"], "seq": ["MKTAYIAKQR", "GGGG"], "note": ["x", "y"]})
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(table, path, write_page_checksum=True, **plain)
    content = bytearray(path.read_bytes())
    content[content.index(b"MKTAYIAKQR")] ^= 1
    with pytest.raises(PlmEmbedError, match=r"sums\.parquet: a named column cannot be read .*CRC"):
        read(write(path, bytes(content)))


def test_parquet_is_streamed_hashed_and_numbered(tmp_path: Path) -> None:
    path = tmp_path / "many.parquet"
    pq.write_table(pa.table({"id": [*map(str, range(20_000))], "seq": ["MK"] * 20_000}), path)
    reader = Reader(path, Table("id", "seq"))
    assert [batch.first for batch in reader] == [1, 8193, 16_385] and reader.records == 20_000
    assert reader.bytes_read == reader.bytes
    assert reader.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_parquet_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"

    def refused(words: str) -> None:
        with pytest.raises(PlmEmbedError, match=words):
            read(path)

    pq.write_table(pa.table({"id": ["a"], "seq": [["M", "K"]], "note": [""]}), path)
    refused(r"bad.parquet: column 'seq' holds list<element: string>, not text; join each list")
    pq.write_table(pa.table({"id": ["a"], "sequ": ["MK"], "note": [""]}), path)
    refused("no column 'seq'; the columns are 'id', 'sequ', 'note'; did you mean 'sequ'")
    pq.write_table(pa.table({"id": [""], "seq": ["MK"], "note": [""]}).slice(0, 0), path)
    refused("no rows")
    content = path.read_bytes()
    write(path, content[:-9])
    refused("the Parquet file is damaged or cut short")
    write(path, COMPRESS["gzip"](content))
    refused(r"a Parquet file \(gzip compressed\) .* decompress it first")
