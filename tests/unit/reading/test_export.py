"""Exports of all records and of some, each read back by the tools that it is meant for."""

import csv
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import anndata
import duckdb
import h5py
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import plm_embed
from plm_embed.cli.main import group
from plm_embed.errors import PlmEmbedError, UnknownIdError
from plm_embed.keys import key
from plm_embed.reading import exports
from plm_embed.reading.exports import Format, export
from support.campaigns import (
    DIM,
    EVERYTHING,
    MEAN,
    Campaign,
    gathered_campaign,
    vectors,
    with_column,
)

LONG = "L" * 1200
ODD_IDS = ["P12345", "A/duck/1/99(H1N1)", "a%2Fb", LONG, LONG + "x", "..", "", "twice", "twice"]
ODD_IDS += ["same", "same", "流感", "n\0ul"]
SHARED = {"P12345", "same"}  # of one sequence
SEQUENCES = [
    "MKTAYIAK" if id in SHARED else "MKV" + letter * (41 + number)
    for number, (id, letter) in enumerate(zip(ODD_IDS, "ACDEFGHIKLMNP", strict=True))
]
Read = tuple[list[str], np.ndarray]
"""Ids and vectors."""


def records_of(ids: list[str], sequences: list[str]) -> list[dict[str, Any]]:
    accepted = {"status": "accepted", "reason": None, "detail": None, "events": ""}
    return [
        {"source": "inputs/a.fasta", "number": number, "id": id, "header": id, **accepted}
        | {"function": None if number % 2 else "f"}
        | {"sequence": sequence, "key": key(sequence), "length": len(sequence)}
        for number, (id, sequence) in enumerate(zip(ids, sequences, strict=True), start=1)
    ]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """Records with odd ids. `twice` has two sequences, `same` one, which it has in common with
    P12345.
    """
    records = records_of(ODD_IDS, SEQUENCES)
    return gathered_campaign(tmp_path_factory.mktemp("x"), fingerprint=EVERYTHING, records=records)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return gathered_campaign(tmp_path_factory.mktemp("formats"))


def lines_of(campaign: Campaign) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = pq.read_table(campaign.index).to_pylist()
    return lines


def vector(line: dict[str, Any], name: str = "mean_l2") -> np.ndarray:
    """The stored vector of a record with an odd id."""
    (sequence,) = {text for text in SEQUENCES if key(text) == line["cache_key"]}
    return vectors(sequence, EVERYTHING)[name].astype(np.float16)


