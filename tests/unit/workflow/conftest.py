"""The files that small configurations name."""

from pathlib import Path

import pytest


@pytest.fixture
def in_a_folder_with_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.fasta").write_text(">a\nMKV\n", encoding="utf-8")
    Path("esm2.pt").write_bytes(b"")
