import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_embed.errors import PlmEmbedError
from plm_embed.reading import ids as identifiers
from plm_embed.reading.ids import ABSENT, SEVERAL, Identifiers

IDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["a", "b", "a/b", "c" * 400]
)


def write_index(folder: Path, records: list[tuple[str, int]]) -> Path:
    path = folder / "master.parquet"
    ids, rows = [id for id, _ in records], [row for _, row in records]
    pq.write_table(
        pa.table({"id": pa.array(ids, pa.string()), "row": pa.array(rows, pa.int64())}), path
    )
    return path


def look_up(index: Path, ids: list[str]) -> list[int]:
    found = Identifiers(index)
    rows = found.rows(ids).tolist()
    found.close()
    return rows


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(IDS, st.integers(0, 3)), max_size=30),
    st.lists(IDS, max_size=5),
    st.integers(1, 40),
)
def test_each_id_has_its_row_or_none_or_several(
    records: list[tuple[str, int]], others: list[str], size: int
) -> None:
    rows: dict[str, set[int]] = {}
    for id, row in records:
        rows.setdefault(id, set()).add(row)
    asked = [*rows, *others, *rows]
    answers = [min(rows[id]) if len(rows[id]) == 1 else SEVERAL if id in rows else ABSENT
               for id in asked if id in rows or not rows.setdefault(id, set())]  # fmt: skip
    answers = [
        ABSENT if not rows[id] else answer for id, answer in zip(asked, answers, strict=True)
    ]
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(identifiers, "_BATCH_ROWS", size)
        patch.setattr(identifiers, "_SORT_BYTES", 5000)
        index = write_index(Path(folder), records)
        assert look_up(index, asked) == answers
        assert sorted(path.name for path in Path(folder).iterdir()) == [
            "master.ids.arrow",
            "master.parquet",
        ]


def test_hashes_that_agree_do_not_mix_ids_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = identifiers._digest
    monkeypatch.setattr(identifiers, "_digest", lambda id: bytes(8) + digest(id)[8:])
    monkeypatch.setattr(identifiers, "_BATCH_ROWS", 3)
    index = write_index(tmp_path, [(f"p{number}", number) for number in range(20)])
    assert look_up(index, ["p7", "p0", "x", "p19"]) == [7, 0, ABSENT, 19]


def test_the_file_is_kept_and_made_again_for_another_index(tmp_path: Path) -> None:
    index = write_index(tmp_path, [("a", 0), ("b", 1)])
    assert look_up(index, ["b"]) == [1]
    side = tmp_path / "master.ids.arrow"
    written = side.stat().st_mtime_ns
    assert look_up(index, ["a"]) == [0] and side.stat().st_mtime_ns == written
    write_index(tmp_path, [("a", 1), ("b", 0)])
    assert look_up(index, ["a", "b"]) == [1, 0]
    side.write_bytes(b"ARROW1 and no more")
    assert look_up(index, ["a", "b"]) == [1, 0]


def test_a_folder_that_cannot_be_written_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = write_index(tmp_path, [("a", 0), ("b", 1)])
    write = identifiers._write

    def refuse(source: Path, path: Path, identity: bytes) -> None:
        if path.parent == tmp_path:
            raise PermissionError(13, "Permission denied")
        write(source, path, identity)

    monkeypatch.setattr(identifiers, "_write", refuse)
    assert look_up(index, ["b", "x"]) == [1, ABSENT]
    assert [path.name for path in tmp_path.iterdir()] == ["master.parquet"]
    with pytest.raises(PlmEmbedError, match="no such file"):
        Identifiers(tmp_path / "absent.parquet")


def test_a_damaged_file_is_named_or_makes_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identifiers, "_BATCH_ROWS", 8)
    index = write_index(tmp_path, [(f"p{number}", number) for number in range(60)])
    ids = ["p7", "p59", "absent", "\udc80"]
    right = [7, 59, ABSENT, ABSENT]
    assert look_up(index, ids) == right
    side = tmp_path / "master.ids.arrow"
    whole, draw = side.read_bytes(), random.Random(1)
    named = 0
    for _ in range(80):
        bits = bytearray(whole)
        bits[draw.randrange(len(bits))] ^= 1 << draw.randrange(8)
        side.write_bytes(bits)
        try:
            assert look_up(index, ids) == right
        except PlmEmbedError as error:
            assert (
                str(error) == f"{side}: damaged; remove it, and it is made again when it is needed"
            )
            named += 1
    assert named
    for size in (0, 7, len(whole) // 2, len(whole) - 1):
        side.write_bytes(whole[:size])
        assert look_up(index, ids) == right
    side.unlink()
    assert look_up(index, ids) == right
    side.unlink()
    side.mkdir()
    assert look_up(index, ids) == right
