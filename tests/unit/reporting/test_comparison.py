"""The comparison of models: true neighbors, their agreement, and one selection in all maps."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_embed.reporting import comparison
from plm_embed.reporting.comparison import NEIGHBORS, agreement, neighbors, write_comparison
from plm_embed.reporting.facts import Facts, collect
from support.browser import needs_browser, seen
from support.finished import MODEL

HARNESS = """<!doctype html><body><script>
onload = () => {
  const frame = document.createElement("iframe");
  frame.style.cssText = "width:WIDTHpx;height:900px";
  frame.src = "comparison.html";
  frame.onload = () => setTimeout(() => {
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
    const seen = { scroll: page.documentElement.scrollWidth, selected, maps: before.length,
      redrawn: before.filter((image, n) => image !== after[n]).length,
      cleared: tips.map(tip => tip.style.visibility),
      legend: page.querySelectorAll("#legend button").length };
    const result = document.createElement("pre");
    result.textContent = "FOUND" + JSON.stringify(seen) + "END";
    document.body.append(result);
  }, 500);
  document.body.append(frame);
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


@given(st.integers(NEIGHBORS + 1, 60), st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_neighbors_are_those_of_a_full_sort(count: int, dim: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "BLOCK", 16)
        near_rows = neighbors(vectors)
    for row, marks in enumerate(near_rows):
        near = np.flatnonzero(marks)
        cosine = unit @ unit[row]
        assert row not in near and len(near) == NEIGHBORS
        kept = np.sort(np.delete(cosine, row))[::-1][:NEIGHBORS]
        assert np.sort(cosine[near])[::-1] == pytest.approx(kept, abs=1e-5)


def test_agreement_is_whole_with_itself_and_as_chance_has_it_with_noise() -> None:
    random = np.random.default_rng(2)
    first, second = (neighbors(random.normal(size=(400, 64)).astype(np.float32)) for _ in range(2))
    assert agreement(first, first) == 1
    assert agreement(first, second) == pytest.approx(NEIGHBORS / 399, abs=0.02)


def test_models_are_compared_by_the_sequences_that_they_share(
    models: list[Facts], tmp_path: Path
) -> None:
    page = tmp_path / "results" / "comparison.html"
    assert write_comparison(models, page)
    text = page.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="map-data">(.*?)</script>', text)
    assert found
    data = json.loads(found[1])
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
@pytest.mark.parametrize("width", [1280, 390])
def test_a_selection_shows_in_every_map(models: list[Facts], tmp_path: Path, width: int) -> None:
    write_comparison(models, tmp_path / "comparison.html")
    looked = seen(tmp_path, HARNESS.replace("WIDTH", str(width)))
    assert looked["scroll"] <= width and looked["maps"] == looked["redrawn"] == 2
    assert all(words.startswith("sp|P11736|CU32_LOCMI\n") for words in looked["selected"])
    assert looked["cleared"] == ["hidden", "hidden"] and looked["legend"] == 8
