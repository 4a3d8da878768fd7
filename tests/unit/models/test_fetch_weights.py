"""Downloads of published folders."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from plm_embed.errors import PlmEmbedError
from plm_embed.inference.weights import prepare
from plm_embed.models import published
from support.families import TINY, source, write_esmc_hub
from support.file_server import FileServer, server

__all__ = ["server"]  # a fixture


def test_a_folder_is_downloaded_once_and_converted(server: FileServer, tmp_path: Path) -> None:
    state = torch.load(source("esmc"), weights_only=True)
    server.content = write_esmc_hub(tmp_path / "hub.safetensors", state).read_bytes()
    hub = server.url.rpartition("/")[0]
    model = replace(TINY["esmc"], hub=hub, files=("model.safetensors",))
    made = prepare(model, None, tmp_path / "out")
    assert made.source.url == hub
    assert made.weights_sha256 == prepare(model, source("esmc"), tmp_path / "own").weights_sha256
    assert not (tmp_path / "out" / "download").exists()
    asked = len(server.asked)
    assert prepare(model, None, tmp_path / "out") == made
    assert len(server.asked) == asked


def test_another_file_than_the_published_one_is_refused_with_what_to_copy_where(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = server.url.rpartition("/")[0]
    model = replace(TINY["esmc"], hub=hub, files=("model.safetensors",))
    monkeypatch.setattr(published, "known_files", lambda _: {"0" * 64})
    with pytest.raises(PlmEmbedError) as error:
        prepare(model, None, tmp_path / "weights" / "esmc_tiny")
    said = str(error.value)
    assert "not that of the published file: it was not used" in said
    assert f"{hub}/model.safetensors" in said
    assert f"weights: {{{model.name}: {tmp_path / 'weights' / 'esmc_tiny-published'}}}" in said
    with pytest.raises(PlmEmbedError, match="cannot be fetched"):
        prepare(replace(model, files=("absent.pt",)), None, tmp_path / "other")


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_tensors_in_several_files_are_those_of_the_index(
    kind: str, server: FileServer, tmp_path: Path
) -> None:
    golden, hub = source("nt_v1"), server.url.rpartition("/")[0]
    files = ("config.json", "vocab.txt")
    model = replace(TINY["nt_v1"], hub=hub, files=files, sharded=True)
    server.files = {name: (golden / name).read_bytes() for name in files}
    with pytest.raises(PlmEmbedError) as error:  # no index
        prepare(model, None, tmp_path / "out")
    assert "pytorch_model.bin.index.json cannot be fetched" in str(error.value)
    assert "config.json and vocab.txt, and in the same way its index of tensors" in str(error.value)

    state = load_file(golden / "model.safetensors")
    weight_map = {name: f"{number % 2}-{kind}" for number, name in enumerate(state)}
    server.files[f"{kind}.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    for shard in set(weight_map.values()):
        part = {name: state[name] for name in state if weight_map[name] == shard}
        path = tmp_path / shard
        save_file(part, path) if kind.endswith("safetensors") else torch.save(part, path)
        server.files[shard] = path.read_bytes()
    missing = server.files.pop(f"1-{kind}")
    with pytest.raises(PlmEmbedError, match=f"1-{kind} cannot be fetched") as error:
        prepare(model, None, tmp_path / "out")
    assert f"{kind}.index.json and 0-{kind} and 1-{kind} to " in str(error.value)
    server.files[f"1-{kind}"] = missing
    made = prepare(model, None, tmp_path / "out")
    assert made.weights_sha256 == prepare(model, golden, tmp_path / "own").weights_sha256
