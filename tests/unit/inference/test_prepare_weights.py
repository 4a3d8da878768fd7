"""Weights adopted, converted, checked, and known to be the published ones or not."""

import hashlib
import json
import logging
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from plm_embed.errors import PlmEmbedError, WeightsError
from plm_embed.inference.weights import prepare, prepared_weights
from plm_embed.io.files import sha256_file
from plm_embed.io.json_files import write_sealed
from plm_embed.models import registry
from plm_embed.models.registry import MODELS, Model
from plm_embed.models.weights import MANIFEST, Manifest, Source, caveat, load, read_manifest
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

FILES = ["lm_head.safetensors", "manifest.json", "model.safetensors", "self_test.npz"]
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
    first, *others = (manifest.head_sha256 for manifest in made)
    assert first and others == [first, first, None, first]  # without a prefix there is no head
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
    _, tensors, _ = load(tmp_path / "out")
    assert all(
        torch.equal(tensors[name], state[name]) and tensors[name].dtype == torch.bfloat16
        for name in state
    )


def test_the_manifest_says_what_is_there_and_where_it_came_from(tmp_path: Path) -> None:
    """Nothing is left of a process that was killed a day ago, either."""
    left = tmp_path / "out" / f".tmp-{0:016x}-half"
    left.mkdir(parents=True)
    os.utime(left, (0, 0))
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
        roundings=made.roundings,
        published="no",
        head_sha256=sha256_file(tmp_path / "out" / "lm_head.safetensors"),
        folder=str(tmp_path / "out"),
    )
    assert read_manifest(tmp_path / "out") == load(tmp_path / "out")[0] == made
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES
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
    assert "is already there and intact" in caplog.text


def test_a_damaged_folder_is_made_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, random_state(TINY_ESM2, 1))
    made = prepare(TINY_ESM2, source, out)
    whole = {path.name: path.read_bytes() for path in out.iterdir()}
    for name, content in whole.items():
        (out / name).unlink()
        flipped = content[:-30] + bytes([content[-30] ^ 1]) + content[-29:]
        for damage in (None, content[:-9], flipped):
            if damage is not None:
                (out / name).write_bytes(damage)
            assert prepare(TINY_ESM2, source, out) == made
            assert {path.name: path.read_bytes() for path in out.iterdir()} == whole


def test_a_folder_never_becomes_other_weights(tmp_path: Path) -> None:
    out, state = tmp_path / "out", random_state(TINY_ESM2, 1)
    source = write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, state)
    made = prepare(TINY_ESM2, source, out)
    digest = made.weights_sha256[:12]
    before = {path: path.read_bytes() for path in out.iterdir()}
    other = write_fair_esm(tmp_path / "other.pt", TINY_ESM2, random_state(TINY_ESM2, 2))
    folder = write_hugging_face(tmp_path / "hf", TINY_ESM2, state)
    for model, place in (
        (TINY_ESM2, other),
        (TINY_ESM2, folder),
        (replace(TINY_ESM2, name="esm2_t2_other"), source),
    ):
        words = rf"{out} holds other weights \(esm2_t2_tiny, SHA-256 {digest}\) than {place}"
        with pytest.raises(PlmEmbedError, match=words):
            prepare(model, place, out)
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    moved = source.rename(tmp_path / "moved.pt")
    again = prepare(TINY_ESM2, moved, out)
    assert again.source.path == str(moved) and replace(again, source=made.source) == made


