"""Exports of whole arrays and tables, and of a part of the records, each read back by the tool that
it is meant for.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import faiss
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from safetensors import safe_open

import plm_embed
from plm_embed.cli.main import group
from plm_embed.cli.reading import _ids
from plm_embed.errors import PlmEmbedError, UnknownIdError
from plm_embed.reading.exports.export import Format, export
from support.campaigns import DIM, Campaign, gathered_campaign, with_column

ALL: tuple[Format, ...] = ("parquet", "csv", "tsv", "npy", "zarr", "safetensors", "faiss")


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return gathered_campaign(tmp_path_factory.mktemp("formats"))


@pytest.fixture(scope="module")
def index(campaign: Campaign) -> pa.Table:
    return pq.read_table(campaign.index)


@pytest.fixture(scope="module")
def vectors(campaign: Campaign, index: pa.Table) -> np.ndarray:
    with plm_embed.open(campaign.master) as embeddings:
        return embeddings.rows(index["row"].to_pylist())


def exported(campaign: Campaign, folder: Path, to: Format, **part: object) -> Path:
    export(campaign.master, to, folder / f"out.{to}", **part)
    return folder / f"out.{to}"


def zarr_group(path: Path) -> Any:
    import zarr  # takes as long as a test of some size

    return zarr.open_group(path, mode="r")


def test_tables_with_a_column_of_vectors(
    campaign: Campaign, index: pa.Table, vectors: np.ndarray, tmp_path: Path
) -> None:
    path = exported(campaign, tmp_path, "parquet")
    ids = index["id"].to_pylist()
    by_pandas = pd.read_parquet(path)
    assert by_pandas["id"].tolist() == ids and "function" in by_pandas.columns
    np.testing.assert_array_equal(np.stack(by_pandas["embedding"]), vectors)
    by_polars = pl.read_parquet(path)
    assert by_polars["id"].to_list() == ids
    assert by_polars.schema["embedding"] == pl.Array(pl.Float32, DIM)
    np.testing.assert_array_equal(by_polars["embedding"].to_numpy(), vectors)
    assert pq.read_schema(path).metadata[b"representation"] == b"mean_l3"
    found = duckdb.sql(
        f"SELECT id, array_cosine_similarity(embedding::FLOAT[{DIM}], embedding::FLOAT[{DIM}]),"
        f" embedding FROM '{path}'"
    ).fetchall()
    assert [line[0] for line in found] == ids
    np.testing.assert_allclose([line[1] for line in found], 1, rtol=1e-6)
    np.testing.assert_array_equal([line[2] for line in found], vectors)


@pytest.mark.parametrize(("to", "separator"), [("csv", ","), ("tsv", "\t")])
def test_tables_of_text(
    campaign: Campaign, vectors: np.ndarray, tmp_path: Path, to: Format, separator: str
) -> None:
    path = exported(campaign, tmp_path, to)
    ids = pq.read_table(campaign.index)["id"].to_pylist()
    for frame in (
        pd.read_csv(path, sep=separator),
        pl.read_csv(path, separator=separator).to_pandas(),
    ):
        assert frame["id"].tolist() == ids
        numbers = frame[[f"e{number}" for number in range(DIM)]].to_numpy()
        np.testing.assert_array_equal(numbers.astype(np.float16), vectors)


def test_zarr_reads_arrays_of_one_height(
    campaign: Campaign, index: pa.Table, vectors: np.ndarray, tmp_path: Path
) -> None:
    group = zarr_group(exported(campaign, tmp_path, "zarr"))
    assert group.metadata.zarr_format == 3
    assert group.attrs["model_name"] == campaign.fingerprint.model
    np.testing.assert_array_equal(group["emb"][:], vectors)
    assert group["emb"].dtype == np.float16
    assert group["emb"].metadata.dimension_names == ("record", "dimension")
    for name in ("id", "cache_key"):
        assert group[name][:].tolist() == index[name].to_pylist()


def ids_beside(path: Path) -> list[str]:
    return pl.read_csv(f"{path}.ids.tsv", separator="\t")["id"].to_list()


def test_safetensors_maps_one_tensor(
    campaign: Campaign, index: pa.Table, vectors: np.ndarray, tmp_path: Path
) -> None:
    path = exported(campaign, tmp_path, "safetensors")
    with safe_open(path, framework="np") as file:
        assert file.metadata()["model_name"] == campaign.fingerprint.model
        np.testing.assert_array_equal(file.get_tensor("emb"), vectors)
    assert ids_beside(path) == index["id"].to_pylist()


def test_faiss_finds_each_by_itself(
    campaign: Campaign, index: pa.Table, vectors: np.ndarray, tmp_path: Path
) -> None:
    path = exported(campaign, tmp_path, "faiss")
    asked = vectors.astype(np.float32)
    asked /= np.linalg.norm(asked, axis=1, keepdims=True)
    found = faiss.read_index(str(path))
    cosines, places = found.search(asked, 1)
    np.testing.assert_allclose(cosines, 1, rtol=1e-5)
    rows = index["row"].to_numpy()
    assert (rows[places[:, 0]] == rows).all()  # of records with one sequence the first
    assert ids_beside(path) == index["id"].to_pylist()


@pytest.mark.parametrize("to", ALL)
def test_a_part_of_the_records(
    campaign: Campaign, index: pa.Table, tmp_path: Path, to: Format
) -> None:
    path = exported(campaign, tmp_path, to, ids=["p3", "p2", "p70"])
    wanted = [id for id in index["id"].to_pylist() if id in ("p2", "p3", "p70")]
    if to == "parquet":
        assert pl.read_parquet(path)["id"].to_list() == wanted
    elif to in ("csv", "tsv"):
        found = pl.read_csv(path, separator="," if to == "csv" else "\t")
        assert found["id"].to_list() == wanted
    elif to == "zarr":
        assert zarr_group(path)["id"][:].tolist() == wanted
    else:
        assert ids_beside(path) == wanted
    if to == "npy":
        assert np.load(path).shape == (len(wanted), DIM)


def test_a_part_by_values_of_columns(campaign: Campaign, index: pa.Table, tmp_path: Path) -> None:
    line = next(line for line in index.to_pylist() if line["function"])
    for number, part in enumerate(
        ({"function": line["function"]}, {"function": line["function"], "row": str(line["row"])})
    ):
        path = tmp_path / f"{number}.parquet"
        export(campaign.master, "parquet", path, where=part)
        assert [each["id"] for each in pq.read_table(path).to_pylist()] == [line["id"]]


def test_what_cannot_be_chosen_is_said(campaign: Campaign, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UnknownIdError, match="no vector for nobody; records"):
        export(campaign.master, "npy", out, ids=["p2", "nobody"])
    with pytest.raises(PlmEmbedError, match="no column 'functoin'; did you mean function"):
        export(campaign.master, "npy", out, where={"functoin": "x"})
    with pytest.raises(PlmEmbedError, match="no record is chosen"):
        export(campaign.master, "npy", out, where={"function": "x"})
    several: Any = {"function": ["a", "b"]}
    with pytest.raises(PlmEmbedError, match=r"where: function: \['a', 'b'\] is not one value"):
        export(campaign.master, "npy", out, where=several)
    assert not list(tmp_path.iterdir())
    master = with_column(campaign, tmp_path, "embedding")
    with pytest.raises(PlmEmbedError, match="has a column 'embedding' of its own"):
        export(master, "parquet", out)


def test_ids_keep_the_blanks_that_they_begin_and_end_with(tmp_path: Path) -> None:
    listed = tmp_path / "ids.txt"
    listed.write_bytes("\ufeff a \r\nb\tmore\n\n \t\n c\u2028d".encode())  # a mark, as of Excel
    assert _ids(str(listed)) == [" a ", "b", " c\u2028d"]
    assert _ids(" a ") == [" a "]
    assert _ids("a, b,") == ["a", "b"]


def test_the_command_takes_ids_from_a_file_or_a_list(campaign: Campaign, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("p2\nP\n", encoding="utf-8")
    listed = tmp_path / "ids.tsv"
    listed.write_text("p2\tmore\n\np3\n", encoding="utf-8")
    for number, ids in enumerate(("p2,p3", str(listed), "p2," * 200 + "p3")):
        path = tmp_path / f"{number}.csv"
        arguments = ["export", campaign.master, path, "--to", "csv", "--ids", ids]
        done = CliRunner().invoke(group, list(map(str, arguments)))
        assert done.exit_code == 0, done.output
        assert set(pl.read_csv(path)["id"]) == {"p2", "p3"}
    for ids, said in (
        ("missing.txt", "--ids missing.txt: there is no such file, nor a vector of this id"),
        ("p2,missing.txt", "no vector for missing.txt; records.parquet says"),
    ):
        arguments = ["export", campaign.master, tmp_path / "x", "--to", "csv", "--ids", ids]
        done = CliRunner().invoke(group, list(map(str, arguments)))
        assert isinstance(done.exception, UnknownIdError) and said in str(done.exception)
    arguments = ["export", campaign.master, tmp_path / "x", "--to", "csv", "--ids", tmp_path]
    done = CliRunner().invoke(group, list(map(str, arguments)))
    assert done.exit_code == 2 and "not a file of ids" in done.output
    arguments = ["export", campaign.master, tmp_path / "x", "--to", "csv", "--where", "function"]
    done = CliRunner().invoke(group, list(map(str, arguments)))
    assert done.exit_code == 2 and "write COLUMN=VALUE" in done.output
    arguments[-1:] = ["function=a", "--where", "function=b"]
    done = CliRunner().invoke(group, list(map(str, arguments)))
    assert done.exit_code == 2 and "a column is named twice" in done.output


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="apt-get install r-cran-hdf5r")
@pytest.mark.parametrize("to", ["uniprot-h5", "tsv"])
def test_r_reads_vectors(campaign: Campaign, tmp_path: Path, to: Format) -> None:
    path = exported(campaign, tmp_path, to, ids=["p20", "p30"])
    script = Path(__file__).parents[3] / "docs" / "read_in_r.R"
    command = ["Rscript", str(script), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shape, names, numbers = done.stdout.splitlines()
    assert shape.split()[1:] == ["2", str(DIM)] and set(names.split()) == {"p20", "p30"}
    with plm_embed.open(campaign.master) as embeddings:
        first, second = embeddings.get(["p20", "p30"]).astype(np.float64)
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert [float(word) for word in numbers.split()] == [1, pytest.approx(cosine, abs=1e-4)]


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="apt-get install r-cran-hdf5r")
def test_r_takes_every_id_for_text(tmp_path: Path) -> None:
    path = tmp_path / "vectors.tsv"
    path.write_text('"id"\t"name"\t"e0"\t"e1"\n"007"\t"a"\t1\t2\n"1e5"\t"NA"\t3\t4\n')
    script = Path(__file__).parents[3] / "docs" / "read_in_r.R"
    for wanted in (["007", "1e5"], ["007", "NA"]):
        path.write_text(path.read_text().replace("1e5", wanted[1]))
        done = subprocess.run(
            ["Rscript", str(script), str(path)], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[1].split() == wanted


@pytest.mark.parametrize(("to", "package"), [("faiss", "faiss-cpu"), ("zarr", "zarr")])
def test_a_format_whose_library_is_missing_says_what_to_install(
    campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: Format, package: str
) -> None:
    monkeypatch.setitem(sys.modules, to, None)
    words = rf"{package} is not installed: pip install 'plm-embed\[{to}\]'"
    with pytest.raises(PlmEmbedError, match=words):
        export(campaign.master, to, tmp_path / "out")
    assert not list(tmp_path.iterdir())
