"""Weights adopted, downloaded, converted, checked."""

import argparse
import hashlib
import itertools
import json
import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import esm
import numpy as np
import pytest
import torch
import yaml
from numpy.typing import NDArray
from safetensors.torch import load_file

from plm_embed.errors import PlmEmbedError
from plm_embed.inference.prepare_weights import prepare
from plm_embed.io.download import BLOCK
from plm_embed.io.files import sha256_file
from plm_embed.models import published
from plm_embed.models.manifest import Manifest, Source, read_manifest
from plm_embed.models.registry import MODELS, Model
from plm_embed.models.weights import load
from support.checkpoints import (
    DEMO,
    DEMO_SEED,
    TINY_ESM1B,
    TINY_ESM2,
    random_state,
    write_demo,
    write_fair_esm,
    write_hugging_face,
)
from support.file_server import FileServer, server

__all__ = ["server"]  # a fixture

FILES = ["manifest.json", "model.safetensors", "self_test.npz"]
GOLDEN = Path(__file__).parents[2] / "data" / "esm2_golden" / "esm2_t3_tiny_random.pt"


@pytest.mark.parametrize("model", [TINY_ESM2, TINY_ESM1B], ids=lambda model: model.name)
def test_equal_tensors_give_an_equal_file_from_every_layout(model: Model, tmp_path: Path) -> None:
    state = random_state(model, 1)
    sources = [
        write_fair_esm(tmp_path / "esm_zip.pt", model, state),
        write_fair_esm(tmp_path / "esm_legacy.pt", model, state, legacy=True),
        write_hugging_face(tmp_path / "hf", model, state),
        write_hugging_face(tmp_path / "hf_bare", model, state, prefix=""),
        write_hugging_face(tmp_path / "hf_shards", model, state, shards=3),
    ]
    made = [prepare(model, source, tmp_path / f"out{i}") for i, source in enumerate(sources)]
    assert len({manifest.weights_sha256 for manifest in made}) == 1
    assert [manifest.source.layout for manifest in made] == ["fair-esm"] * 2 + ["hugging-face"] * 3
    file = tmp_path / "out0" / "model.safetensors"
    assert (made[0].weights_sha256, made[0].bytes) == (sha256_file(file), file.stat().st_size)
    tensors = load_file(file)
    assert tensors.keys() == state.keys()
    assert all(torch.equal(tensors[name], state[name]) for name in state)


def test_the_bytes_of_the_file_are_fixed(tmp_path: Path) -> None:
    """Stores are named by this SHA-256: a change here makes every existing store foreign."""
    state = {name: torch.zeros_like(tensor) for name, tensor in random_state(TINY_ESM2, 1).items()}
    made = prepare(
        TINY_ESM2, write_fair_esm(tmp_path / "zeros.pt", TINY_ESM2, state), tmp_path / "out"
    )
    assert made.weights_sha256 == "c059886a682e6e107d291f775c8a513b80611402df27a6825d8fac56b0030821"


def test_half_precision_sources_keep_their_dtype(tmp_path: Path) -> None:
    state = {name: tensor.bfloat16() for name, tensor in random_state(TINY_ESM2, 1).items()}
    prepare(TINY_ESM2, write_hugging_face(tmp_path / "hf", TINY_ESM2, state), tmp_path / "out")
    _, tensors = load(tmp_path / "out")
    assert all(
        torch.equal(tensors[name], state[name]) and tensors[name].dtype == torch.bfloat16
        for name in state
    )


def test_the_manifest_says_what_is_there_and_where_it_came_from(tmp_path: Path) -> None:
    source = write_fair_esm(tmp_path / "esm1b.pt", TINY_ESM1B, random_state(TINY_ESM1B, 1))
    made = prepare(TINY_ESM1B, source, tmp_path / "out")
    assert made == Manifest(
        model="esm1b_t2_tiny",
        architecture="esm1b",
        layers=2,
        dim=32,
        heads=4,
        max_residues=1022,
        token_dropout=True,
        license="MIT",
        weights_sha256=sha256_file(tmp_path / "out" / "model.safetensors"),
        bytes=(tmp_path / "out" / "model.safetensors").stat().st_size,
        source=Source("fair-esm", sha256_file(source), path=str(source)),
        self_test_sha256=sha256_file(tmp_path / "out" / "self_test.npz"),
        published="no",
    )
    assert read_manifest(tmp_path / "out") == load(tmp_path / "out")[0] == made
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "manifest.json",
        "model.safetensors",
        "self_test.npz",
    ]
    folder = write_hugging_face(tmp_path / "hf", TINY_ESM1B, random_state(TINY_ESM1B, 1))
    lines = "".join(
        f"{sha256_file(folder / name)}  {name}\n" for name in ("config.json", "model.safetensors")
    )
    assert (
        prepare(TINY_ESM1B, folder, tmp_path / "other").source.sha256
        == hashlib.sha256(lines.encode()).hexdigest()
    )


