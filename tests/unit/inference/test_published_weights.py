"""Weights known to be the published ones, by the SHA-256 of their files."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from plm_embed.inference.weights import prepare
from plm_embed.io.files import sha256_file
from plm_embed.io.json_files import write_sealed
from plm_embed.models import registry
from plm_embed.models.registry import MODELS
from plm_embed.models.weights import MANIFEST, caveat, read_manifest
from support.checkpoints import (
    DEMO,
    TINY_ESM2,
    random_state,
    write_fair_esm,
    write_hugging_face,
)


def test_the_published_file_is_known_by_its_sha256(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = random_state(TINY_ESM2, 1)
    source = write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, state)
    folder = write_hugging_face(tmp_path / "hf", TINY_ESM2, state)
    digests = sha256_file(source), sha256_file(folder / "model.safetensors")
    model = replace(TINY_ESM2, sha256=digests)
    monkeypatch.setitem(registry.MODELS, model.name, model)
    shutil.copy(source, tmp_path / "renamed.pt")
    for number, copy in enumerate((tmp_path / "renamed.pt", folder)):
        made = prepare(model, copy, tmp_path / f"out{number}")
        assert (made.published, caveat(model.name, made)) == ("sha256", "")
    bare = write_hugging_face(tmp_path / "bare", model, state, prefix="")
    other = prepare(model, bare, tmp_path / "out2")
    assert other.weights_sha256 == made.weights_sha256
    assert other.published == "no"
    assert caveat(model.name, other).startswith(
        "not verified as the published weights: not a published"
    )


def test_own_weights_under_the_name_of_the_demo_are_not_the_demo(tmp_path: Path) -> None:
    demo = MODELS["esm2_t3_untrained"]
    own = write_fair_esm(tmp_path / "own.pt", demo, random_state(demo, 7))
    for number, (source, words) in enumerate(
        ((DEMO, "random numbers, not"), (own, "unpublished weights of another origin"))
    ):
        made = prepare(demo, source, tmp_path / f"out{number}")
        assert caveat(demo.name, made).startswith(words)


def test_manifests_of_earlier_versions(tmp_path: Path) -> None:
    source = write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, random_state(TINY_ESM2, 1))
    made = prepare(TINY_ESM2, source, tmp_path / "out")
    content = json.loads((tmp_path / "out" / MANIFEST).read_text())
    content.pop("sha256")
    write_sealed(tmp_path / "out" / MANIFEST, content | {"published": "known answers"})
    read = read_manifest(tmp_path / "out")
    assert replace(read, published="no") == made
    assert caveat(TINY_ESM2.name, read) == caveat(TINY_ESM2.name, made) != ""
