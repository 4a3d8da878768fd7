"""Keys of many sequences, with and without a compiler."""

from pathlib import Path

import pytest

from plm_embed.io import compiled
from plm_embed.sequences import deduplicate as module
from plm_embed.sequences.digests import compiled_digests
from plm_embed.sequences.residues import ResiduePolicy
from plm_embed.sequences.settings import Table
from support.nasty_inputs import write


def test_a_large_input_has_the_same_keys_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WORTH_COMPILING", 0)
    records = (f">{length}\n{'M' * length}\n" for length in range(1, 200))
    fasta = write(tmp_path / "some.fasta", "".join(records))

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