def test_a_second_call_does_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source = write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, random_state(TINY_ESM2, 1))
    first = prepare(TINY_ESM2, str(source), tmp_path / "out")
    os.utime(tmp_path / "out" / "model.safetensors", ns=(1, 1))
    assert prepare(TINY_ESM2, source, tmp_path / "out") == first
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == 1
    assert "already made from" in caplog.text


def test_a_damaged_folder_is_made_whole_and_what_is_right_in_it_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, random_state(TINY_ESM2, 1))
    made = prepare(TINY_ESM2, source, out)
    whole = {path.name: path.read_bytes() for path in out.iterdir()}
    for name, content in whole.items():
        for damage in (
            b"",
            content[:-9],
            content[:-30] + bytes([content[-30] ^ 1]) + content[-29:],
            None,
        ):
            inodes = {
                path.name: path.stat().st_ino
                for path in out.iterdir()
                if path.name != "manifest.json"
            }
            if damage is None:
                (out / name).unlink()
            else:
                (out / name).write_bytes(damage)
            assert prepare(TINY_ESM2, source, out) == made
            assert {path.name: path.read_bytes() for path in out.iterdir()} == whole
            assert all(
                (out / other).stat().st_ino == inode
                for other, inode in inodes.items()
                if other != name
            )


def test_a_folder_never_becomes_other_weights(tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, random_state(TINY_ESM2, 1))
    made = prepare(TINY_ESM2, source, out)
    other = write_fair_esm(tmp_path / "other.pt", TINY_ESM2, random_state(TINY_ESM2, 2))
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in out.iterdir()}
    expected = (
        rf"{out} holds other weights \(esm2_t2_tiny, SHA-256 "
        rf"{made.weights_sha256[:12]}\) than {other}"
    )
    with pytest.raises(PlmEmbedError, match=expected):
        prepare(TINY_ESM2, other, out)
    with pytest.raises(PlmEmbedError, match="holds other weights"):
        prepare(replace(TINY_ESM2, name="esm2_t2_other"), source, out)
    folder = write_hugging_face(tmp_path / "hf", TINY_ESM2, random_state(TINY_ESM2, 1))
    edit_config(folder, token_dropout=False)
    with pytest.raises(PlmEmbedError, match="holds other weights"):
        prepare(TINY_ESM2, folder, out)
    edit_config(folder, token_dropout=True)
    assert prepare(TINY_ESM2, folder, out) == made  # the same weights in another container
    for path, known in before.items():
        assert (
            path.name == "manifest.json" or (path.stat().st_ino, path.stat().st_mtime_ns) == known
        )


