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
from click.testing import CliRunner, Result

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
    for column, to in (("embedding", "parquet"), ("e0", "csv")):
        (folder := tmp_path / column).mkdir()
        master = with_column(campaign, folder, column)
        with pytest.raises(PlmEmbedError, match=f"has a column '{column}' of its own"):
            export(master, to, out)
        assert not out.exists()


def test_ids_in_a_file_keep_the_blanks_that_they_begin_and_end_with(tmp_path: Path) -> None:
    listed = tmp_path / "ids.txt"
    listed.write_bytes("\ufeff a \r\nb\tmore\n\n \t\n c\u2028d".encode())  # a mark, as of Excel
    assert _ids(str(listed)) == [" a ", "b", " c\u2028d"]
    assert _ids("a, b,") == ["a", "b"]


def export_command(campaign: Campaign, output: Path, *options: str) -> Result:
    arguments = ["export", str(campaign.master), str(output), "--to", "csv", *options]
    return CliRunner().invoke(group, arguments)


def test_the_command_takes_ids_from_a_file_or_a_list(campaign: Campaign, tmp_path: Path) -> None:
    listed = tmp_path / "ids.tsv"
    listed.write_text("p2\tmore\n\np3\n", encoding="utf-8")
    for number, ids in enumerate(("p2,p3", str(listed), "p2," * 200 + "p3")):
        path = tmp_path / f"{number}.csv"
        done = export_command(campaign, path, "--ids", ids)
        assert done.exit_code == 0, done.output
        assert set(pl.read_csv(path)["id"]) == {"p2", "p3"}
    done = export_command(campaign, tmp_path / "x", "--ids", "p2,missing")
    assert isinstance(done.exception, UnknownIdError)
    assert "no vector for missing; " in str(done.exception)
    for where, message in (
        (["--where", "function"], "write COLUMN=VALUE"),
        (["--where", "function=a", "--where", "function=b"], "each column once"),
    ):
        done = export_command(campaign, tmp_path / "x", *where)
        assert done.exit_code == 2 and message in done.output


def read_in_r(path: Path) -> list[str]:
    script = Path(__file__).parents[3] / "docs" / "read_in_r.R"
    done = subprocess.run(["Rscript", script, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="apt-get install r-cran-hdf5r")
@pytest.mark.parametrize("to", ["uniprot-h5", "tsv"])
def test_r_reads_vectors(campaign: Campaign, tmp_path: Path, to: Format) -> None:
    shape, names, numbers = read_in_r(exported(campaign, tmp_path, to, ids=["p20", "p30"]))
    assert shape.split()[1:] == ["2", str(DIM)] and set(names.split()) == {"p20", "p30"}
    with plm_embed.open(campaign.master) as embeddings:
        first, second = embeddings.get(["p20", "p30"]).astype(np.float64)
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert [float(word) for word in numbers.split()] == [1, pytest.approx(cosine, abs=1e-4)]


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="apt-get install r-cran-hdf5r")
@pytest.mark.parametrize("ids", [["007", "1e5"], ["007", "NA"]])
def test_r_takes_every_id_for_text(tmp_path: Path, ids: list[str]) -> None:
    path = tmp_path / "vectors.tsv"
    path.write_text(f'"id"\t"name"\t"e0"\t"e1"\n"{ids[0]}"\t"a"\t1\t2\n"{ids[1]}"\t"NA"\t3\t4\n')
    assert read_in_r(path)[1].split() == ids


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
