"""Keys of many sequences, with and without a compiler."""

from pathlib import Path

import pytest

from plm_embed.io import compiled
from plm_embed.sequences.digests import compiled_digests
from support.deduplicated import files, run
from support.nasty_inputs import write


def test_a_large_input_has_the_same_keys_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plm_embed.sequences.deduplicate.WORTH_COMPILING", 0)
    records = (f">{length}\n{'M' * length}\n" for length in range(1, 200))
    fasta = write(tmp_path / "some.fasta", "".join(records))
    run([fasta], tmp_path / "first")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiled, "COMPILERS", ())
    compiled_digests.cache_clear()
    compiled.load.cache_clear()
    run([fasta], tmp_path / "second")
    assert files(tmp_path / "first") == files(tmp_path / "second")
    compiled_digests.cache_clear()
    compiled.load.cache_clear()