def edit_config(folder: Path, **change: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def test_a_failed_conversion_leaves_no_output(tmp_path: Path) -> None:
    source = tmp_path / "esm2.pt"
    source.write_bytes(b"<html>")
    with pytest.raises(PlmEmbedError):
        prepare(TINY_ESM2, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


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
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make files and answers the published ones of TINY_ESM2."""

    def publish(*files: Path, answers: NDArray[np.float32] | None = None) -> None:
        digests = {path.suffix: sha256_file(path) for path in files}
        known: dict[str, Any] = {"safetensors": [digests.get(".safetensors", "0" * 64)]}
        known["pt"] = {"sha256": digests.get(".pt", "0" * 64), "bytes": 0}
        table = {"peptides": list(published.peptides()), "models": {TINY_ESM2.name: known}}
        (tmp_path / "published.yaml").write_text(yaml.safe_dump(table))
        np.savez(tmp_path / "answers.npz", **({} if answers is None else {TINY_ESM2.name: answers}))
        monkeypatch.setattr(published, "TABLE", tmp_path / "published.yaml")
        monkeypatch.setattr(published, "ANSWERS", tmp_path / "answers.npz")

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


def test_the_same_weights_in_another_container_are_known_by_their_answers(
    publish: Callable[..., None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = random_state(TINY_ESM2, 1)
    answers = official_answers(write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, state))
    publish(answers=answers)
    made = prepare(
        TINY_ESM2, write_hugging_face(tmp_path / "hf", TINY_ESM2, state), tmp_path / "hf_out"
    )
    assert made.published == "known answers"
    assert published.caveat(TINY_ESM2.name, made) in caplog.text
    assert (
        "to 3 peptides within 3 %, as weights that were changed a little would too" in caplog.text
    )
    half = {name: tensor.bfloat16() for name, tensor in state.items()}
    source = write_fair_esm(tmp_path / "half.pt", TINY_ESM2, half)
    assert prepare(TINY_ESM2, source, tmp_path / "half_out").published == "known answers"
    for seed, share in ((2, 1.0), (2, 0.1)):  # other weights, and fine-tuned ones
        tuned = {
            name: tensor + share * (other - tensor)
            for (name, tensor), other in zip(
                state.items(), random_state(TINY_ESM2, seed).values(), strict=True
            )
        }
        made = prepare(
            TINY_ESM2, write_fair_esm(tmp_path / "x.pt", TINY_ESM2, tuned), tmp_path / f"out{share}"
        )
        assert made.published == "no"
    # one known answer of three is not enough
    publish(answers=np.stack([answers[0], answers[1], answers[1]]))
    assert prepare(TINY_ESM2, tmp_path / "hf", tmp_path / "out3").published == "no"


@pytest.mark.filterwarnings("ignore:Regression weights not found")
def official_answers(checkpoint: Path) -> NDArray[np.float32]:
    """What fair-esm answers to the peptides, each alone, (3, D)."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        model, alphabet = esm.pretrained.load_model_and_alphabet(str(checkpoint))
    convert, means = alphabet.get_batch_converter(), []
    for peptide in published.peptides():
        with torch.inference_mode():
            states = model.eval()(convert([("", peptide)])[2], repr_layers=[2])["representations"][
                2
            ]
        means.append(states[0, 1:-1].mean(0).numpy())
    return np.stack(means)


def test_what_ships_of_published_weights_fits_the_models() -> None:
    assert len(published.peptides()) == 3
    for name in yaml.safe_load(published.TABLE.read_text())["models"]:
        digests = published.known_files(name)
        assert {len(digest) for digest in digests} == {64}
        assert all(published.is_published(name, [digest]) for digest in digests)
        if MODELS[name].family.name != "esm2":
            continue
        answers = published.known_answers(name)
        assert (
            answers is not None
            and answers.shape == (3, MODELS[name].dim)
            and np.isfinite(answers).all()
        )
        assert published.pt_file(name)["sha256"] in digests
        apart = [
            np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in itertools.permutations(answers, 2)
        ]
        assert min(apart) > 6 * published.TOLERANCE
    assert not published.is_published("esm2_t48_15B_UR50D", [])


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


def test_a_local_checkpoint_is_checked_like_a_download(tmp_path: Path) -> None:
    source = write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, random_state(TINY_ESM2, 1))
    whole = source.read_bytes()
    for damage in (bytes(512), bytes([whole[len(whole) // 2] ^ 1])):
        middle = len(whole) // 2
        source.write_bytes(whole[:middle] + damage + whole[middle + len(damage) :])
        with pytest.raises(
            PlmEmbedError,
            match=r"damaged \(.*data/\d+ in it is not what its checksum says\).\nGet it again",
        ):
            prepare(TINY_ESM2, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


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


def test_the_shipped_demo_is_what_the_builder_makes(tmp_path: Path) -> None:
    model = MODELS["esm2_t3_untrained"]
    shipped = prepare(model, None, tmp_path / "shipped")
    assert prepare(model, DEMO, tmp_path / "shipped") == shipped
    _, tensors = load(tmp_path / "shipped")
    state = random_state(model, DEMO_SEED)
    assert all(torch.equal(tensors[name], state[name]) for name in state)
    built = prepare(model, write_demo(tmp_path / "built.pt"), tmp_path / "built")
    assert shipped.weights_sha256 == built.weights_sha256
    assert shipped.token_dropout
    assert DEMO.stat().st_size < 250_000


def test_a_checkpoint_that_others_made_is_adopted(tmp_path: Path) -> None:
    made = prepare(MODELS["esm2_t3_untrained"], GOLDEN, tmp_path / "out")
    assert made.source.sha256 == "1a5fecfb004982dee64bada5be12d07f9908131541574503fea411d955b42ea8"
    assert made.token_dropout
