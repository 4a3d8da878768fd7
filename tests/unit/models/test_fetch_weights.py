"""Downloads of published folders."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from plm_embed.errors import PlmEmbedError
from plm_embed.inference.prepare_weights import prepare
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
