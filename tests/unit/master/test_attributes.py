"""Attributes of a master: facts about its vectors."""

import json
from dataclasses import replace
from pathlib import Path

import h5py
import pytest

from plm_embed.accuracy import SelfTest
from plm_embed.fingerprint import IMPORTED_DEVICE
from plm_embed.master.campaign import read_campaign
from support.campaigns import EVERYTHING, MEAN, edit_completion, make_campaign


def test_attributes_say_what_the_vectors_depend_on(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path, fingerprint=EVERYTHING)
    campaign.gather()
    with h5py.File(campaign.master) as file:
        attributes = dict(file.attrs)
    assert json.loads(attributes["fingerprint"]) == json.loads(EVERYTHING.to_json())
    assert attributes["model_name"] == EVERYTHING.model
    assert attributes["layers"].tolist() == [2, 3]
    assert attributes["pooling"].tolist() == ["mean", "max", "per_residue"]
    assert (attributes["precision"], attributes["compute_dtype"]) == ("float16", "float32")
    assert (
        attributes["long_sequences"],
        attributes["max_length"],
        attributes["window_overlap"],
    ) == ("window", 40, 10)
    assert attributes["devices"].tolist() == ["CPU"]
    assert attributes["batch_invariance"] == "promised by the engine"
    assert attributes["workflow_commit"] == "0123abc"
    assert "mean: arithmetic mean over the sequence's own" in attributes["pooling_definition"]
    assert json.loads(attributes["inputs"])["records"] == 90
    assert "buckets" not in json.loads(attributes["inputs"])


TESTED = SelfTest(1e-6, 0.9999999, batch_invariant=True, attention="a", elementwise="b")


@pytest.mark.parametrize(
    ("engine", "self_test", "expected"),
    [
        ("packed-2-varlen", TESTED, "promised by the engine"),
        ("packed-2-varlen", None, "promised by the engine"),  # nothing was computed
        (
            "packed-2-varlen",
            replace(TESTED, batch_invariant=False),
            "promised by the engine, but a self-test of this campaign saw otherwise",
        ),
        ("packed-2-math", TESTED, "not promised by the engine"),
    ],
)
def test_the_master_says_whether_bits_may_depend_on_the_batch(
    tmp_path: Path, engine: str, self_test: SelfTest | None, expected: str
) -> None:
    campaign = make_campaign(tmp_path, fingerprint=replace(MEAN, engine=engine))
    edit_completion(campaign, self_test=self_test)
    campaign.gather()
    with h5py.File(campaign.master) as file:
        assert file.attrs["batch_invariance"] == expected


def test_the_master_says_that_another_program_computed_some_vectors(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path)
    plan = read_campaign(campaign.sequences, campaign.embedded, campaign.store)
    said = plan.attributes({})["batch_invariance"]
    plan.devices.add(f"CPU, {IMPORTED_DEVICE}")  # as merged parts name them
    found = plan.attributes({})
    assert found["batch_invariance"] == f"{said}, except for vectors that another program computed"
