import csv
import hashlib
import io
import os
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_embed.errors import PlmEmbedError
from plm_embed.sequences.records import BATCH_RECORDS, Batch, Reader, Table
from plm_embed.sequences.streams import LARGEST_RECORD
from support.nasty_inputs import COMPRESS, M2, NEP, PLAIN, write

TABLE = Table("id", "seq", ("note",))
UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
HEADERS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=30)


def read(path: Path, table: Table = TABLE) -> Batch:
    """All records as one batch; numbers must follow one another."""
    whole = Batch(-1, kept=[[] for _ in table.keep])
    for batch in Reader(path, table):
        if whole.first < 0:
            whole.first = batch.first
        elif whole.first + len(whole.ids) != batch.first:
            raise AssertionError(f"record {batch.first} after {whole.first + len(whole.ids) - 1}")
        whole.faults |= {len(whole.ids) + place: fault for place, fault in batch.faults.items()}
        for values, more in zip(whole.kept, batch.kept, strict=False):
            values.extend(more)
        whole.ids += batch.ids
        whole.headers = [*whole.headers, *batch.headers]
        whole.residues += batch.residues
    return whole


@settings(deadline=None, max_examples=60)
@given(
    records=st.lists(
        st.tuples(HEADERS, st.text("ACDEFGHIKLMNPQRSTVWYXJ*-.acd1 ", max_size=150)), min_size=1
    ),
    width=st.integers(1, 80),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    closed=st.booleans(),
    blank_lines=st.integers(0, 2),
    mark=st.sampled_from(["", "\ufeff"]),
    codec=st.sampled_from(sorted(COMPRESS)),
)
def test_fasta_is_read_as_it_was_written(
    *,
    records: list[tuple[str, str]],
    width: int,
    line_end: str,
    closed: bool,
    blank_lines: int,
    mark: str,
    codec: str,
) -> None:
    lines = []
    for header, residues in records:
        lines += [""] * blank_lines + [">" + header]
        lines += [residues[start : start + width] for start in range(0, len(residues), width)]
    content = COMPRESS[codec]((mark + line_end.join(lines) + line_end * closed).encode())
    with TemporaryDirectory() as folder:
        path = write(Path(folder, "any.name"), content)
        reader = Reader(path, TABLE)
        batches = list(reader)
        assert (reader.format, reader.compression, reader.records) == ("fasta", codec, len(records))
        assert reader.bytes_read == reader.bytes == len(content)
        assert reader.sha256 == hashlib.sha256(content).hexdigest()
    assert [title for batch in batches for title in batch.headers] == [
        header.rstrip() for header, _ in records
    ]
    assert [text for batch in batches for text in batch.residues] == [
        residues for _, residues in records
    ]
    names = [(header.split() or [""])[0] for header, _ in records]
    assert [name for batch in batches for name in batch.ids] == names


@settings(deadline=None, max_examples=60)
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


@pytest.mark.parametrize(
    ("content", "ids", "headers", "residues"),
    [
        (">a b  \n M K\tT \t\n  \nMM ", ["a"], ["a b"], [" M K\tT    MM "]),
        (">\nMK\n>  \nMT\n", ["", ""], ["", ""], ["MK", "MT"]),
        ("> a b\nMK\n>\tc\nMT\n", ["a", "c"], [" a b", "\tc"], ["MK", "MT"]),
        (">a>b c>d\nMK\n", ["a>b"], ["a>b c>d"], ["MK"]),
        (">a\tb\tc\nMK\n", ["a"], ["a\tb\tc"], ["MK"]),
        (">a\n>b\nMK\n>c", ["a", "b", "c"], ["a", "b", "c"], ["", "MK", ""]),
        ("\n \n>a\nMK\n", ["a"], ["a"], ["MK"]),
        (">a\rMK\rMT\r>b\rMM", ["a", "b"], ["a", "b"], ["MKMT", "MM"]),
        (b">caf\xe9 x\nMK\n", ["café"], ["café x"], ["MK"]),
        ("\ufeff>naïve 流感\nMK\n".encode(), ["naïve"], ["naïve 流感"], ["MK"]),
        (b">a\xe9\xc3\xaf\nM\xffK\n", ["aéï"], ["aéï"], ["MÿK"]),
        (b">a\x00b\nM\x00K\n", ["a\x00b"], ["a\x00b"], ["M\x00K"]),
        (
            f">{'i' * 400} {'d' * 40_000}\nMK\n",
            ["i" * 400],
            [f"{'i' * 400} {'d' * 40_000}"],
            ["MK"],
        ),
        (b">x\xed\xa1\x81\nMK\n", ["x\xed\xa1\x81"], ["x\xed\xa1\x81"], ["MK"]),
    ],
)
def test_odd_fasta(
    tmp_path: Path, content: str | bytes, ids: list[str], headers: list[str], residues: list[str]
) -> None:
    found = read(write(tmp_path / "odd.fasta", content))
    assert (found.ids, found.headers, found.residues) == (ids, headers, residues)
    assert not found.faults
    "".join(found.ids + found.headers).encode()  # no surrogates: everything can be written


