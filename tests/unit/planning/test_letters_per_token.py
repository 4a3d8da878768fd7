"""The size of per-token output, where letters do not tell the number of tokens."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plm_embed.inference.prepare_weights import prepare
from plm_embed.planning.sizes import letters_per_token
from support.families import TINY, source


@pytest.mark.parametrize(
    ("letters", "count", "length", "expected"),
    [
        ("ACGT", 50, 3_000, 6.0),
        ("ACGT", 1, 400_000, 6.0),
        ("N", 50, 3_000, 1.0),
        ("ACGTN", 50, 3_000, 1.5),  # six in a row without N are rare
    ],
)
def test_letters_are_counted_as_the_tokenizer_does(
    letters: str, count: int, length: int, expected: float, tmp_path: Path
) -> None:
    prepare(TINY["nt_v2"], source("nt_v2"), tmp_path / "weights")
    draw = random.Random(3)
    sequences = ["".join(draw.choices(letters, k=length)) for _ in range(count)]
    bucket = tmp_path / "0000.parquet"
    pq.write_table(pa.table({"sequence": sequences}), bucket, write_page_checksum=True)
    assert letters_per_token(bucket, tmp_path / "weights") == pytest.approx(expected, rel=0.05)
