"""A weights folder in use: checked whenever it is loaded."""

import errno
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from plm_embed.cli.main import group
from plm_embed.errors import PlmEmbedError
from plm_embed.inference import loading
from plm_embed.inference.weights import prepare
from plm_embed.kernels.devices import choose_device
from plm_embed.models.registry import MODELS
from plm_embed.models.weights import Stored, load, read_manifest, write
from support.checkpoints import DEMO, TINY_ESM2, random_state, write_fair_esm

FILES = ("lm_head.safetensors", "manifest.json", "model.safetensors", "self_test.npz")


def use(folder: Path) -> None:
    """Load a weights folder as an embed job does before it computes."""
    loading.load(folder, choose_device("cpu"), "float32")


@pytest.mark.parametrize("name", FILES)
def test_damage_is_named_and_its_remedy_heals(name: str, tmp_path: Path, prepared: Path) -> None:
    folder = Path(shutil.copytree(prepared, tmp_path / "out"))
    made, path = read_manifest(folder), folder / name
    whole = path.read_bytes()
    place = len(whole) * 2 // 3
    flipped = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
    for damaged in (flipped, whole[:-9], b"", None):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        with pytest.raises(PlmEmbedError) as error:
            use(folder)
        assert str(error.value).startswith(str(path))
        assert f"delete {folder} and run again" in str(error.value)
    command = str(error.value).rpartition("`plm-embed ")[2].partition("`")[0].split()
    shutil.rmtree(folder)
    command += ["--model", made.model, "--source", str(DEMO), "--output", str(folder)]
    done = CliRunner().invoke(group, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    use(folder)
    assert path.read_bytes() == whole or name == "manifest.json"
    assert read_manifest(folder) == made


def test_golden_vectors_are_checked_for_the_self_test_alone(tmp_path: Path, prepared: Path) -> None:
    """The reference path, and so `validate` and `import`, does without them."""
    folder = Path(shutil.copytree(prepared, tmp_path / "out"))
    (folder / "self_test.npz").unlink()
    assert load(folder)[0] == read_manifest(folder)
    with pytest.raises(PlmEmbedError, match=r"self_test\.npz is missing"):
        load(folder, self_test=True)


def test_what_replaces_weights_that_are_being_loaded_is_not_read(tmp_path: Path) -> None:
    state = random_state(TINY_ESM2, 1)
    prepare(TINY_ESM2, write_fair_esm(tmp_path / "esm2.pt", TINY_ESM2, state), tmp_path / "out")
    _, tensors, _ = load(tmp_path / "out")
    (tmp_path / "other").write_bytes(bytes((tmp_path / "out" / "model.safetensors").stat().st_size))
    (tmp_path / "other").replace(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(tensors[name], state[name]) for name in state)


def test_others_may_read_what_the_umask_lets_them_read(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write(tmp_path / "model.safetensors", {"one": Stored.of(torch.zeros(2))})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model.safetensors").stat().st_mode) == 0o644


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_whole_folder_may_be_read_only(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    folder = shutil.copytree(prepared, tmp_path / "shared" / prepared.name)
    opened = Path.open

    def refused(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        if path.is_relative_to(tmp_path) and not mode.startswith("r"):
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, mode, *more, **named)

    monkeypatch.setattr(Path, "open", refused)
    model = MODELS["esm2_t3_untrained"]
    assert prepare(model, DEMO, folder) == read_manifest(folder)
