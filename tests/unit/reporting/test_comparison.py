"""The comparison of models: true neighbors, their agreement, and one selection in all maps."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from plm_embed.reading.open import Embeddings
from plm_embed.reporting import comparison
from plm_embed.reporting.comparison import NEIGHBORS, write_comparison
from plm_embed.reporting.facts import Facts, collect
from support.browser import needs_browser, seen
from support.finished import MODEL

HARNESS = """<!doctype html><body><script>
function look(width) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:900px`;
  frame.src = "comparison.html";
  document.body.append(frame);
  return new Promise(done => frame.onload = () => setTimeout(() => {
    const page = frame.contentDocument, view = frame.contentWindow;
    const find = page.getElementById("find"), tips = [...page.querySelectorAll(".tip")];
    const color = page.getElementById("coloring"), canvases = [...page.querySelectorAll("canvas")];
    color.value = "assembly_id";
    color.dispatchEvent(new view.Event("change"));
    const pixels = () => canvases.map(canvas => canvas.toDataURL());
    const before = pixels();
    find.value = "sp|P11736|CU32_LOCMI".toLowerCase();
    find.dispatchEvent(new view.Event("input"));
    const selected = tips.map(tip => tip.textContent), after = pixels();
    canvases[1].dispatchEvent(new view.PointerEvent("pointerup"));
    done({ width, scroll: page.documentElement.scrollWidth, selected, maps: before.length,
      redrawn: before.filter((image, n) => image !== after[n]).length,
      cleared: tips.map(tip => tip.style.visibility),
      legend: page.querySelectorAll("#legend button").length });
  }, 500));
}
onload = async () => {
  const result = document.createElement("pre");
  const looks = [await look(1280), await look(390)];
  result.textContent = "FOUND" + JSON.stringify(looks) + "END";
  document.body.append(result);
};
</script></body>"""


@pytest.fixture
def models(copy: Path) -> list[Facts]:
    """The finished campaign, and a model whose vectors are others for all but the first rows."""
    first = collect(copy)
    other = Path(shutil.copytree(copy / MODEL, copy / "another & model"))
    master = other / "master_esm2_embeddings.h5"
    with h5py.File(master, "r+") as file:
        del file["checksums"]  # as in masters of earlier versions
        vectors = file["emb"]
        vectors[...] = np.random.default_rng(1).normal(size=vectors.shape)
    return [first, replace(first, folder=other, model=other.name, master=master)]


def nearest(facts: Facts) -> np.ndarray:
    """Mark the neighbors of each vector of a master by a full sort of all cosines."""
    with Embeddings(facts.folder) as embeddings:
        vectors = embeddings.to_numpy().astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    return (-cosines).argsort(axis=1).argsort(axis=1) < NEIGHBORS


def test_models_are_compared_by_the_sequences_that_they_share(
    models: list[Facts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "results" / "comparison.html"
    monkeypatch.setattr(comparison, "BLOCK", 50)
    assert write_comparison(models, page)
    text = page.read_text(encoding="utf-8")
    first, other = (nearest(facts) for facts in models)
    share = 100 * (first & other).sum() / first.sum()
    assert text.count("100.0 %") == 2 and text.count(f">{share:.1f} %<") == 2
    assert 0 < share < 30 and f"it would be {100 * NEIGHBORS / 128:.1f} %" in text
    (data,) = re.findall(r'<script type="application/json" id="map-data">(.*?)</script>', text)
    data = json.loads(data)
    assert len(data["ids"]) == 129 and len(data["maps"]) == 2
    columns = {column["name"] for column in data["columns"]}
    assert columns == {"length", "assembly_id", "protein_name"}
    assert "mean over 129 sequences" in text and "another%20%26%20model/report.html" in text
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(?!data:|#)", text)
    assert page.stat().st_size < 300_000


def test_one_model_or_too_few_sequences_make_no_comparison(
    models: list[Facts], tmp_path: Path
) -> None:
    first, other = models
    page = tmp_path / "comparison.html"
    assert not write_comparison([first], page)
    assert not write_comparison([first, replace(other, rows=0)], page)
    assert not write_comparison([first, replace(other, names=("per_residue_l3",))], page)
    assert other.master
    with h5py.File(other.master, "r+") as file:
        file["emb_keys"][...] = np.array([f"{n:064x}" for n in range(129)], dtype="S64")
    assert not write_comparison(models, page) and not page.exists()


@pytest.mark.workflow
@needs_browser
def test_a_selection_shows_in_every_map(models: list[Facts], tmp_path: Path) -> None:
    write_comparison(models, tmp_path / "comparison.html")
    for look in seen(tmp_path, HARNESS):
        assert look["scroll"] <= look["width"] and look["maps"] == look["redrawn"] == 2
        assert all(words.startswith("sp|P11736|CU32_LOCMI\n") for words in look["selected"])
        assert look["cleared"] == ["hidden", "hidden"] and look["legend"] == 8