def test_text_before_the_first_header_is_record_0(tmp_path: Path) -> None:
    found = read(write(tmp_path / "notes.fasta", "# notes, mine\n\nMKTAY\n" + PLAIN))
    assert found.first == 0 and found.ids == ["", "AAD51929.1", "AAD51931.1"]
    assert found.faults == {0: ("text_before_first_header", "lines: 2")}
    assert found.residues[1:] == [M2, NEP]


def test_many_records_come_in_batches_with_running_numbers(tmp_path: Path) -> None:
    count = 2 * BATCH_RECORDS + 5
    fasta = write(
        tmp_path / "many.fasta", "".join(f">{number}\nMK\n" for number in range(1, count + 1))
    )
    table = write(
        tmp_path / "many.csv",
        "id,seq\n" + "".join(f"{number},MK\n" for number in range(1, count + 1)),
    )
    for path in (fasta, table):
        found = read(path, Table("id", "seq"))
        assert found.first == 1 and found.ids == [str(number) for number in range(1, count + 1)]


def test_long_records_make_small_batches(tmp_path: Path) -> None:
    path = write(
        tmp_path / "long.fasta", "".join(f">{number}\n{'M' * 1_500_000}\n" for number in range(7))
    )
    assert [len(batch.ids) for batch in Reader(path, TABLE)] == [3, 3, 1]


def test_gzip_members_are_read_one_after_the_other(tmp_path: Path) -> None:
    gzip = COMPRESS["gzip"]
    halves = [PLAIN[:100].encode(), PLAIN[100:].encode()]
    for content in (b"".join(map(gzip, halves)), b"".join(map(gzip, halves)) + bytes(512)):
        assert read(write(tmp_path / "two.gz", content)).residues == [M2, NEP]


def test_zstandard_may_begin_with_a_skippable_frame(tmp_path: Path) -> None:
    content = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd" + COMPRESS["zstd"](PLAIN.encode())
    assert read(write(tmp_path / "parallel.zst", content)).residues == [M2, NEP]


