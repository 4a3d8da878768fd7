"""The map of the report: true places, colors for every value, and every record to be found."""

import base64
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plm_embed.reading.open import Embeddings
from plm_embed.reporting import maps
from plm_embed.reporting.maps import map_data
from support.finished import MODEL


def drawn(results: Path) -> dict[str, Any]:
    folder = results / MODEL
    with Embeddings(folder / "master_esm2_embeddings.h5") as embeddings:
        data = map_data(embeddings, folder / "records.parquet")
    assert data
    return data


def numbers(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind)


def test_places_ids_and_lengths_are_those_of_the_rows(results: Path) -> None:
    data = drawn(results)
    master = results / MODEL / "master_esm2_embeddings.h5"
    index = pq.read_table(master.with_suffix(".parquet"))
    (layout,) = data["maps"]
    with Embeddings(master) as embeddings:
        vectors = embeddings.rows(list(range(len(embeddings))), "emb").astype(np.float32)
    centered = vectors - vectors.mean(axis=0)
    _, values, directions = np.linalg.svd(centered.astype(np.float64))
    share = 100 * values[0] ** 2 / (values**2).sum()
    assert layout["axes"][0] == f"principal component 1 ({share:.0f} %)"
    cells = np.stack([numbers(layout[axis], "<u2") for axis in "xy"], axis=1)
    places = np.array(layout["low"]) + cells / 65535 * np.array(layout["span"])
    expected = np.abs(centered @ directions[:2].T)  # the sign of an axis is free
    assert np.abs(places) == pytest.approx(expected, abs=1e-3)
    first = dict(zip(index["row"].to_pylist()[::-1], index["id"].to_pylist()[::-1], strict=True))
    assert data["ids"] == [first[row] for row in range(len(vectors))]
    lengths = dict(zip(index["row"].to_pylist(), index["length"].to_pylist(), strict=True))
    assert data["columns"][0]["name"] == "length"
    assert data["columns"][0]["numbers"] == [lengths[row] for row in range(len(vectors))]


def test_records_that_share_a_vector_share_what_only_some_have(
    results: Path, tmp_path: Path
) -> None:
    names, file = (
        {3: ["a", "b"], 5: [None, "", "c", "d"], 8: [""]},
        "master_esm2_embeddings.parquet",
    )
    index = pq.read_table(results / MODEL / file)
    of_row = {line["row"]: line for line in index.to_pylist()}
    lines = [
        of_row[row] | {"id": f"{row} {number}", "protein_name": value}
        for row, values in names.items()
        for number, value in enumerate(values)
    ]
    folder = tmp_path / MODEL
    shutil.copytree(results / MODEL, folder, ignore=shutil.ignore_patterns("store"))
    pq.write_table(pa.Table.from_pylist(lines, index.schema), folder / file)
    with Embeddings(folder / "master_esm2_embeddings.h5") as embeddings:
        firsts = maps.first_records(embeddings, np.array([*names]))
    assert firsts.column_names == index.column_names
    assert firsts["id"].to_pylist() == ["3 0", "5 0", "8 0"]
    assert firsts["protein_name"].to_pylist() == ["a", "c", None]


def test_vectors_that_are_no_numbers_spoil_no_map() -> None:
    vectors = np.random.default_rng(1).normal(size=(20, 8)).astype(np.float32)
    vectors[3, 2:6] = np.nan, np.inf, -np.inf, 3e38
    layout, project = maps.component_layout(maps.drawable(vectors))
    assert np.isfinite(project(maps.drawable(vectors))).all() and min(layout["span"]) > 0


def test_every_record_can_be_found(results: Path) -> None:
    data = drawn(results)
    records = pq.read_table(results / MODEL / "records.parquet").to_pylist()
    known = sorted([*data["ids"], *(id for id, _ in data["further"])])
    assert known == sorted(record["id"] or "" for record in records)
    assert data["search"] == ""
    skipped = {id: where for id, where in data["further"] if isinstance(where, str)}
    assert skipped == {r["id"]: "unknown residues" for r in records if r["status"] == "skipped"}
    index = pq.read_table(results / MODEL / "master_esm2_embeddings.parquet").to_pylist()
    rows = {(record["id"], record["row"]) for record in index}
    assert all((id, at) in rows for id, at in data["further"] if not isinstance(at, str))


def test_a_page_that_cannot_hold_all_ids_says_so(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "LETTERS", 100)
    data = drawn(results)
    assert data["search"] == f"plm-embed search {results / MODEL} --id "
    assert 0 < len(data["further"]) < 10


def test_of_many_vectors_some_are_drawn_over_the_density_of_all(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "POINTS", 50)
    monkeypatch.setattr(maps, "FITTED", 40)
    data = drawn(results)
    assert data["words"].startswith("50 of 129 vectors (") and "at random" in data["words"]
    (layout,) = data["maps"]
    density = numbers(layout["density"], "u1").reshape(maps.GRID, maps.GRID)
    assert density.max() == 255
    for x, y in zip(numbers(layout["x"], "<u2"), numbers(layout["y"], "<u2"), strict=True):
        column, row = (min(int(place) * maps.GRID // 65535, maps.GRID - 1) for place in (x, y))
        around = density[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2]
        assert around.max() > 0, "a point lies where vectors were counted"
    assert -1 in [where for _, where in data["further"]], "has a vector that is not drawn"


def test_columns_are_numbers_or_values_with_as_many_codes_as_they_need() -> None:
    count = 300
    table = pa.table({
        "id": [f"p{at}" for at in range(count)],
        "row": range(count),
        "year": [str(1900 + at % 100) if at % 7 else None for at in range(count)],
        "host": [f"host {at % 40}" for at in range(count)],
        "same": ["x"] * count,
    })  # fmt: skip
    year, host = maps.columns_of(table)
    assert year["numbers"][:2] == [None, 1901.0] and year["known"] == 257
    values, codes = host["values"], numbers(host["codes"], "<u2")
    assert [values[code] for code in codes] == table["host"].to_pylist()


def test_two_vectors_make_no_map(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "POINTS", 2)
    with Embeddings(results / MODEL) as embeddings:
        assert map_data(embeddings, results / MODEL / "records.parquet") is None


@pytest.mark.workflow
def test_umap_is_the_map_where_it_is_installed(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # its functions take longer to compile than to run
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    import umap

    monkeypatch.setattr(umap, "UMAP", partial(umap.UMAP, n_epochs=10))  # it takes 500
    monkeypatch.setattr(maps, "WORTH_UMAP", 20)
    (layout,) = drawn(results)["maps"]
    assert layout["axes"] == ["UMAP 1", "UMAP 2"]
    places = np.stack([numbers(layout[axis], "<u2") for axis in "xy"], axis=1)
    assert len(places) == 129 and places.min() == 0 and places.max() == 65535
