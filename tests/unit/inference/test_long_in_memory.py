"""Long sequences without a campaign."""

from pathlib import Path

import pytest

import plm_embed
from plm_embed.errors import ConfigError

MODEL = "esm2_t3_untrained"


def test_long_sequences_are_asked_for_as_the_error_says(prepared: Path) -> None:
    with pytest.raises(ConfigError, match=r"a plm_embed\.LongSequences"):
        plm_embed.embed(["MKV"], MODEL, weights=prepared, long_sequences="crop")  # type: ignore[arg-type]
    misspelt = plm_embed.LongSequences("Skip", 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"policy: 'Skip' is not one of .*; did you mean skip\?"):
        plm_embed.embed(["MKVLA"], MODEL, weights=prepared, long_sequences=misspelt)
    crop = plm_embed.LongSequences("crop", max_residues=3)
    found = plm_embed.embed(["MKVLA", "MKV"], MODEL, weights=prepared, long_sequences=crop)
    assert (found[0] == found[1]).all()


@pytest.mark.parametrize(
    ("long", "said"),
    [
        (plm_embed.LongSequences(max_residues=100), "max_residues: 100: .* policy whole; choose"),
        (plm_embed.LongSequences("crop", 100, 20), "overlap: 20: .* policy crop; choose window, "),
        (plm_embed.LongSequences("skip", 100, 20), "overlap: 20: .* policy skip; choose window, "),
    ],
)
def test_a_number_that_the_policy_does_not_use_is_refused(
    prepared: Path, long: plm_embed.LongSequences, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        plm_embed.embed(["MKVLA"], MODEL, weights=prepared, long_sequences=long)
