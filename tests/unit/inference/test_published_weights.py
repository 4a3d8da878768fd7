"""Weights as published: downloaded whole or not at all, and known by their hashes."""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from plm_embed.errors import PlmEmbedError, WeightsError
from plm_embed.inference.weights import prepare
from plm_embed.io.download import BLOCK
from plm_embed.io.files import sha256_file
from plm_embed.io.json_files import write_sealed
from plm_embed.models import published
from plm_embed.models.manifest import MANIFEST, Source, read_manifest
from plm_embed.models.registry import MODELS, Model
from support.checkpoints import (
    TINY_ESM2,
    random_state,
    write_fair_esm,
    write_hugging_face,
)
from support.file_server import FileServer, server

__all__ = ["server"]  # a fixture

FILES = ["manifest.json", "model.safetensors", "self_test.npz"]


def served_model(server: FileServer, folder: Path) -> Model:
    state = random_state(TINY_ESM2, 1)
    server.content = write_fair_esm(folder / "published.pt", TINY_ESM2, state).read_bytes()
    return replace(TINY_ESM2, urls=(server.url,))


def test_a_model_is_downloaded_once(
    server: FileServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model, out = served_model(server, tmp_path), tmp_path / "out"
    server.cuts = [BLOCK]
    made = prepare(model, None, out)
    assert made.source == Source(
        "fair-esm", hashlib.sha256(server.content).hexdigest(), url=server.url
    )
    assert (
        made.weights_sha256
        == prepare(TINY_ESM2, tmp_path / "published.pt", tmp_path / "adopted").weights_sha256
    )
    assert sorted(path.name for path in out.iterdir()) == FILES
    assert server.asked == ["", f"bytes={BLOCK}-"]
    assert prepare(model, None, out) == made
    assert len(server.asked) == 2
    assert "already there and intact" in caplog.text


def test_without_a_source_adopted_weights_do_not_pass_for_the_published_ones(
    server: FileServer, tmp_path: Path
) -> None:
    model = served_model(server, tmp_path)
    tuned = write_fair_esm(tmp_path / "fine_tuned.pt", TINY_ESM2, random_state(TINY_ESM2, 9))
    prepare(model, tuned, tmp_path / "out")
    with pytest.raises(PlmEmbedError, match=f"holds other weights .* than {server.url}"):
        prepare(model, None, tmp_path / "out")
    assert not (tmp_path / "out" / "esm2_t2_tiny.pt").exists()


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make files the published ones of TINY_ESM2."""

    def publish(*files: Path) -> None:
        digests = {path.suffix: sha256_file(path) for path in files}
        known: dict[str, Any] = {"safetensors": [digests.get(".safetensors", "0" * 64)]}
        known["pt"] = {"sha256": digests.get(".pt", "0" * 64), "bytes": 0}
        table = {
            "peptides": list(published.peptides()),
            "models": {TINY_ESM2.name: known},
            "tokens": {},
        }
        monkeypatch.setattr(published, "_table", lambda: table)

    return publish


def test_the_published_file_is_known_by_its_sha256(
    publish: Callable[..., None], tmp_path: Path
) -> None:
    state = random_state(TINY_ESM2, 1)
    source = write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, state)
    folder = write_hugging_face(tmp_path / "hf", TINY_ESM2, state)
    publish(source, folder / "model.safetensors")
    shutil.copy(source, tmp_path / "renamed.pt")
    for number, copy in enumerate((tmp_path / "renamed.pt", folder)):
        made = prepare(TINY_ESM2, copy, tmp_path / f"out{number}")
        assert (made.published, published.caveat(TINY_ESM2.name, made)) == ("sha256", "")
    other = prepare(
        TINY_ESM2,
        write_hugging_face(tmp_path / "bare", TINY_ESM2, state, prefix=""),
        tmp_path / "out2",
    )
    assert other.weights_sha256 == made.weights_sha256
    assert other.published == "no"
    assert published.caveat(TINY_ESM2.name, other).startswith(
        "not verified as the published weights: not a published"
    )
    # the file itself is then given: it proves what the folder holds, and the proof stays
    for again in (source, tmp_path / "bare"):
        assert prepare(TINY_ESM2, again, tmp_path / "out2").published == "sha256"


def test_manifests_of_earlier_versions(tmp_path: Path) -> None:
    made = prepare(
        TINY_ESM2,
        write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, random_state(TINY_ESM2, 1)),
        tmp_path / "out",
    )
    content = json.loads((tmp_path / "out" / MANIFEST).read_text())
    content.pop("sha256")
    write_sealed(tmp_path / "out" / MANIFEST, content | {"published": "known answers"})
    assert read_manifest(tmp_path / "out") == replace(made, published="known answers")
    # the source alone does not give these tensors
    adapter = {"adapter": {"path": "/a", "sha256": "0" * 64}}
    write_sealed(tmp_path / "out" / MANIFEST, content | adapter)
    with pytest.raises(WeightsError, match=r"of this version \(Unknown field `adapter`\)"):
        read_manifest(tmp_path / "out")


def test_what_ships_of_published_weights_fits_the_models() -> None:
    assert len(published.peptides()) == 3
    table = yaml.safe_load(published.TABLE.read_text())
    for name in table["models"]:
        digests = published.known_files(name)
        assert {len(digest) for digest in digests} == {64}
        assert published.is_published(name, digests)
        assert all(published.is_published(name, [digest]) for digest in digests)
        if "pt" in table["models"][name]:
            assert published.pt_file(name)["sha256"] in digests
    assert not published.is_published("esm2_t48_15B_UR50D", [])
    families = {model.family.name for model in MODELS.values() if model.tokenizer_file}
    assert table["tokens"].keys() == families

    answered = [name for name in MODELS if published.known_answers(name) is not None]
    assert {MODELS[name].family.name for name in answered} == {"esm2", "esmc", "ankh"}
    for name in answered:
        answers = published.known_answers(name)
        assert answers is not None and answers.shape == (3, MODELS[name].dim)
        assert np.isfinite(answers).all() and published.distance(name, answers) == 0
        apart = [published.distance(name, answers[list(o)]) for o in ((1, 2, 0), (2, 0, 1))]
        assert min(apart) > 0.15


def test_a_download_that_is_not_the_published_file_is_refused(
    publish: Callable[..., None], server: FileServer, tmp_path: Path
) -> None:
    model = served_model(server, tmp_path)
    publish(tmp_path / "published.pt")
    right, server.content = (
        server.content,
        write_fair_esm(tmp_path / "other.pt", TINY_ESM2, random_state(TINY_ESM2, 2)).read_bytes(),
    )
    with pytest.raises(
        PlmEmbedError, match=r"has SHA-256 \w{64}; the published file has \w{64}: it was not used"
    ):
        prepare(model, None, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    server.content = right
    assert prepare(model, None, tmp_path / "out").published == "sha256"
    asked = len(server.asked)
    assert prepare(model, None, tmp_path / "out").published == "sha256"
    assert len(server.asked) == asked


def test_a_download_with_a_flipped_bit_is_refused(server: FileServer, tmp_path: Path) -> None:
    model = served_model(server, tmp_path)
    content = bytearray(server.content)
    content[len(content) // 2] ^= 1  # in the numbers of a tensor: only a checksum can see it
    server.content = bytes(content)
    with pytest.raises(
        PlmEmbedError, match=r"damaged \(.*data/\d+ in it is not what its checksum says"
    ):
        prepare(model, None, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_of_two_that_prepare_one_folder_one_waits(server: FileServer, tmp_path: Path) -> None:
    model, out = served_model(server, tmp_path), tmp_path / "new" / "out"
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: prepare(model, None, out), range(4)))
    assert made == [made[0]] * 4
    assert server.asked == [""]
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_download_that_is_no_checkpoint_is_not_kept(server: FileServer, tmp_path: Path) -> None:
    server.content = b"<html>Please accept the terms</html>"
    with pytest.raises(PlmEmbedError, match="was not loaded"):
        prepare(replace(TINY_ESM2, urls=(server.url,)), None, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_the_next_address_is_tried(server: FileServer, tmp_path: Path) -> None:
    model = served_model(server, tmp_path)
    absent = server.url.replace("esm2", "absent")
    assert (
        prepare(replace(model, urls=(absent, server.url)), None, tmp_path / "out").source.url
        == server.url
    )


def test_without_a_network_the_error_says_how_to_stage_the_file(
    server: FileServer, tmp_path: Path
) -> None:
    url = server.url.replace("esm2", "absent")
    with pytest.raises(PlmEmbedError) as error:
        prepare(replace(TINY_ESM2, urls=(url,)), None, tmp_path / "weights" / "esm2_t2_tiny")
    staged = tmp_path / "weights" / "esm2_t2_tiny.pt"
    assert str(error.value) == (
        f"weights: {url} cannot be fetched: HTTP 404 Not Found.\n"
        f"Run again; or fetch it where there is a network: `curl -LO {url}`, copy it to {staged}, "
        f"and set in the config: `weights: {{esm2_t2_tiny: {staged}}}`"
    )
    with pytest.raises(
        PlmEmbedError, match=r"cannot be downloaded: .*weights: \{esm2_t2_tiny: FILE"
    ):
        prepare(replace(TINY_ESM2, urls=()), None, tmp_path / "out")
