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
    ("content", "id", "header", "residues"),
    [
        (b">caf\xe9 x\nMK\n", "café", "café x", "MK"),
        ("\ufeff>naïve 流感\nMK\n".encode(), "naïve", "naïve 流感", "MK"),
        (b">a\xe9\xc3\xaf\nM\xffK\n", "aéï", "aéï", "MÿK"),
        (b">a\x00b\nM\x00K\n", "a\x00b", "a\x00b", "M\x00K"),
        (b">x\xed\xa1\x81\nMK\n", "x\xed\xa1\x81", "x\xed\xa1\x81", "MK"),  # a surrogate
    ],
)
def test_headers_in_any_encoding_are_text(
    tmp_path: Path, content: bytes, id: str, header: str, residues: str
) -> None:
    found = read(write(tmp_path / "odd.fasta", content))
    assert (found.ids, found.headers, found.residues) == ([id], [header], [residues])
    header.encode()  # without an error: everything can be written


def test_text_before_the_first_header_is_record_0(tmp_path: Path) -> None:
    found = read(write(tmp_path / "notes.fasta", "# notes, mine\n\nMKTAY\n" + PLAIN))
    assert found.first == 0 and found.ids == ["", "AAD51929.1", "AAD51931.1"]
    assert found.faults == {0: ("text_before_first_header", "lines: 2")}
    assert found.residues[1:] == [M2, NEP]


def test_many_records_come_in_batches_with_running_numbers(tmp_path: Path) -> None:
    ids = [str(number) for number in range(MOST_RECORDS + 5)]
    fasta = write(tmp_path / "many.fasta", "".join(f">{id}\nMK\n" for id in ids))
    table = write(tmp_path / "many.csv", "id,seq\n" + "".join(f"{id},MK\n" for id in ids))
    for path in (fasta, table):
        found = read(path, Table("id", "seq"))
        assert found.first == 1 and found.ids == ids


def test_zstandard_may_begin_with_a_skippable_frame(tmp_path: Path) -> None:
    content = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd" + COMPRESS["zstd"](PLAIN.encode())
    assert read(write(tmp_path / "parallel.zst", content)).residues == [M2, NEP]


@pytest.mark.parametrize("codec", sorted(set(COMPRESS) - {"none"}))
def test_damaged_data_are_an_error_with_the_number_of_records(tmp_path: Path, codec: str) -> None:
    path, again = tmp_path / "damaged", "complete records; fetch or copy the file again"
    text = "".join(
        f">{number}\n{hashlib.sha512(b'%d' % number).hexdigest()}\n" for number in range(200)
    )
    content = bytearray(COMPRESS[codec](text.encode()))
    assert len(read(write(path, bytes(content))).ids) == 200
    for size in (len(content) - 1, len(content) * 6 // 10, 20):
        with pytest.raises(PlmEmbedError, match=rf"cut short after (1?\d\d?) {again}"):
            read(write(path, bytes(content[:size])))
    for place in range(len(content) // 2, len(content) // 2 + 60):
        content[place] ^= 0x5A
    with pytest.raises(PlmEmbedError, match=rf"compressed data .* after \d+ {again}"):
        read(write(path, bytes(content)))
    wide = COMPRESS[codec](b"id,note" + b"0123456789" * 1000 + b",seq\n1,2,MK\n")
    for header in (wide[: len(wide) // 2], COMPRESS[codec](b"id,seq,note")[:-3]):
        with pytest.raises(PlmEmbedError, match=f"the file is cut short after 0 {again}"):
            read(write(path, header))


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
        (COMPRESS["gzip"](b""), r"the file is empty \(gzip compressed\): no record 1"),
        (b"\xef\xbb\xbf\n", "holds nothing but white space: no record 1"),
        (b"\n<html><body\n>404</body></html>\n", "line 1: this is an HTML or XML page"),
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
        (b"MKTAYIAKQR\n", r"neither FASTA \(no line .*\) nor a table: line 1 does not name the co"),
        (b"  >a\n  MK\n", "neither FASTA"),
        (b"\x7fELF\x02\x00\x00\n>a\nMK\n", "this is a binary file"),
        (">a\nMK\n".encode("utf-16"), "this is text in UTF-16: save it as UTF-8"),
        (">a\nMK\n".encode("utf-16-le"), "this is text in UTF-16: save it as UTF-8"),
        ("id,sequence\na,MK\n".encode("utf-16-be"), "this is text in UTF-16: save it as UTF-8"),
        (packed("zip"), "this is a zip archive .*unpack it"),
        (COMPRESS["gzip"](packed("tar")), "this is a binary file"),
        (
            b"id,note,Seq\n1,2,MK\n",
            r"no column 'seq'; .*; did you mean 'Seq'\?; name yours: `sequence: Seq` of the input",
        ),
        (b"id,note,seq,seq\n1,2,MK,MK\n", "2 columns are named 'seq'; rename all but one"),
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
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    for path, words in (
        (tmp_path / "absent.fasta", r"absent\.fasta: cannot be read: No such file"),
        (tmp_path, "is a folder; name the files in it"),
        (tmp_path / "loop", "loop: cannot be read: Too many levels of symbolic links"),
        (Path("a\0b"), "a path cannot hold a NUL character"),
        (tmp_path / "pipe", "pipe: is no regular file; save what comes out"),
    ):
        with pytest.raises(PlmEmbedError, match=words):
            read(path)


def test_a_record_too_large_for_memory_is_left_out_with_the_reason(tmp_path: Path) -> None:
    size = LARGEST_RECORD + 100
    content = (
        f">one x\nMK\n>two y\n{'M' * size}\n>three\nMT\n>{'h' * size}\nMV\n>five\n{'M' * 99_999}\n"
    )
    found = read(write(tmp_path / "large", content))
    assert found.ids == ["one", "two", "three", "h" * ((1 << 16) - 1), "five"]
    assert found.headers[1] == "two y"
    assert found.residues == ["MK", "", "MT", "", "M" * 99_999]
    assert found.faults == {
        1: ("too_large", f"{size + 8:,} bytes, more than 16,777,216"),
        3: ("too_large", f"{size + 5:,} bytes, more than 16,777,216; the header is cut"),
    }
