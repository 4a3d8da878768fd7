"""Long sequences without a campaign."""

from pathlib import Path

import pytest

import plm_embed
from plm_embed.errors import ConfigError
from plm_embed.fingerprint import LongSequences

MODEL = "esm2_t3_untrained"


def test_long_sequences_are_asked_for_as_the_error_says(prepared: Path) -> None:
    with pytest.raises(ConfigError, match=r"a dictionary of policy, max_residues and overlap"):
        plm_embed.embed(["MKV"], MODEL, weights=prepared, long_sequences="crop")  # type: ignore[arg-type]
    misspelt = LongSequences("Skip", 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"policy: 'Skip' is not one of .*; did you mean skip\?"):
        plm_embed.embed(["MKVLA"], MODEL, weights=prepared, long_sequences=misspelt)
    crop = LongSequences("crop", max_residues=3)
    found = plm_embed.embed(["MKVLA", "MKV"], MODEL, weights=prepared, long_sequences=crop)
    assert (found[0] == found[1]).all()
    by_keys = {"policy": "crop", "max_residues": 3}
    again = plm_embed.embed(["MKVLA"], MODEL, weights=prepared, long_sequences=by_keys)
    assert (again[0] == found[0]).all()
    with pytest.raises(ConfigError, match=r"'max_residue' is not one of policy, max_residues"):
        plm_embed.embed(["MKV"], MODEL, weights=prepared, long_sequences={"max_residue": 3})


@pytest.mark.parametrize(
    ("long", "said"),
    [
        (
            LongSequences(max_residues=100),
            "max_residues: 100 has no effect with policy whole; choose",
        ),
        (
            LongSequences("crop", 100, 20),
            "overlap: 20 has no effect with policy crop; choose window, ",
        ),
        (
            LongSequences("skip", 100, 20),
            "overlap: 20 has no effect with policy skip; choose window, ",
        ),
    ],
)
def test_a_number_that_the_policy_does_not_use_is_refused(
    prepared: Path, long: LongSequences, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        plm_embed.embed(["MKVLA"], MODEL, weights=prepared, long_sequences=long)
