"""Downloads of published weights: whole and the published ones, or not used at all."""

import json
import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from plm_embed.errors import PlmEmbedError, WeightsError
from plm_embed.inference.weights import prepare
from plm_embed.io.files import sha256_file
from plm_embed.models import registry
from plm_embed.models.registry import Model
from plm_embed.models.weights import Source
from support.checkpoints import TINY_ESM2, random_state, write_fair_esm
from support.families import TINY, source, write_esmc_hub
from support.file_server import REPOSITORY, FileServer, server

__all__ = ["server"]  # a fixture

NAMES = ("config.json", "vocab.txt", "model.safetensors")
"""Files of a folder of the Nucleotide Transformer."""
FILES = ["lm_head.safetensors", "manifest.json", "model.safetensors", "self_test.npz"]


def served_file(server: FileServer, folder: Path) -> Model:
    path = write_fair_esm(folder / "tiny.pt", TINY_ESM2, random_state(TINY_ESM2, 1))
    server.files = {"tiny.pt": path.read_bytes()}
    return replace(TINY_ESM2, url=f"{server.address}/tiny.pt")


def served_folder(
    server: FileServer, monkeypatch: pytest.MonkeyPatch, name: str, files: dict[str, bytes]
) -> Model:
    monkeypatch.setattr(registry, "HUB", server.address)
    server.files = files
    return replace(TINY[name], hub=REPOSITORY, revision="main", files=tuple(files))


def test_a_file_is_downloaded_once(server: FileServer, tmp_path: Path) -> None:
    model, out = served_file(server, tmp_path), tmp_path / "new" / "out"
    with ThreadPoolExecutor(4) as pool:  # one of them works, the others wait
        made = list(pool.map(lambda _: prepare(model, None, out), range(4)))
    assert made == [made[0]] * 4
    digest = sha256_file(tmp_path / "tiny.pt")
    assert made[0].source == Source("fair-esm", digest, url=model.url)
    adopted = prepare(TINY_ESM2, tmp_path / "tiny.pt", tmp_path / "adopted")
    assert made[0].weights_sha256 == adopted.weights_sha256
    assert server.sent == ["tiny.pt"]
    assert sorted(path.name for path in out.iterdir()) == FILES
    assert [path.name for path in out.parent.glob("[!.]*")] == ["out"]


def test_a_folder_of_the_hub_is_downloaded_once(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = torch.load(source("esmc"), weights_only=True)
    path = write_esmc_hub(tmp_path / "model.safetensors", state)
    files = {"model.safetensors": path.read_bytes()}
    model = served_folder(server, monkeypatch, "esmc", files)
    made = prepare(model, None, tmp_path / "out")
    assert made.source.url == f"{server.address}/{REPOSITORY}/resolve/main"
    assert made.weights_sha256 == prepare(model, source("esmc"), tmp_path / "own").weights_sha256
    assert prepare(model, None, tmp_path / "out") == made
    assert server.sent == ["model.safetensors"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_tensors_in_several_files_are_those_of_the_index(
    kind: str, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = source("nt_v1")
    files = {name: (golden / name).read_bytes() for name in NAMES[:2]}
    model = replace(served_folder(server, monkeypatch, "nt_v1", files), sharded=True)
    with pytest.raises(PlmEmbedError, match=r"cannot be downloaded: .*pytorch_model\.bin\.index"):
        prepare(model, None, tmp_path / "out")
    state = load_file(golden / "model.safetensors")
    weight_map = {name: f"{number % 2}-{kind}" for number, name in enumerate(state)}
    server.files[f"{kind}.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    for shard in set(weight_map.values()):
        part = {name: state[name] for name in state if weight_map[name] == shard}
        path = tmp_path / shard
        save_file(part, path) if kind.endswith("safetensors") else torch.save(part, path)
        server.files[shard] = path.read_bytes()
    made = prepare(model, None, tmp_path / "out")
    assert made.weights_sha256 == prepare(model, golden, tmp_path / "own").weights_sha256


def test_another_file_than_the_published_one_is_not_used(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = replace(served_file(server, tmp_path), sha256=("1" * 64,))
    with pytest.raises(PlmEmbedError, match="invalid hash value"):
        prepare(model, None, tmp_path / "out")
    right = replace(model, sha256=(sha256_file(tmp_path / "tiny.pt"),))
    assert prepare(right, None, tmp_path / "out").published == "sha256"

    files = {name: (source("nt_v2") / name).read_bytes() for name in NAMES}
    model = replace(served_folder(server, monkeypatch, "nt_v2", files), sha256=("1" * 64,))
    with pytest.raises(PlmEmbedError, match="its SHA-256 is not the published one\nRun again"):
        prepare(model, None, tmp_path / "hub")
    assert list((tmp_path / "hub").iterdir()) == []
    digest = sha256_file(source("nt_v2") / "model.safetensors")
    right = replace(model, sha256=("1" * 64, digest))
    assert prepare(right, None, tmp_path / "hub").published == "sha256"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"<html>Please accept the terms</html>", "it is a web page. Download the file itself"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "is a pointer of git-lfs"),
        (None, "data/[0-9]+ in it does not match its checksum"),
    ],
)
def test_what_is_no_checkpoint_is_named_and_not_kept(
    content: bytes | None, problem: str, server: FileServer, tmp_path: Path
) -> None:
    model = served_file(server, tmp_path)
    damaged = bytearray(server.files["tiny.pt"])
    damaged[len(damaged) // 2] ^= 1  # in the numbers of a tensor: only a checksum can see it
    server.files["tiny.pt"] = content or bytes(damaged)
    with pytest.raises(WeightsError, match=problem):
        prepare(model, None, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_without_a_source_adopted_weights_do_not_pass_for_the_published_ones(
    server: FileServer, tmp_path: Path
) -> None:
    model = served_file(server, tmp_path)
    tuned = write_fair_esm(tmp_path / "fine_tuned.pt", TINY_ESM2, random_state(TINY_ESM2, 9))
    prepare(model, tuned, tmp_path / "out")
    with pytest.raises(PlmEmbedError, match=f"holds other weights .* than {model.url}"):
        prepare(model, None, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES


def test_without_a_network_the_error_says_what_to_copy_where(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server.address}/absent.pt"
    with pytest.raises(PlmEmbedError) as error:
        prepare(replace(TINY_ESM2, url=url), None, tmp_path / "weights" / "esm2_t2_tiny")
    assert str(error.value) == (
        f"weights: {url} cannot be downloaded: HTTP Error 404: Not Found\n"
        f"Run again; or run `curl -LO {url}` where there is a network, copy absent.pt here, and "
        "name it as `weights`"
    )
    model = served_folder(server, monkeypatch, "esmc", {"config.json": b"{}"})
    with pytest.raises(PlmEmbedError) as error:
        prepare(replace(model, files=("absent",)), None, tmp_path / "weights" / model.name)
    command = str(error.value).partition("`")[2].partition("`")[0]
    assert shlex.split(command)[:3] == ["hf", "download", REPOSITORY]
    with pytest.raises(PlmEmbedError, match="cannot be downloaded; name its file or folder"):
        prepare(replace(TINY_ESM2, url=""), None, tmp_path / "out")
