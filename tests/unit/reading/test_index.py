"""Rows by id, whatever the ids and however they repeat."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_embed.reading import index as module
from plm_embed.reading.index import ABSENT, SEVERAL, IdIndex

IDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["a", "b", "a/b", "c" * 400]
)


def index_of(records: list[tuple[str, int]], size: int = 7) -> IdIndex:
    schema = pa.schema([("id", pa.string()), ("row", pa.int64())])
    lines = [{"id": id, "row": row} for id, row in records]
    return IdIndex(
        pa.RecordBatch.from_pylist(lines[start : start + size], schema)
        for start in range(0, len(lines), size)
    )


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

    def answer(id: str) -> int:
        known = rows.get(id, {ABSENT})
        return min(known) if len(known) == 1 else SEVERAL

    ids = [*rows, *others, "\udc80", *rows]
    assert index_of(records, size).rows(ids).tolist() == list(map(answer, ids))


def test_hashes_that_agree_do_not_mix_ids_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "hash", lambda _: 7, raising=False)
    index = index_of([(f"p{number}", number) for number in range(20)])
    assert index.rows(["p7", "p0", "x", "p19"]).tolist() == [7, 0, ABSENT, 19]
