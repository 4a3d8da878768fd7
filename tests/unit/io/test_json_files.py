import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_embed.errors import PlmEmbedError
from plm_embed.io.json_files import read_sealed, to_plain, write_sealed

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def read(path: Path) -> dict[str, object]:
    return read_sealed(path, dict, "a note", "write it again")


@settings(max_examples=40)
@given(
    content=st.dictionaries(
        TEXT.filter(lambda key: key != "sha256"), TEXT | st.integers() | st.floats(width=32)
    )
)
def test_what_was_sealed_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, object]
) -> None:
    path = tmp_path_factory.mktemp("sealed") / "note.json"
    write_sealed(path, content)
    assert repr(sorted(read(path).items())) == repr(sorted(content.items()))


def test_every_single_flipped_bit_is_named_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    content = {"records": 1_000, "path": "größe.fasta", "nested": {"list": [1, 2.5, None, True]}}
    write_sealed(path, content)
    whole = path.read_bytes()
    named = 0
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            assert read(path) == content
        except PlmEmbedError as error:
            named += 1
            assert str(error).startswith(f"{path}: ")
            assert str(error).endswith("; write it again")
    assert named > 7 * len(whole)  # white space between values may change


@pytest.mark.parametrize(
    "text", ["", "[]", "7", '"text"', "{}", '{"a": 1}', "[" * 100_000, "\xff", '{"sha256": 1}']
)
def test_other_files_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "note.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(PlmEmbedError, match=r"note\.json: .*write it again"):
        read(path)
    with pytest.raises(PlmEmbedError, match="no such file"):
        read(tmp_path / "absent.json")


def test_the_seal_is_the_sha256_of_the_rest_as_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    write_sealed(path, {"b": (1, 2), "a": "ü"})
    digest = hashlib.sha256('{"a":"ü","b":[1,2]}'.encode()).hexdigest()
    assert path.read_text(encoding="utf-8") == (
        f'{{\n  "a": "ü",\n  "b": [\n    1,\n    2\n  ],\n  "sha256": "{digest}"\n}}\n'
    )


@dataclass(frozen=True)
class Inner:
    name: str = "x"


@dataclass(frozen=True)
class Record:
    counts: dict[int, int]
    parts: tuple[Inner, ...] = (Inner(),)
    gpu: str | None = None
    share: float = 0.5


def test_defaults_are_written_whoever_made_the_record(tmp_path: Path) -> None:
    plain = {"counts": {"30": 2}, "parts": [{"name": "x"}], "gpu": None, "share": 0.5}
    assert to_plain(Record(Counter({30: 2}))) == plain
    write_sealed(tmp_path / "record.json", {"counts": {30: 2}})
    record = read_sealed(tmp_path / "record.json", Record, "a record", "")
    assert record == Record({30: 2})
    assert to_plain(record) == plain
    assert to_plain(Record({}, share=np.float32(0.5)))["share"] == 0.5
