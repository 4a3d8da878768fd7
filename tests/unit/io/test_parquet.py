from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_embed.errors import StoreError
from plm_embed.io.parquet import (
    read_batches,
    read_matching,
    read_schema,
    read_table,
    row_group_writer,
)

SCHEMA = pa.schema([("sequence", pa.string()), ("length", pa.int32())])


def rows(lengths: list[int]) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(["M" * length for length in lengths]), pa.array(lengths, pa.int32())],
        schema=SCHEMA,
    )


@settings(deadline=None, max_examples=10)
@given(
    st.lists(st.sampled_from([0, 1, 1_048_572, 5_000_000, 9_000_000]), max_size=5),
    st.sets(st.integers(0, 6)),
)
def test_the_bytes_do_not_depend_on_the_pieces(lengths: list[int], cuts: set[int]) -> None:
    with TemporaryDirectory() as folder:
        whole, pieces = Path(folder, "whole"), Path(folder, "pieces")
        with row_group_writer(whole, SCHEMA) as writer:
            writer.write(rows(lengths))
        with row_group_writer(pieces, SCHEMA) as writer:
            edges = sorted({0, len(lengths), *(cut for cut in cuts if cut < len(lengths))})
            for start, end in pairwise(edges):
                writer.write(rows(lengths[start:end]))
        assert whole.read_bytes() == pieces.read_bytes()
        assert pq.read_table(whole)["length"].to_pylist() == lengths


def test_no_rows_make_a_valid_file_and_a_failure_makes_none(tmp_path: Path) -> None:
    with row_group_writer(tmp_path / "empty", SCHEMA):
        pass
    assert pq.read_table(tmp_path / "empty").schema == SCHEMA
    with pytest.raises(RuntimeError), row_group_writer(tmp_path / "failed", SCHEMA) as writer:
        writer.write(rows([3]))
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_row_groups_are_bounded_and_not_read_without_a_wanted_number(tmp_path: Path) -> None:
    schema = pa.schema([("row", pa.int64()), ("header", pa.string())])
    path, text = tmp_path / "index.parquet", "M" * 3_000_000
    with row_group_writer(path, schema) as writer:
        writer.write(pa.record_batch([pa.array(range(9)), pa.array([text] * 9)], schema=schema))
    with pq.ParquetFile(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        assert [group.num_rows for group in groups] == [3, 3, 3]
        assert not any(group.column(1).is_stats_set for group in groups)
        second = groups[1].column(1)
        start = second.dictionary_page_offset or second.data_page_offset
    with path.open("r+b") as raw:  # what is read would be found to be damaged
        raw.seek(start)
        raw.write(bytes(100))
    found = read_matching(path, "row", np.array([1, 8]))
    assert found["row"].to_pylist() == [1, 8]
    with pytest.raises(StoreError):
        read_matching(path, "row", np.array([4]))


def test_each_reader_names_a_file_that_is_missing_or_damaged(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    for content, words in ((b"", "there is no such file"), (b"no", "not a whole Parquet file")):
        if content:
            path.write_bytes(content)
        for read in (
            lambda: read_schema(path, "again"),
            lambda: read_table(path, ["id"], "again"),
            lambda: list(read_batches(path, ["id"], "again")),
        ):
            with pytest.raises(StoreError, match=rf"x\.parquet: {words}.*; again"):
                read()