def test_files_of_others_are_not_replaced(tmp_path: Path) -> None:
    folder = write_hugging_face(tmp_path / "hf", TINY_ESM2, random_state(TINY_ESM2, 1))
    alone = tmp_path / "alone" / "model.safetensors"  # a name that prepared weights have, too
    alone.parent.mkdir()
    alone.write_bytes((folder / alone.name).read_bytes())
    site = tmp_path / "site" / "manifest.json"  # so has its program
    site.parent.mkdir()
    for name in (site.name, "index.html"):
        site.with_name(name).write_text("{}")
    before = {path: path.read_bytes() for path in (*folder.iterdir(), alone, site)}
    elsewhere = write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, random_state(TINY_ESM2, 1))
    for source, output in (
        *((folder, folder), (alone, alone.parent)),
        *((elsewhere, alone.parent), (elsewhere, site.parent)),
    ):
        with pytest.raises(PlmEmbedError, match=f"{output}: holds other files: .*; choose a new"):
            prepare(TINY_ESM2, source, output)
    assert {path: path.read_bytes() for path in before} == before
    with pytest.raises(PlmEmbedError, match=r"there is no such file; name a campaign's weights"):
        read_manifest(folder)


def test_weights_of_another_shape_than_the_entry_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLM_EMBED_WEIGHTS", str(tmp_path))
    folder = tmp_path / TINY_ESM2.name
    source = write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, random_state(TINY_ESM2, 1))
    made = prepare(TINY_ESM2, source, folder)
    assert prepared_weights(TINY_ESM2, None) == made
    wider = replace(TINY_ESM2, dim=40)
    words = (
        f"{folder} holds esm2_t2_tiny as esm2, 2 layers, width 32, 4 heads, but models.yaml has "
        f"esm2, 2 layers, width 40, 4 heads; correct models.yaml, or delete {folder} and run again"
    )
    for take in (partial(prepared_weights, wider, None), partial(prepare, wider, source, folder)):
        with pytest.raises(PlmEmbedError) as error:
            take()
        assert str(error.value) == words


def test_weights_whose_vectors_are_not_finite_are_refused(tmp_path: Path) -> None:
    """Their numbers are finite, and no device could compute with them."""
    state = random_state(TINY_ESM2, 1)
    state["emb_layer_norm_after.weight"][:] = 3e38
    source = write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, state)
    with pytest.raises(WeightsError, match=r"esm2\.pt was not used: it gives NaN or infinite"):
        prepare(TINY_ESM2, source, tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_local_checkpoint_is_checked_like_a_download(tmp_path: Path) -> None:
    source = write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, random_state(TINY_ESM2, 1))
    whole = source.read_bytes()
    for damage in (bytes(512), bytes([whole[len(whole) // 2] ^ 1])):
        middle = len(whole) // 2
        source.write_bytes(whole[:middle] + damage + whole[middle + len(damage) :])
        with pytest.raises(
            PlmEmbedError,
            match=r"damaged \(.*data/\d+ in it does not match its checksum\).\nGet it again",
        ):
            prepare(TINY_ESM2, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_shipped_demo_is_what_the_builder_makes(tmp_path: Path) -> None:
    model = MODELS["esm2_t3_untrained"]
    shipped = prepare(model, None, tmp_path / "shipped")
    assert prepare(model, DEMO, tmp_path / "shipped") == shipped
    _, tensors, _ = load(tmp_path / "shipped")
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


def test_the_published_file_is_known_by_its_sha256(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = random_state(TINY_ESM2, 1)
    source = write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, state)
    folder = write_hugging_face(tmp_path / "hf", TINY_ESM2, state)
    bare = write_hugging_face(tmp_path / "bare", TINY_ESM2, state, prefix="")
    digests = sha256_file(source), sha256_file(folder / "model.safetensors")
    model = replace(TINY_ESM2, sha256=digests)
    monkeypatch.setitem(registry.MODELS, model.name, model)
    renamed = source.rename(tmp_path / "renamed.pt")
    first, second, other = (
        prepare(model, place, tmp_path / f"out{number}")
        for number, place in enumerate((renamed, folder, bare))
    )
    assert first.weights_sha256 == second.weights_sha256 == other.weights_sha256
    assert (first.published, caveat(model.name, first)) == ("sha256", "")
    assert (second.published, caveat(model.name, second)) == ("sha256", "")
    words = "not verified as the published weights: not a published"
    assert other.published == "no" and caveat(model.name, other).startswith(words)


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
