from dataclasses import replace

import pytest

from plm_embed.fingerprint import Fingerprint, LongSequences

PRECISION = "float32", "float16"
BASE = Fingerprint(
    "esm2_t6_8M_UR50D", "ab" * 32, (0, 6), ("mean", "bos"), LongSequences(), *PRECISION, "e-1"
)


def test_json_round_trip() -> None:
    assert Fingerprint.from_json(BASE.to_json()) == BASE


def test_what_was_so_before_there_was_a_choice_changes_no_id() -> None:
    assert "strand" not in BASE.to_json()
    assert BASE.id == "2fdb63cb87efe127"


@pytest.mark.parametrize(
    "change",
    [
        {"model": "esm2_t12_35M_UR50D"},
        {"weights_sha256": "cd" * 32},
        {"layers": (6,)},
        {"pooling": ("bos", "mean")},
        {"long_sequences": LongSequences("crop", 1022)},
        {"compute_dtype": "bfloat16"},
        {"storage_dtype": "float32"},
        {"engine": "e-2"},
        {"strand": "canonical"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_counts_and_is_named(change: dict[str, object]) -> None:
    other = replace(BASE, **change)  # type: ignore[arg-type]
    assert other.id != BASE.id
    (difference,) = BASE.differences(other)
    assert difference.startswith(f"{next(iter(change))}: ")


def test_representations_pooling_by_pooling() -> None:
    assert BASE.representations == ("mean_l0", "mean_l6", "bos_l0", "bos_l6")
