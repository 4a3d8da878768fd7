"""Exports of whole arrays and tables, and of a part of the records, each read back by the tool that
it is meant for.
"""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import anndata
import duckdb
import h5py
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import plm_embed
from plm_embed.cli.main import group
from plm_embed.cli.reading import _ids
from plm_embed.errors import PlmEmbedError, UnknownIdError
from plm_embed.reading.exports import Format, export
from support.campaigns import DIM, MEAN, Campaign, gathered_campaign, with_column

ALL: tuple[Format, ...] = ("parquet", "csv", "tsv", "npy", "uniprot-h5", "anndata")


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
    elif to == "npy":
        assert pl.read_csv(f"{path}.ids.tsv", separator="\t")["id"].to_list() == wanted
        assert np.load(path).shape == (len(wanted), DIM)
    elif to == "uniprot-h5":
        with h5py.File(path) as file:
            named = {dataset.attrs["original_id"] for dataset in file.values()}
            assert named == set(wanted) and len(file) == len(wanted)
    else:
        assert anndata.read_h5ad(path).obs["id"].tolist() == wanted


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
    with pytest.raises(UnknownIdError, match=r"no vector for nobody; records\.parquet says"):
        export(campaign.master, "npy", out, ids=["p2", "nobody"])
    with pytest.raises(PlmEmbedError, match="no column 'functoin'; did you mean function"):
        export(campaign.master, "npy", out, where={"functoin": "x"})
    with pytest.raises(PlmEmbedError, match="no record has function=x; a value must match"):
        export(campaign.master, "npy", out, where={"function": "x"})
    assert not list(tmp_path.iterdir())
    master = with_column(campaign, tmp_path, "embedding")
    with pytest.raises(PlmEmbedError, match="has a column 'embedding' of its own"):
        export(master, "parquet", out)


def test_ids_in_a_file_keep_the_blanks_that_they_begin_and_end_with(tmp_path: Path) -> None:
    listed = tmp_path / "ids.txt"
    listed.write_bytes("\ufeff a \r\nb\tmore\n\n \t\n c\u2028d".encode())  # a mark, as of Excel
    assert _ids(str(listed)) == [" a ", "b", " c\u2028d"]
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
    arguments = ["export", campaign.master, tmp_path / "x", "--to", "csv", "--ids", "p2,missing"]
    done = CliRunner().invoke(group, list(map(str, arguments)))
    assert isinstance(done.exception, UnknownIdError)
    assert "no vector for missing; " in str(done.exception)
    arguments = ["export", campaign.master, tmp_path / "x", "--to", "csv", "--where", "function"]
    done = CliRunner().invoke(group, list(map(str, arguments)))
    assert done.exit_code == 2 and "write COLUMN=VALUE" in done.output
    arguments[-1:] = ["function=a", "--where", "function=b"]
    done = CliRunner().invoke(group, list(map(str, arguments)))
    assert done.exit_code == 2 and "each column once" in done.output


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


def test_a_column_is_not_replaced_by_vectors(campaign: Campaign, tmp_path: Path) -> None:
    with (
        plm_embed.open(with_column(campaign, tmp_path, "emb")) as embeddings,
        pytest.raises(ValueError, match="emb"),
    ):
        embeddings.to_pandas(vectors=True)


def test_no_dimension_of_a_text_is_called_like_a_column(campaign: Campaign, tmp_path: Path) -> None:
    master = with_column(campaign, tmp_path, "e0")
    with pytest.raises(PlmEmbedError, match="a column 'e0' of its own"):
        export(master, "csv", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_matrices_alone_are_no_pooled_vectors(tmp_path: Path) -> None:
    only = gathered_campaign(tmp_path, fingerprint=replace(MEAN, pooling=("per_residue",)))
    with plm_embed.open(only.master) as embeddings:
        for read in (embeddings.to_anndata, lambda: embeddings[0]):
            with pytest.raises(PlmEmbedError, match=r"per_residue_l3 .*: use per_residue\(id\)"):
                read()
        assert embeddings.to_numpy().shape[1] == embeddings.to_torch().shape[1] == DIM


def test_annotated_data_are_written_and_read_again(campaign: Campaign, tmp_path: Path) -> None:
    with plm_embed.open(campaign.master) as embeddings:
        made, ids, frame = embeddings.to_anndata(), embeddings.ids, embeddings.to_pandas()
    assert len({*ids}) < len(ids)
    # the first of those that share an id keeps it
    firsts = [ids.index(id) == place for place, id in enumerate(ids)]
    assert [name == id for name, id in zip(made.obs_names, ids, strict=True)] == firsts
    made[:9].write_h5ad(tmp_path / "some.h5ad")
    made.write_h5ad(tmp_path / "x.h5ad")
    made.write_zarr(tmp_path / "x.zarr")
    for found in (anndata.read_h5ad(tmp_path / "x.h5ad"), anndata.read_zarr(tmp_path / "x.zarr")):
        assert found.obs_names.tolist() == made.obs_names.tolist() and found.obs_names.is_unique
        np.testing.assert_array_equal(found.X, made.X)
        for column in frame.columns:
            assert found.obs[column].astype(object).fillna("none").tolist() == (
                frame[column].astype(object).fillna("none").tolist()
            )
