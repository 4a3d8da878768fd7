"""Weights adopted, downloaded, converted, checked."""

import hashlib
import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from checkpoints import (
    DEMO,
    DEMO_SEED,
    TINY_ESM1B,
    TINY_ESM2,
    random_state,
    write_demo,
    write_fair_esm,
    write_hugging_face,
)
from plm_embed.download import BLOCK
from plm_embed.errors import UserError
from plm_embed.files import sha256_file
from plm_embed.models import MODELS, Model
from plm_embed.weights import Manifest, Source, load, prepare, read_manifest
from test_download import FileServer, server

__all__ = ["server"]  # a fixture

GOLDEN = Path(__file__).parents[2] / "shared" / "data" / "esm2_golden" / "esm2_t3_tiny_random.pt"


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
    assert len({manifest.sha256 for manifest in made}) == 1
    assert [manifest.source.layout for manifest in made] == ["fair-esm"] * 2 + ["hugging-face"] * 3
    file = tmp_path / "out0" / "model.safetensors"
    assert (made[0].sha256, made[0].bytes) == (sha256_file(file), file.stat().st_size)
    tensors = load_file(file)
    assert tensors.keys() == state.keys()
    assert all(torch.equal(tensors[name], state[name]) for name in state)


def test_the_bytes_of_the_file_are_fixed(tmp_path: Path) -> None:
    """Stores are named by this SHA-256: a change here makes every existing store foreign."""
    state = {name: torch.zeros_like(tensor) for name, tensor in random_state(TINY_ESM2, 1).items()}
    made = prepare(TINY_ESM2, write_fair_esm(tmp_path / "zeros.pt", TINY_ESM2, state), tmp_path / "out")
    assert made.sha256 == "c059886a682e6e107d291f775c8a513b80611402df27a6825d8fac56b0030821"


def test_half_precision_sources_keep_their_dtype(tmp_path: Path) -> None:
    state = {name: tensor.bfloat16() for name, tensor in random_state(TINY_ESM2, 1).items()}
    prepare(TINY_ESM2, write_hugging_face(tmp_path / "hf", TINY_ESM2, state), tmp_path / "out")
    _, tensors = load(tmp_path / "out")
    assert all(torch.equal(tensors[name], state[name]) and tensors[name].dtype == torch.bfloat16 for name in state)


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
        licence="MIT",
        sha256=sha256_file(tmp_path / "out" / "model.safetensors"),
        bytes=(tmp_path / "out" / "model.safetensors").stat().st_size,
        source=Source("fair-esm", sha256_file(source), path=str(source)),
    )
    assert read_manifest(tmp_path / "out") == load(tmp_path / "out")[0] == made
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["manifest.json", "model.safetensors"]
    folder = write_hugging_face(tmp_path / "hf", TINY_ESM1B, random_state(TINY_ESM1B, 1))
    lines = "".join(f"{sha256_file(folder / name)}  {name}\n" for name in ("config.json", "model.safetensors"))
    assert prepare(TINY_ESM1B, folder, tmp_path / "out").source.sha256 == hashlib.sha256(lines.encode()).hexdigest()


def test_a_second_call_does_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source = write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, random_state(TINY_ESM2, 1))
    first = prepare(TINY_ESM2, str(source), tmp_path / "out")
    os.utime(tmp_path / "out" / "model.safetensors", ns=(1, 1))
    assert prepare(TINY_ESM2, source, tmp_path / "out") == first
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == 1
    assert "already made from" in caplog.text


def test_another_source_model_or_a_damaged_output_is_converted_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, random_state(TINY_ESM2, 1))
    first = prepare(TINY_ESM2, source, out)
    write_fair_esm(source, TINY_ESM2, random_state(TINY_ESM2, 2))
    second = prepare(TINY_ESM2, source, out)
    assert second.sha256 != first.sha256
    for damage in (b"", (out / "model.safetensors").read_bytes()[:-1] + b"\0"):
        (out / "model.safetensors").write_bytes(damage)
        assert prepare(TINY_ESM2, source, out) == second
        load(out)
    (out / "model.safetensors").unlink()
    (out / "manifest.json").write_text("{")
    assert prepare(TINY_ESM2, source, out) == second
    other = replace(TINY_ESM2, name="esm2_t2_other")
    assert prepare(other, source, out).model == "esm2_t2_other"


def test_load_checks_size_and_sha256(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(TINY_ESM2, write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, random_state(TINY_ESM2, 1)), out)
    file = out / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-4] + b"\0\0\0\0")
    with pytest.raises(
        UserError, match=r"has SHA-256 \w{64}, its manifest says \w{64}.*\n?.*plm-embed weights --model"
    ):
        load(out)
    load(out, verify=False)
    file.write_bytes(whole[:-4])
    with pytest.raises(UserError, match=r"bytes, its manifest says"):
        load(out, verify=False)
    file.unlink()
    with pytest.raises(UserError, match="is missing"):
        load(out)
    (out / "manifest.json").write_text(json.dumps({"model": "esm2"}))
    with pytest.raises(UserError, match="is not a manifest of weights"):
        load(out)
    with pytest.raises(UserError, match=r"cannot be read \(No such file"):
        load(tmp_path / "absent")


