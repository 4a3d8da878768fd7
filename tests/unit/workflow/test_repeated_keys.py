"""Keys that a configuration file has twice."""

from pathlib import Path

import pytest

from plm_embed.errors import ConfigError
from plm_embed.workflow import check_repeated_keys
from plm_embed.workflow.config_file import read_config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: a\ninputs: []\nmodel: b\n", "line 3: model: stands in line 1 too; name it once"),
        ("a: {b: 1,\n b: 2}\n", "line 2: a.b: stands in line 1 too"),
        ("a: {b: 1, b: 2}\n", "line 1: a.b: stands in line 1 too"),
        ("a:\n- b: 1\n  b: 2\n", "line 3: a.b: stands in line 2 too"),
    ],
)
def test_file_key_and_lines_are_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        check_repeated_keys([path])
    assert str(error.value).startswith(f"{path}, {said}")
    with pytest.raises(ConfigError, match="too; name it once"):
        read_config(path)


def test_what_stands_in_several_blocks_or_files_is_not_repeated(tmp_path: Path) -> None:
    path, other = tmp_path / "config.yaml", tmp_path / "other.yaml"
    path.write_text("a: {b: 1}\nb: [{c: 1}, {c: 2}]\n")
    other.write_text("a: 2\n")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: {\n")
    check_repeated_keys([path, other, broken, tmp_path / "absent.yaml"])
