"""The manual's recipes for formats that other libraries load: each is run, and its file read."""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import plm_embed
from support.campaigns import Campaign, gathered_campaign
from support.manual import blocks


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where vectors.py lies, and recipes are run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def run(campaign: Campaign, library: str) -> dict[str, Any]:
    """Run the recipe that uses a library; return its variables."""
    recipes = [
        block.text.replace("results/esm2_t33_650M_UR50D", str(campaign.results))
        for block in blocks(("docs/exporting.md",))
        if block.language == "python"
    ]
    Path("vectors.py").write_text(recipes[0])
    (recipe,) = [text for text in recipes[1:] if library in text]
    variables: dict[str, Any] = {}
    exec(recipe, variables)
    return variables


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return gathered_campaign(tmp_path_factory.mktemp("recipes"))


@pytest.fixture
def vectors(campaign: Campaign) -> dict[str, np.ndarray]:
    """Vectors by id; of an id that sequences share, the last one."""
    with plm_embed.open(campaign.master) as embeddings:
        frame = embeddings.to_pandas()
        return dict(zip(frame["id"], embeddings.rows(frame["row"]), strict=True))


def test_torch_loads_a_tensor_by_id(folder: Path, campaign: Campaign, vectors: Any) -> None:
    run(campaign, "vectors.pt")
    tensors = torch.load(folder / "vectors.pt", weights_only=True)
    assert tensors.keys() == vectors.keys()
    assert all(np.array_equal(tensors[id], vectors[id].astype(np.float32)) for id in vectors)


def test_torch_loads_fair_esms_files(folder: Path, campaign: Campaign, vectors: Any) -> None:
    run(campaign, "mean_representations")
    for path in (folder / "pt").iterdir():
        record = torch.load(path, weights_only=True)
        mean = record["mean_representations"][33]
        assert np.array_equal(mean, vectors[record["label"]].astype(np.float32))
        assert path.stat().st_size < 3000  # alone, without the others


def test_safetensors_maps_one_tensor(folder: Path, campaign: Campaign) -> None:
    variables = run(campaign, "safetensors")
    emb = load_file(folder / "vectors.safetensors")["emb"]
    np.testing.assert_array_equal(emb, variables["vectors"])


def test_zarr_has_arrays_of_one_height(folder: Path, campaign: Campaign) -> None:
    variables = run(campaign, "import zarr")
    group = variables["zarr"].open_group(folder / "vectors.zarr", mode="r")
    np.testing.assert_array_equal(group["emb"][:], variables["vectors"])
    assert group["id"][:].tolist() == variables["index"]["id"].tolist()
    assert group["emb"].metadata.dimension_names == ("record", "dimension")


def test_faiss_finds_a_vector_by_itself(folder: Path, campaign: Campaign) -> None:
    variables = run(campaign, "import faiss")
    assert 0 in variables["rows"][0] and len(variables["nearest"]) == 58
    with plm_embed.open(campaign.master) as embeddings:
        assert faiss.read_index(str(folder / "vectors.faiss")).ntotal == len(embeddings)
