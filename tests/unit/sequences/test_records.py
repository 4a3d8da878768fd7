import hashlib
import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.sequences.records import LARGEST_RECORD, MOST_RECORDS
from plm_embed.sequences.settings import Table
from support.nasty_inputs import COMPRESS, M2, NEP, PLAIN, read, write


@pytest.mark.parametrize(
    ("content", "ids", "headers", "residues"),
    [
        (">a b  \n M K\tT \t\n  \nMM ", ["a"], ["a b"], [" M K\tT \t  MM "]),
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
    count = MOST_RECORDS + 5
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
def test_damage_in_or_behind_the_header_of_a_table_is_told_as_damage(
    tmp_path: Path, codec: str
) -> None:
    wide = COMPRESS[codec](b"id,note" + b"0123456789" * 1000 + b",seq\n1,2,MK\n")
    for content in (wide[: len(wide) // 2], COMPRESS[codec](b"id,seq,note")[:-3]):
        with pytest.raises(
            PlmEmbedError, match="end too early, the file is cut short after 0 complete records"
        ):
            read(write(tmp_path / "cut", content))


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
        (b'[{"id": "a", "sequence": "MKV"}]', "line 1: this is JSON, which is not read: convert"),
        (b'{"id": "a", "sequence": "MKV"}\n{"id": "b"}', "line 1: this is JSON, which is not read"),
        (
            b"\xef\xbb\xbfsep=;\r\nid;seq;note\r\n1;MK;x\r\n",
            "line 1: this line is for Excel alone: remove it",
        ),
        (b"{\\rtf1\\ansi\n>a\\\nMK\n", "line 1: this is RTF, as word processors write it"),
        (b"ID   A_B  Reviewed;  2 AA.\nSQ\n  MK\n//\n", "line 1: this is a flat file"),
        (b"HEADER    HYDROLASE\nATOM   1\n", "line 1: this is a structure"),
        (b";A, a protein\n;mine\nMK*\n", "line 1: this is an old form of FASTA, with ';' before"),
        (b"@read1\nACGT\n+\n>III\n", "line 1: starts with '@' like FASTQ"),
        (
            b"MKTAYIAKQR\n",
            r"neither FASTA \(no line starts with '>'\) nor a table: line "
            r"1 does not name the columns 'id'",
        ),
        (b"  >a\n  MK\n", "neither FASTA"),
        (b"\x7fELF\x02\x00\x00\n>a\nMK\n", "this is a binary file"),
        (">a\nMK\n".encode("utf-16"), "this is text in UTF-16: save it as UTF-8"),
        (">a\nMK\n".encode("utf-16-le"), "this is text in UTF-16: save it as UTF-8"),
        ("id,sequence\na,MK\n".encode("utf-16-be"), "this is text in UTF-16: save it as UTF-8"),
        (packed("zip"), "this is a zip archive .*unpack it"),
        (COMPRESS["gzip"](packed("tar")), "this is a binary file"),
        (b"id,seq,note\n", "the table has a header and no rows: no record 1"),
        (
            b"id,note\n1,2\n",
            "no column 'seq'; the columns are 'id', 'note'; name yours: `sequence: NAME` of the",
        ),
        (
            b"id,note,Seq\n1,2,MK\n",
            r"no column 'seq'; .*; did you mean 'Seq'\?; name yours: `sequence: Seq` of the input",
        ),
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