def table_of(path: Path) -> list[dict[str, str]]:
    """Read a table beside an export."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def names_of(output: Path) -> dict[tuple[str, int], str]:
    """Name by id and number, as the map beside an export has them."""
    lines = table_of(output.with_name(f"{output.name}.names.tsv"))
    return {(line["id"], int(line["number"])): line["name"] for line in lines}


def by_pandas(path: Path) -> Read:
    frame = pd.read_parquet(path)
    return frame["id"].tolist(), np.stack(frame["embedding"])


def by_polars(path: Path) -> Read:
    frame = pl.read_parquet(path)
    assert frame.schema["embedding"] == pl.Array(pl.Float32, DIM)
    return frame["id"].to_list(), frame["embedding"].to_numpy()


def by_duckdb(path: Path) -> Read:
    array = f"embedding::FLOAT[{DIM}]"
    query = f"SELECT id, array_cosine_similarity({array}, {array}), embedding FROM '{path}'"
    ids, cosines, numbers = zip(*duckdb.sql(query).fetchall(), strict=True)
    np.testing.assert_allclose(cosines, 1, rtol=1e-6)
    return list(ids), np.array(numbers)


def of_text(separator: str, read: Callable[..., Any]) -> Callable[[Path], Read]:
    def read_text(path: Path) -> Read:
        frame = read(path, separator=separator)
        return list(frame["id"]), frame[[f"e{number}" for number in range(DIM)]].to_numpy()

    return read_text


def by_numpy(path: Path) -> Read:
    array = np.load(path, mmap_mode="r")
    assert isinstance(array, np.memmap)
    return [line["id"] for line in table_of(path.with_name(f"{path.name}.ids.tsv"))], array


def by_anndata(path: Path) -> Read:
    data = anndata.read_h5ad(path)
    assert data.obs_names.is_unique
    return data.obs.get("id", data.obs_names).tolist(), data.X


def read_csv(path: Path, separator: str) -> pd.DataFrame:
    return pd.read_csv(path, sep=separator)


READERS: dict[Format, list[Callable[[Path], Read]]] = {
    "parquet": [by_pandas, by_polars, by_duckdb],
    "csv": [of_text(",", read_csv), of_text(",", pl.read_csv)],
    "tsv": [of_text("\t", read_csv), of_text("\t", pl.read_csv)],
    "npy": [by_numpy],
    "anndata": [by_anndata],
}


@pytest.mark.parametrize("to", READERS)
def test_tools_read_all_records_and_some(campaign: Campaign, tmp_path: Path, to: Format) -> None:
    lines, some = lines_of(campaign), ["p3", "p2", "p70"]
    with plm_embed.open(campaign.master) as embeddings:
        for ids in (None, some):
            chosen = [line for line in lines if ids is None or line["id"] in ids]
            export(campaign.master, to, path := tmp_path / f"{ids is None}.{to}", ids=ids)
            expected = embeddings.rows([line["row"] for line in chosen])
            for read in READERS[to]:
                names, numbers = read(path)
                assert names == [line["id"] for line in chosen]
                np.testing.assert_array_equal(numbers.astype(np.float16), expected)


def test_h5py_reads_it_as_it_reads_uniprots(odd: Campaign, tmp_path: Path) -> None:
    output = tmp_path / "per-protein.h5"
    export(odd.master, "uniprot-h5", output)
    renamed, lines = names_of(output), lines_of(odd)
    with h5py.File(output, "r") as file:
        assert file.attrs["model_name"] == EVERYTHING.model
        stored = {name: (data[:], data.attrs["original_id"]) for name, data in file.items()}
    assert len(stored) == len(ODD_IDS) - 1  # `same` is one dataset
    for line in lines:
        values, id = stored[renamed.get((line["id"], line["number"]), line["id"])]
        np.testing.assert_array_equal(values, vector(line))
        assert id == line["id"].replace("\0", "%00") and values.dtype == np.float16
    assert {"A%2Fduck%2F1%2F99(H1N1)", "流感"} < {*stored} and "P12345" not in renamed.values()
    assert renamed["", 7] == "a.fasta:7"
    long = {renamed[LONG, 4], renamed[f"{LONG}x", 5]}
    assert len(long) == 2 and all(len(name) < 1000 and LONG.startswith(name[:900]) for name in long)
    assert ("twice", 8) not in renamed and renamed["twice", 9] == "twice.2"  # the first keeps it
    plain = tmp_path / "plain.h5"
    assert export(odd.master, "uniprot-h5", plain, ids=["P12345"])[1] == [plain]
    matrices = tmp_path / "per-residue.h5"
    export(odd.master, "uniprot-h5", matrices, "per_residue_l3")
    with h5py.File(matrices) as file:
        for line in lines:
            values = file[renamed.get((line["id"], line["number"]), line["id"])][:]
            np.testing.assert_array_equal(values, vector(line, "per_residue_l3"))


def test_ids_that_sequences_share_get_numbers(tmp_path: Path) -> None:
    ids = ["p", "p", "p", "p.2", "p.2", "p"]
    sequences = ["MKV", "MKVL", "MKV", "MKVLA", "MKVL", "MKVLAA"]
    campaign = gathered_campaign(tmp_path, records=records_of(ids, sequences))
    export(campaign.master, "uniprot-h5", output := tmp_path / "out.h5")
    renamed = names_of(output)
    assert ("p", 1) not in renamed  # the first in the input keeps it
    with h5py.File(output) as file:
        assert len(file) == 5  # the third record is the first again
        for number in (1, 2, 4, 5, 6):
            id, sequence = ids[number - 1], sequences[number - 1]
            name = renamed.get((id, number), id)
            assert file[name].attrs["original_id"] == id and name.startswith(id)
            expected = vectors(sequence, MEAN)["mean_l3"].astype(np.float16)
            np.testing.assert_array_equal(file[name][:], expected)


def test_arrays_and_tables_say_what_they_hold(odd: Campaign, tmp_path: Path) -> None:
    output, lines = tmp_path / "vectors.npy", lines_of(odd)
    beside = tmp_path / "vectors.npy.ids.tsv"
    assert export(odd.results, "npy", output, "max_l3") == (len(lines), [output, beside])
    np.testing.assert_array_equal(
        np.load(output), np.stack([vector(line, "max_l3") for line in lines])
    )
    names = ("id", "cache_key")
    assert table_of(beside) == [{name: line[name] for name in names} for line in lines]
    export(odd.master, "parquet", path := tmp_path / "vectors.parquet")
    schema = pq.read_schema(path)
    assert schema.metadata[b"representation"] == b"mean_l2" and "function" in schema.names


def test_anndata_reads_it(odd: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "BATCH_ROWS", 5)
    export(odd.master, "anndata", output := tmp_path / "vectors.h5ad")
    lines = lines_of(odd)
    with plm_embed.open(odd.master) as embeddings:
        made = embeddings.to_anndata()
    names = made.obs_names.tolist()
    # the first of those that share an id keeps it
    assert {"same", "same-1", "twice", "twice-1", "n%00ul"} < {*names} and len({*names}) == 13
    made[:9].write_h5ad(tmp_path / "some.h5ad")
    made.write_h5ad(tmp_path / "own.h5ad")
    made.write_zarr(tmp_path / "own.zarr")
    for data in (
        *(anndata.read_h5ad(output, backed=backed) for backed in (None, "r")),
        *(anndata.read_h5ad(tmp_path / "own.h5ad"), anndata.read_zarr(tmp_path / "own.zarr")),
    ):
        assert data.obs_names.tolist() == names
        assert data.obs["id"].tolist() == [line["id"].replace("\0", "%00") for line in lines]
        assert data.var_names.tolist() == [str(number) for number in range(DIM)]
        functions = data.obs["function"].astype(object).replace(np.nan, None).tolist()
        assert functions == [line["function"] for line in lines]
        for name in ("row", "cache_key", "length", "source", "number"):
            assert data.obs[name].tolist() == [line[name] for line in lines]
        np.testing.assert_array_equal(data.X[:], np.stack([vector(line) for line in lines]))
    export(odd.master, "anndata", tmp_path / "one.h5ad", ids=["n\0ul"])
    data = anndata.read_h5ad(tmp_path / "one.h5ad")
    assert data.obs_names.tolist() == ["n%00ul"] and data.obs_names.name == "id"


@pytest.mark.parametrize(("to", "beside"), [("uniprot-h5", "names"), ("npy", "ids")])
def test_no_file_of_ones_own_is_touched(
    odd: Campaign, tmp_path: Path, to: Format, beside: str
) -> None:
    mine, table = tmp_path / ".tmp-out", f"out.{beside}.tsv"
    mine.mkdir()
    (mine / "file").touch()
    (tmp_path / table).write_text("mine")
    with pytest.raises(PlmEmbedError, match=f"{table}: exists; remove it, or choose another name"):
        export(odd.master, to, tmp_path / "out")
    assert not (tmp_path / "out").exists() and (tmp_path / table).read_text() == "mine"
    export(odd.master, to, tmp_path / "other")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {".tmp-out", table, "other", f"other.{beside}.tsv"}
    assert (mine / "file").exists()


READ = "plm_embed.reading.open.Embeddings.rows"


@pytest.mark.parametrize(
    ("to", "failing"),
    [("uniprot-h5", READ), ("uniprot-h5", "csv.writer"), ("npy", READ), ("anndata", READ)],
)
def test_a_failure_leaves_nothing(
    odd: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: Format, failing: str
) -> None:
    calls = []

    def fail(_: object, rows: Any = (1,), *__: str, **___: str) -> np.ndarray:
        calls.append(rows)
        if any(rows):
            raise OSError(28, "No space left on device")
        return np.zeros((0, DIM), np.float16)

    monkeypatch.setattr(failing, fail)
    with pytest.raises(OSError, match="No space"):
        export(odd.master, to, tmp_path / "out")
    assert calls and not list(tmp_path.iterdir())


def test_an_empty_master(tmp_path: Path) -> None:
    empty = gathered_campaign(tmp_path, fingerprint=MEAN, records=[])
    for to in get_args(Format):
        export(empty.master, to, tmp_path / f"out.{to}")
    assert np.load(tmp_path / "out.npy").shape == (0, 0)
    assert anndata.read_h5ad(tmp_path / "out.anndata").shape == (0, 0)


def test_records_are_chosen_by_values_of_columns(campaign: Campaign, tmp_path: Path) -> None:
    line = next(line for line in lines_of(campaign) if line["function"])
    where = {"function": line["function"]}
    for number, part in enumerate((where, where | {"row": str(line["row"])})):
        path = tmp_path / f"{number}.parquet"
        export(campaign.master, "parquet", path, where=part)
        assert pq.read_table(path)["id"].to_pylist() == [line["id"]]


def test_what_cannot_be_exported_is_said(odd: Campaign, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refusals: list[tuple[str, dict[str, Any]]] = [
        ("no representation mean_l9; it has max_l2", {"representation": "mean_l9"}),
        ("npy cannot hold matrices", {"representation": "per_residue_l2"}),
        (r"no vector for nobody; records\.parquet says", {"ids": ["P12345", "nobody"]}),
        ("no column 'functoin'; did you mean function", {"where": {"functoin": "x"}}),
        ("no record has function=x; a value must match", {"where": {"function": "x"}}),
    ]
    for message, part in refusals:
        with pytest.raises(PlmEmbedError, match=message) as caught:
            export(odd.master, "npy", out, **part)
        assert isinstance(caught.value, UnknownIdError) == ("ids" in part)
    assert not list(tmp_path.iterdir())
    for column, to in (("embedding", "parquet"), ("e0", "csv")):
        (folder := tmp_path / column).mkdir()
        master = with_column(odd, folder, column)
        with pytest.raises(PlmEmbedError, match=f"has a column '{column}' of its own"):
            export(master, to, out)  # type: ignore[arg-type]
        assert not out.exists()


def export_command(campaign: Campaign, output: Path, *options: str) -> Result:
    arguments = ["export", str(campaign.master), str(output), "--to", "csv", *options]
    return CliRunner().invoke(group, arguments)


def test_the_command_takes_ids_from_a_file_or_a_list(campaign: Campaign, tmp_path: Path) -> None:
    listed = tmp_path / "ids.tsv"
    listed.write_bytes("\ufeffp2\tmore\r\n\n \t\np3\r\n".encode())  # a mark, as of Excel
    for number, ids in enumerate(("p2,p3", " p2, p3,", str(listed), "p2," * 200 + "p3")):
        path = tmp_path / f"{number}.csv"
        done = export_command(campaign, path, "--ids", ids)
        assert done.exit_code == 0, done.output
        assert set(pl.read_csv(path)["id"]) == {"p2", "p3"}
    # blanks in a file belong to the id, and lines end with LF or CRLF alone
    listed.write_text(" p2\u2028x\n", encoding="utf-8")
    for ids, message in (("p2,missing", "missing; "), (str(listed), " p2\u2028x; ")):
        done = export_command(campaign, tmp_path / "x", "--ids", ids)
        assert isinstance(done.exception, UnknownIdError)
        assert f"no vector for {message}" in str(done.exception)
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
    export(campaign.master, to, path := tmp_path / f"out.{to}", ids=["p20", "p30"])
    shape, names, numbers = read_in_r(path)
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