def test_a_failed_conversion_leaves_no_output(tmp_path: Path) -> None:
    source = tmp_path / "esm2.pt"
    source.write_bytes(b"<html>")
    with pytest.raises(UserError):
        prepare(TINY_ESM2, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def served_model(server: FileServer, folder: Path, *, md5: str | None = None) -> Model:
    state = random_state(TINY_ESM2, 1)
    server.content = write_fair_esm(folder / "published.pt", TINY_ESM2, state).read_bytes()
    return replace(TINY_ESM2, urls=(server.url,), md5=md5)


def test_a_model_is_downloaded_once(server: FileServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    model, out = served_model(server, tmp_path), tmp_path / "out"
    server.cuts = [BLOCK]
    made = prepare(model, None, out)
    assert made.source == Source("fair-esm", hashlib.sha256(server.content).hexdigest(), url=server.url)
    assert made.sha256 == prepare(TINY_ESM2, tmp_path / "published.pt", tmp_path / "adopted").sha256
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "model.safetensors"]
    assert server.asked == ["", f"bytes={BLOCK}-"]
    assert prepare(model, None, out) == made
    assert len(server.asked) == 2
    assert "already there and intact" in caplog.text


def test_without_a_source_adopted_weights_do_not_pass_for_the_published_ones(
    server: FileServer, tmp_path: Path
) -> None:
    model = served_model(server, tmp_path)
    tuned = write_fair_esm(tmp_path / "fine_tuned.pt", TINY_ESM2, random_state(TINY_ESM2, 9))
    adopted = prepare(model, tuned, tmp_path / "out")
    assert prepare(model, None, tmp_path / "out").sha256 != adopted.sha256


def test_a_download_is_checked_against_a_published_checksum(server: FileServer, tmp_path: Path) -> None:
    model = served_model(server, tmp_path, md5="0" * 32)
    with pytest.raises(UserError, match=r"has MD5 \w{32}; the published file has 0{32}"):
        prepare(model, None, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    right = hashlib.md5(server.content).hexdigest()
    prepare(replace(model, md5=right), None, tmp_path / "out")


def test_a_download_with_a_flipped_bit_is_refused(server: FileServer, tmp_path: Path) -> None:
    model = served_model(server, tmp_path)
    content = bytearray(server.content)
    content[len(content) // 2] ^= 1  # in the numbers of a tensor: only a checksum can see it
    server.content = bytes(content)
    with pytest.raises(UserError, match=r"arrived damaged: .*data/"):
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
    with pytest.raises(UserError, match="was not loaded"):
        prepare(replace(TINY_ESM2, urls=(server.url,)), None, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_the_next_address_is_tried(server: FileServer, tmp_path: Path) -> None:
    model = served_model(server, tmp_path)
    absent = server.url.replace("esm2", "absent")
    assert prepare(replace(model, urls=(absent, server.url)), None, tmp_path / "out").source.url == server.url


def test_without_a_network_the_error_says_how_to_stage_the_file(server: FileServer, tmp_path: Path) -> None:
    url = server.url.replace("esm2", "absent")
    with pytest.raises(UserError) as error:
        prepare(replace(TINY_ESM2, urls=(url,)), None, tmp_path / "weights" / "esm2_t2_tiny")
    staged = tmp_path / "weights" / "esm2_t2_tiny.pt"
    assert str(error.value) == (
        f"weights: {url} cannot be fetched: HTTP 404 Not Found.\n"
        f"Fetch it where there is a network: curl -L -C - -o {staged} {url}\n"
        f"and set in the config: `weights: {staged}`"
    )
    with pytest.raises(UserError, match="esm2_t3_untrained cannot be downloaded"):
        prepare(MODELS["esm2_t3_untrained"], None, tmp_path / "out")


def test_the_shipped_demo_is_what_the_builder_makes(tmp_path: Path) -> None:
    model = MODELS["esm2_t3_untrained"]
    shipped = prepare(model, DEMO, tmp_path / "shipped")
    _, tensors = load(tmp_path / "shipped")
    state = random_state(model, DEMO_SEED)
    assert all(torch.equal(tensors[name], state[name]) for name in state)
    assert shipped.sha256 == prepare(model, write_demo(tmp_path / "built.pt"), tmp_path / "built").sha256
    assert shipped.token_dropout
    assert DEMO.stat().st_size < 250_000


@pytest.mark.skipif(not GOLDEN.exists(), reason="an extra case where the shared test data lies beside the repository")
def test_a_checkpoint_that_others_made_is_adopted(tmp_path: Path) -> None:
    made = prepare(MODELS["esm2_t3_untrained"], GOLDEN, tmp_path / "out")
    assert made.source.sha256 == "1a5fecfb004982dee64bada5be12d07f9908131541574503fea411d955b42ea8"
    assert made.token_dropout
