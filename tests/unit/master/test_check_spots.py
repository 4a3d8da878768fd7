"""Rows of a master against what the reference path computed."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from plm_embed.fingerprint import Fingerprint, LongSequences
from plm_embed.keys import key
from plm_embed.master.check_spots import check_spots
from plm_embed.master.expected_vectors import Expected
from plm_embed.master.findings import Findings
from plm_embed.store.hdf5 import open_hdf5
from support.campaigns import EVERYTHING, Campaign, gathered_campaign
from support.expected import computed


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return gathered_campaign(tmp_path_factory.mktemp("sound"), fingerprint=EVERYTHING, buckets=4)


def problems(
    campaign: Campaign, expected: Expected, skipped: set[bytes] | None = None
) -> list[str]:
    findings = Findings()
    with open_hdf5(campaign.master) as file:
        check_spots(
            findings, campaign.fingerprint, skipped or set(), file, expected, None, lambda _: {}
        )
    return findings.problems


OTHERS: dict[str, Callable[[Fingerprint], Fingerprint]] = {
    "weights_sha256": lambda found: replace(found, weights_sha256="0" * 64),
    "layers": lambda found: replace(found, layers=(3, 2)),
    "pooling": lambda found: replace(found, pooling=("mean",)),
    "long_sequences": lambda found: replace(found, long_sequences=LongSequences()),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_reference_of_other_vectors_is_a_problem(campaign: Campaign, name: str) -> None:
    found = computed(campaign)
    others = replace(found, fingerprint=OTHERS[name](found.fingerprint), again="make it again")
    (problem,) = problems(campaign, others)
    assert problem.startswith(f"spot checks: the reference (here) computed other vectors ({name}: ")
    assert "; make it again, or if the master has old settings, delete it" in problem


@pytest.mark.parametrize(
    "other", [{"compute_dtype": "bfloat16"}, {"storage_dtype": "float32"}, {"engine": "2-triton"}]
)
def test_the_reference_stands_for_any_device_and_precision(
    campaign: Campaign, other: dict[str, str]
) -> None:
    assert replace(campaign.fingerprint, **other).of_reference == computed(campaign).fingerprint


def test_a_key_without_a_row_is_a_problem_unless_it_was_skipped(campaign: Campaign) -> None:
    found = computed(campaign)
    absent = key("NOWHERE")
    last = "f" * 64  # behind all rows
    more = replace(found, vectors=found.vectors | {absent: next(iter(found.vectors.values()))})
    more = replace(more, vectors=more.vectors | {last: {}})
    assert problems(campaign, more) == [
        f"spot checks: key {one} has no row in the master" for one in (absent, last)
    ]
    assert problems(campaign, more, {absent.encode(), last.encode()}) == []


def test_a_row_with_too_many_tokens_for_the_reference_is_told(
    campaign: Campaign, caplog: pytest.LogCaptureFixture
) -> None:
    found = computed(campaign, 2)
    name = next(iter(found.vectors))
    assert problems(campaign, replace(found, vectors=found.vectors | {name: {}})) == []
    assert f"key {name} has too many tokens for the reference" in caplog.text


def test_a_row_beyond_the_bound_is_judged_by_the_rounding_of_its_own_sequence(
    campaign: Campaign,
) -> None:
    exact = computed(campaign, 1)
    (name,) = exact.vectors
    moved = {
        kind: vector if kind.endswith("spans") else 1.05 * vector
        for kind, vector in exact.vectors[name].items()
    }
    others = replace(exact, vectors={name: moved})
    for rounding, wrong in ((0.02, False), (0.001, True)):
        findings = Findings()
        with open_hdf5(campaign.master) as file:
            check_spots(
                findings, campaign.fingerprint, set(), file, others, None,
                lambda _: dict.fromkeys(moved, rounding),  # noqa: B023
            )  # fmt: skip
        assert bool(findings.problems) == wrong
