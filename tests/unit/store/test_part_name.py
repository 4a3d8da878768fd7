from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from plm_embed.store.part_name import (
    first_digits,
    last_digits,
    names_bytes,
    part_name,
    part_names,
    rows_in,
)

digests = st.binary(min_size=32, max_size=32).map(bytes.hex)


@given(digests, digests, st.integers(1, 10**9), digests, digests)
def test_a_name_says_what_it_was_made_of(
    first: str, last: str, rows: int, sha256: str, other: str
) -> None:
    name = part_name(first, last, rows, sha256)
    assert first.startswith(first_digits(name)) and last.startswith(last_digits(name))
    assert len(first_digits(name)) == len(last_digits(name)) == 8
    assert rows_in(name) == rows
    assert names_bytes(name, sha256)
    assert names_bytes(name, other) == (other[:16] == sha256[:16])


def test_what_is_no_part_is_not_listed(tmp_path: Path) -> None:
    name = part_name("0" * 64, "f" * 64, 7, "a" * 64)
    for other in (name, f".tmp-{'0' * 16}-{name}", f"{name}.damaged", "part.h5"):
        (tmp_path / other).touch()
    assert part_names(tmp_path) == [name]
    assert part_names(tmp_path / "absent") == []
