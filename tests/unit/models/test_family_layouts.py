"""The published layouts of the families are read into the same tensors; what is wrong is named."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from plm_embed.errors import PlmEmbedError
from plm_embed.models.registry import MODELS
from support.checkpoints import Checkpoint, read
from support.families import TINY, source, write_dnabert_s, write_esmc_hub, write_esmc_native


def equal(one: Checkpoint, other: Checkpoint) -> bool:
    names = one.tensors.keys() == other.tensors.keys()
    return names and all(torch.equal(one.tensors[n], other.tensors[n]) for n in one.tensors)


def test_three_layouts_of_esm_c_hold_the_same_tensors(tmp_path: Path) -> None:
    model = TINY["esmc"]
    package = read(source("esmc"), model)
    state = torch.load(source("esmc"), weights_only=True)
    assert equal(read(write_esmc_hub(tmp_path / "model.safetensors", state), model), package)
    assert equal(read(tmp_path, model), package)  # the folder, which has no config.json
    native = write_esmc_native(tmp_path / "native", state, model.layers)
    assert equal(read(native, model), package)


def test_dnabert_s_is_published_without_prefix_and_head(tmp_path: Path) -> None:
    model = TINY["dnabert"]
    found = read(write_dnabert_s(tmp_path / "published"), model)
    assert equal(found, read(source("dnabert"), model))


@pytest.mark.parametrize("name", ["prott5", "ankh"])
def test_of_a_full_t5_only_the_encoder_is_taken(name: str, tmp_path: Path) -> None:
    model = TINY[name]
    encoder = read(source(name), model)
    state = torch.load(source(name) / "pytorch_model.bin", weights_only=True)
    state["decoder.block.0.layer.0.SelfAttention.q.weight"] = torch.ones(3, 3)
    state["lm_head.weight"] = torch.ones(128, 32)
    del state["encoder.embed_tokens.weight"]
    folder = Path(shutil.copytree(source(name), tmp_path / "full"))
    torch.save(state, folder / "pytorch_model.bin")
    assert equal(read(folder, model), encoder)
    save_file({n: t.clone() for n, t in state.items()}, folder / "model.safetensors")
    (folder / "pytorch_model.bin").unlink()
    assert equal(read(folder, model), encoder)


def test_pickles_in_shards_are_read(tmp_path: Path) -> None:
    state = torch.load(source("protbert") / "pytorch_model.bin", weights_only=True)
    names = sorted(state)
    files = {n: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, n in enumerate(names)}
    for file in set(files.values()):
        torch.save({n: state[n] for n in names if files[n] == file}, tmp_path / file)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    shutil.copy(source("protbert") / "config.json", tmp_path)
    model = TINY["protbert"]
    assert equal(read(tmp_path, model), read(source("protbert"), model))
    (tmp_path / files[names[0]]).unlink()
    with pytest.raises(PlmEmbedError, match=r"lacks pytorch_model-00001-of-00002\.bin"):
        read(tmp_path, model)


def edited(name: str, folder: Path, **state: torch.Tensor) -> Path:
    """A copy of a golden folder whose file holds these tensors too."""
    copy = Path(shutil.copytree(source(name), folder / "edited", dirs_exist_ok=True))
    held = torch.load(copy / "pytorch_model.bin", weights_only=True)
    torch.save(held | state, copy / "pytorch_model.bin")
    return copy


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    wrong = edited("prott5", tmp_path, **{"encoder.new.weight": torch.ones(1)})
    with pytest.raises(
        PlmEmbedError, match=r"has encoder\.new\.weight, which no name in the family"
    ):
        read(wrong, TINY["prott5"])
    wrong = edited("prott5", tmp_path / "b", **{"shared.weight": torch.ones(128, 32).half()})
    with pytest.raises(PlmEmbedError, match=r"two different tensors for embed_tokens\.weight"):
        read(wrong, TINY["prott5"])
    with pytest.raises(PlmEmbedError, match=r"prott5_tiny: it says feed_forward_proj: 'gated"):
        read(source("ankh"), TINY["prott5"])
    with pytest.raises(PlmEmbedError, match=r"an unknown model .* asked for is esmc_300m"):
        read(source("esmc"), MODELS["esmc_300m"])
    torch.save([1, 2], tmp_path / "list.bin")
    with pytest.raises(PlmEmbedError, match="holds no tensors by name"):
        read(tmp_path / "list.bin", TINY["prott5"])