@pytest.mark.parametrize("codec", sorted(set(COMPRESS) - {"none"}))
def test_data_cut_short_are_an_error_with_the_number_of_records(tmp_path: Path, codec: str) -> None:
    text = "".join(
        f">{number}\n{hashlib.sha512(bytes([number])).hexdigest()}\n" for number in range(200)
    )
    content = COMPRESS[codec](text.encode())
    whole = write(tmp_path / "whole", content)
    assert len(read(whole).ids) == 200
    for size in (len(content) - 1, len(content) * 6 // 10, 20):
        cut = write(tmp_path / "cut", content[:size])
        with pytest.raises(PlmEmbedError, match=r"cut: .*cut short"):
            read(cut)
    cut = write(tmp_path / "cut", content[:-1])
    with pytest.raises(
        PlmEmbedError,
        match=r"cut short after (1\d\d|0) complete records; fetch or copy the file again",
    ):
        read(cut)


@pytest.mark.parametrize("codec", sorted(set(COMPRESS) - {"none"}))
def test_damaged_data_are_an_error(tmp_path: Path, codec: str) -> None:
    content = bytearray(COMPRESS[codec]((PLAIN * 50 + "".join(map(chr, range(40, 3000)))).encode()))
    for place in range(len(content) // 2, len(content) // 2 + 60):
        content[place] ^= 0x5A
    with pytest.raises(
        PlmEmbedError, match=r"compressed data .* after \d+ complete records; fetch or copy"
    ):
        read(write(tmp_path / "damaged", bytes(content)))


@pytest.mark.parametrize("codec", sorted(set(COMPRESS) - {"none"}))
def test_damage_within_the_header_of_a_table_is_told_as_damage(tmp_path: Path, codec: str) -> None:
    content = COMPRESS[codec](b"id,note" + b"0123456789" * 1000 + b",seq\n1,2,MK\n")
    with pytest.raises(
        PlmEmbedError, match="end too early, the file is cut short after 0 complete records"
    ):
        read(write(tmp_path / "cut", content[: len(content) // 2]))


def packed(kind: str) -> bytes:
    data = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(data, "w") as archive:
            archive.writestr("a.fasta", PLAIN)
    else:
        with tarfile.open(fileobj=data, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("a.fasta"))
    return data.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty: no record 1"),
        (COMPRESS["gzip"](b""), r"the file is empty \(gzip compressed\): no record 1"),
        (b" \n\t\r\n", "holds nothing but white space: no record 1"),
        (b"\xef\xbb\xbf\n", "holds nothing but white space: no record 1"),
        (
            b"<!DOCTYPE html>\n<html><body\n>404</body></html>\n",
            "line 1: this is an HTML or XML page",
        ),
        (b"\n<html>", "line 1: this is an HTML or XML page"),
        (b"@read1\nACGT\n+\n>III\n", "line 1: starts with '@' like FASTQ"),
        (
            b"MKTAYIAKQR\n",
            r"neither FASTA \(no line starts with '>'\) nor a table: line "
            r"1 does not name the columns 'id'",
        ),
        (b"  >a\n  MK\n", "neither FASTA"),
        (b"\x7fELF\x02\x00\x00\n>a\nMK\n", "this is a binary file"),
        (b"\x89HDF\r\n\x1a\n" + bytes(50), "this is an HDF5 file"),
        (">a\nMK\n".encode("utf-16"), "this is text in UTF-16: save it as UTF-8"),
        (packed("zip"), "this is a zip archive .*unpack it"),
        (COMPRESS["gzip"](packed("tar")), "this is a tar archive: unpack it"),
        (b"id,seq,note\n", "the table has a header and no rows: no record 1"),
        (b"id,note\n1,2\n", "no column 'seq'; the columns are 'id', 'note'$"),
        (b"id,note,Seq\n1,2,MK\n", "no column 'seq'; the columns are .*; did you mean 'Seq'"),
        (b"id,note,seq,seq\n1,2,MK,MK\n", "2 columns are named 'seq'; rename all but one"),
        (
            b'id,seq,note\n1,MK,"' + b"x" * 17_000_000,
            r"line 2 after 0 complete records: a row of more than 16,777,216 characters; .*closed",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_read_is_refused_in_one_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = write(tmp_path / "refused", content)
    with pytest.raises(PlmEmbedError, match=message) as error:
        read(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlmEmbedError, match=r"absent\.fasta: cannot be read: No such file"):
        read(tmp_path / "absent.fasta")
    with pytest.raises(PlmEmbedError, match="is a folder; name the files in it"):
        read(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(
        PlmEmbedError, match="loop: cannot be read: Too many levels of symbolic links"
    ):
        read(tmp_path / "loop")
    with pytest.raises(PlmEmbedError, match="a path cannot hold a NUL character"):
        read(Path("a\0b"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PlmEmbedError, match="pipe: is no regular file; save what comes out"):
        read(tmp_path / "pipe")


def test_text_is_never_taken_for_a_number_or_a_missing_value(tmp_path: Path) -> None:
    ids = ["NA", "00123", "1e5", "123456789012345678901", "3.10", "TRUE", "", " x "]
    content = "id,seq,note\n" + "".join(f"{name},MK,NA\n" for name in ids)
    found = read(write(tmp_path / "ids.csv", content))
    assert found.ids == ids and found.kept == [["NA"] * len(ids)] and not found.faults


def test_missing_values_are_faults_only_in_the_sequence_column(tmp_path: Path) -> None:
    words = ["NaN", "nan", "N/A", "None", "null", "NULL", "<NA>", " NaN "]
    content = (
        "id,seq,note\n"
        + "".join(f"{word},{word},{word}\n" for word in words)
        + "a,,\nb,NAN,\n\nc, ,\nd,NA,"
    )
    found = read(write(tmp_path / "missing.csv", content))
    assert found.faults == dict.fromkeys(range(len(words)), ("missing_value", None))
    assert found.ids == [*words, "a", "b", "c", "d"] and found.residues[-4:] == [
        "",
        "NAN",
        " ",
        "NA",
    ]


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


@pytest.mark.parametrize(
    "content",
    [
        'id,seq,note\na,MK,"never closed\nb,MKV,x\n',
        'id\tseq\tnote\na\tMK\t"five prime\nb\tMKV\tthe "end" of it\n',
    ],
)
def test_a_quote_never_swallows_records(tmp_path: Path, content: str) -> None:
    with pytest.raises(
        PlmEmbedError,
        match=r"line \d after 0 complete records: .*is there a quote that is never closed",
    ):
        read(write(tmp_path / "quotes.csv", content))


def test_quotes_newlines_and_nul_in_cells(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbfid,seq,note\r\n"a ""b"", c",MK,"two\nlines"\r\nd,"M\r\nK",\x00\r\n'
    found = read(write(tmp_path / "quoted.csv", content))
    assert found.ids == ['a "b", c', "d"]
    assert found.residues == ["MK", "M\r\nK"] and found.kept == [["two\nlines", "\x00"]]


@pytest.mark.parametrize("codec", ["gzip", "none"])
def test_a_record_too_large_for_memory_is_left_out_with_the_reason(
    tmp_path: Path, codec: str
) -> None:
    size = LARGEST_RECORD + 100
    content = (
        f">one x\nMK\n>two y\n{'M' * size}\n>three\nMT\n>{'h' * size}\nMV\n>five\n{'M' * 99_999}\n"
    )
    found = read(write(tmp_path / "large", COMPRESS[codec](content.encode())))
    assert (
        found.ids[:3] == ["one", "two", "three"]
        and found.ids[3] == "h" * ((1 << 16) - 1)
        and found.ids[4] == "five"
    )
    assert found.headers[1] == "two y"
    assert found.residues == ["MK", "", "MT", "", "M" * 99_999]
    assert found.faults == {
        1: ("too_large", f"{size + 8:,} bytes, more than 16,777,216"),
        3: ("too_large", f"{size + 5:,} bytes, more than 16,777,216; the header is cut"),
    }


def test_a_row_too_large_for_memory_is_named(tmp_path: Path) -> None:
    row = ",".join(["M" * (LARGEST_RECORD // 4)] * 5)
    with pytest.raises(
        PlmEmbedError,
        match=r"line 3 after 1 complete records: a row of more than 16,777,216 characters",
    ):
        read(write(tmp_path / "wide.csv", f"id,seq,note,b,c\na,MK,x,,\n{row}\n"))


def test_one_column_may_serve_twice_and_one_column_is_a_table(tmp_path: Path) -> None:
    path = write(tmp_path / "one.csv", "seq\nMK\nMT\n")
    found = read(path, Table("seq", "seq", ("seq",)))
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


def test_parquet_text_that_is_not_utf8_is_read_as_latin1(tmp_path: Path) -> None:
    raw = pa.array([b"caf\xe9", None, "流感".encode()], pa.binary())
    for number, ids in enumerate([pa.Array.from_buffers(pa.string(), 3, raw.buffers()), raw]):
        for column in (ids, ids.dictionary_encode()):
            path = tmp_path / f"{number}.parquet"
            pq.write_table(pa.table({"id": column, "seq": ["MK"] * 3, "note": column}), path)
            found = read(path)
            assert found.ids == ["café", "", "流感"] and found.kept == [["café", None, "流感"]]


def test_parquet_pages_are_read_with_their_checksums(tmp_path: Path) -> None:
    path = tmp_path / "sums.parquet"
    table = pa.table({"id": ["a", "b"], "seq": ["MKTAYIAKQR", "GGGG"], "note": ["x", "y"]})
    plain: dict[str, Any] = {
        "compression": "none",
        "use_dictionary": False,
        "write_statistics": False,
    }
    pq.write_table(table, path, write_page_checksum=True, **plain)
    content = bytearray(path.read_bytes())
    content[content.index(b"MKTAYIAKQR")] ^= 1
    with pytest.raises(PlmEmbedError, match=r"sums\.parquet: a wanted column cannot be read .*CRC"):
        read(write(path, bytes(content)))


def test_a_parquet_cell_too_large_for_memory_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "large.parquet"
    pq.write_table(
        pa.table({"id": ["a", "b"], "seq": ["M" * (LARGEST_RECORD + 1), "MK"], "note": ["", ""]}),
        path,
    )
    found = read(path)
    assert found.residues == ["", "MK"]
    assert found.faults == {0: ("too_large", "16,777,217 characters, more than 16,777,216")}


def test_parquet_is_streamed_hashed_and_numbered(tmp_path: Path) -> None:
    path = tmp_path / "many.parquet"
    pq.write_table(
        pa.table({"id": [str(number) for number in range(5000)], "seq": ["MK"] * 5000}), path
    )
    reader = Reader(path, Table("id", "seq"))
    firsts = [batch.first for batch in reader]
    assert (
        firsts == [1, 2049, 4097] and reader.records == 5000 and reader.bytes_read == reader.bytes
    )
    assert reader.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_parquet_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table({"id": ["a"], "seq": [["M", "K"]], "note": [""]}), path)
    with pytest.raises(
        PlmEmbedError, match=r"bad.parquet: a wanted column cannot be read as text after 0 complete"
    ):
        read(path)
    with pytest.raises(
        PlmEmbedError,
        match=r"no column 'sequ'; the columns are 'id', 'seq', 'note'; did you mean 'seq'",
    ):
        read(path, Table("id", "sequ"))
    pq.write_table(pa.table({"id": [""], "seq": ["MK"], "note": [""]}).slice(0, 0), path)
    with pytest.raises(PlmEmbedError, match="no rows"):
        read(path)
    content = path.read_bytes()
    with pytest.raises(PlmEmbedError, match="the Parquet file is damaged or cut short"):
        read(write(path, content[:-9]))
    with pytest.raises(
        PlmEmbedError, match=r"a Parquet file \(gzip compressed\) .* decompress it first"
    ):
        read(write(path, COMPRESS["gzip"](content)))
