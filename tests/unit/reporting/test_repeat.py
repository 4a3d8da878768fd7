"""The copy of a run's configuration, as users leave it."""

from pathlib import Path

import pytest

from plm_embed.errors import StoreError
from plm_embed.reporting.repeat import keep_config, kept_settings, ran_in


@pytest.mark.parametrize("text", ["a: [", "- a", "word", '# Paths are relative to "x', None])
def test_a_damaged_copy_is_named_with_its_remedy(tmp_path: Path, text: str | None) -> None:
    keep_config({"store": "here"}, tmp_path)
    assert (kept_settings(tmp_path), ran_in(tmp_path)) == ({"store": "here"}, Path.cwd())
    (tmp_path / "config.yaml").write_text(text or "# Paths are relative to 3\n")
    with pytest.raises(
        StoreError, match=r"config.yaml: damaged .* `snakemake --forcerun .*config.yaml`"
    ):
        kept_settings(tmp_path)
        ran_in(tmp_path)
