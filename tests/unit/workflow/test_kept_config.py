"""The copy of a run's configuration, as users leave it."""

from pathlib import Path

import pytest

from plm_embed.errors import StoreError
from plm_embed.workflow.kept_config import read_kept, write_kept


@pytest.mark.parametrize(
    "text", ["a: [", "- a", "word", '# Paths are relative to "x', "# Paths are relative to 3\n"]
)
def test_a_damaged_copy_is_named_with_its_remedy(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    assert read_kept(path) == ({}, Path())
    write_kept(path, {"store": "here"}, "a run\x1b")
    assert read_kept(path) == ({"store": "here"}, Path.cwd())
    path.write_text(text)
    with pytest.raises(StoreError, match=r"config.yaml: damaged .*; delete .*config.yaml and run"):
        read_kept(path)
