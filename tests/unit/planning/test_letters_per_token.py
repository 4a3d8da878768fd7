"""The size of per-token output, where letters do not tell the number of tokens."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plm_embed.inference.weights import prepare
from plm_embed.planning.sizes import letters_per_token
from support.families import TINY, source


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    prepare(TINY["nt_v2"], source("nt_v2"), folder)
    return folder


@pytest.mark.parametrize(
    ("letters", "shape", "expected"),
    [
        ("ACGT", (50, 3_000), 6.0),
        ("ACGT", (1, 400_000), 6.0),
        ("N", (10, 3_000), 1.0),
        ("ACGTN", (50, 3_000), 1.5),  # six in a row without N are rare
    ],
)
def test_letters_are_counted_as_the_tokenizer_does(
    letters: str, shape: tuple[int, int], expected: float, weights: Path, tmp_path: Path
) -> None:
    draw, (count, length) = random.Random(3), shape
    sequences = ["".join(draw.choices(letters, k=length)) for _ in range(count)]
    bucket = tmp_path / "0000.parquet"
    pq.write_table(pa.table({"sequence": sequences}), bucket, write_page_checksum=True)
    assert letters_per_token(bucket, weights) == pytest.approx(expected, rel=0.05)
