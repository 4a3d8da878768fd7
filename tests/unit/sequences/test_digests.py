"""Keys of many sequences, with and without a compiler."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_embed.io import compiled
from plm_embed.sequences import deduplicate as module
from plm_embed.sequences.digests import compiled_digests, digests
from plm_embed.sequences.settings import ResiduePolicy, Table
from support.nasty_inputs import PLAIN, write


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_they_are_those_of_hashlib(sequences: list[bytes]) -> None:
    ends = np.cumsum([len(sequence) for sequence in sequences], dtype=np.int64)
    expected = b"".join(hashlib.sha256(sequence).digest() for sequence in sequences)
    text = b"".join(sequences)
    assert digests(text, ends) == compiled_digests()(memoryview(text), ends) == expected


def test_a_large_input_has_the_same_keys_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WORTH_COMPILING", 0)
    fasta = write(tmp_path / "some.fasta", PLAIN)

    def files(name: str) -> dict[str, str]:
        compiled_digests.cache_clear()
        options = {"buckets": 2, "table": Table(), "policy": ResiduePolicy(), "memory_mb": 500}
        return module.deduplicate([fasta], tmp_path / name, **options).files

    with_compiler = files("first")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiled, "COMPILERS", ())
    compiled.load.cache_clear()
    assert files("second") == with_compiler
    compiled_digests.cache_clear()
    compiled.load.cache_clear()
