"""Wrong arguments are refused before there are weights for them."""

from typing import Any

import pytest

import plm_embed
from plm_embed.errors import ConfigError
from plm_embed.fingerprint import LongSequences
from plm_embed.inference.language_model import embed_like
from support.campaigns import MEAN

MODEL = "esm2_t3_untrained"


@pytest.fixture(autouse=True)
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where weights would be made."""
    monkeypatch.setattr(
        "plm_embed.inference.language_model.prepared_weights",
        lambda *_: pytest.fail("weights were made"),
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "gpu"}, "device: 'gpu' is not one of auto, cpu, cuda; did you mean cuda?"),
        ({"dtype": "fp16"}, "dtype: 'fp16' is not one of auto, float32"),
        ({"dtype": "tfloat32", "device": "cpu"}, "tfloat32 needs a GPU"),
        ({"threads": 0}, "threads: 0 is not above 0"),
        ({"threads": "2"}, "threads: '2' is not a whole number"),
        ({"threads": True}, "threads: True is not a whole number"),
        ({"strand": "both"}, "strand: 'both' is not one of as_given, canonical"),
        ({"strand": "canonical"}, "the model reads proteins"),
        ({"linker": 25}, "linker: 25 is no text of residues"),
        ({"on_error": "rasie"}, "on_error: 'rasie' is not one of raise, skip"),
        ({"pooling": "men"}, "pooling: 'men' is not one of mean, mean_special, bos, max"),
        ({"pooling": "per_token"}, "a token of esm2_t3_untrained is a residue"),
        ({"layer": "6"}, "layer: '6' is not a whole number"),
        ({"layer": True}, "layer: True is not a whole number"),
        ({"layer": 4}, "esm2_t3_untrained has layers 0 to 3"),
        ({"long_sequences": "crop"}, "long_sequences: a dictionary of policy, max_residues"),
        (
            {"long_sequences": {"max_residue": 3}},
            "'max_residue' is not one of policy, max_residues",
        ),
        ({"long_sequences": {"policy": "Skip"}}, r"'Skip' is not one of .*; did you mean skip\?"),
        ({"long_sequences": LongSequences("crop", 0)}, "policy crop needs max_residues above 0"),
        ({"long_sequences": LongSequences(max_residues=9)}, "9 has no effect with policy whole"),
        ({"long_sequences": LongSequences("skip", 9, 2)}, "overlap: 2 has .*; choose window, or 0"),
        ({"long_sequences": LongSequences("window", 10.5)}, "10.5 is not a whole number"),
    ],
)
def test_what_is_not_known_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plm_embed.embed(["MKV"], MODEL, **options)
    if options.keys() & {"device", "dtype", "threads", "strand", "linker"}:
        with pytest.raises(ConfigError, match=said):
            plm_embed.load(MODEL, **options)
    if "on_error" in options:
        with pytest.raises(ConfigError, match=said):
            embed_like(MEAN, "mean_l3", ["MKV"], None, **options)
