"""Exports, each read back by the tool that it is meant for."""

import csv
from pathlib import Path
from typing import get_args

import anndata
import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

import plm_embed
from plm_embed.errors import PlmEmbedError
from plm_embed.keys import key
from plm_embed.reading import exports
from plm_embed.reading.exports import Format, export
from support.campaigns import DIM, EVERYTHING, MEAN, Campaign, gathered_campaign, vectors
from support.made_up_sequences import make_records

LONG = "L" * 1200
ODD_IDS = [
    "P12345",
    "A/duck/1/99(H1N1)",
    "a%2Fb",
    LONG,
    LONG + "x",
    "..",
    "",
    "twice",
    "twice",
    "same",
    "same",
    "流感",
    "n\0ul",
]


def sequence_of(number: int, id: str) -> str:
    if id in ("P12345", "same"):
        return "MKTAYIAK"
    return "MKV" + "ACDEFGHIKLMNP"[number - 1] * (number + 40)


SEQUENCES = [sequence_of(*pair) for pair in enumerate(ODD_IDS, start=1)]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """Records with odd ids. `twice` has two sequences, `same` one, which it has in common with
    P12345.
    """
    accepted = {"status": "accepted", "reason": None, "detail": None, "events": ""}
    records = [
        {"source": "inputs/a.fasta", "number": number, "id": id, "header": id, **accepted}
        | {"function": None if number % 2 else "f"}
        | {"sequence": sequence, "key": key(sequence), "length": len(sequence)}
        for number, (id, sequence) in enumerate(zip(ODD_IDS, SEQUENCES, strict=True), start=1)
    ]
    return gathered_campaign(
        tmp_path_factory.mktemp("export"), fingerprint=EVERYTHING, records=records
    )


@pytest.fixture
def index(campaign: Campaign) -> list[dict]:
    sequences = {key(sequence): sequence for sequence in SEQUENCES}
    rows = pq.read_table(campaign.index).to_pylist()
    return [row | {"sequence": sequences[row["cache_key"]]} for row in rows]


def vector(row: dict, name: str = "mean_l2") -> np.ndarray:
    return vectors(row["sequence"], EVERYTHING)[name].astype(np.float16)


def names_of(output: Path) -> dict[tuple[str, int], str]:
    """Name by id and number, as the map beside an export has them."""
    with output.with_name(f"{output.name}.names.tsv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file, delimiter="\t"))
    return {(line["id"], int(line["number"])): line["name"] for line in lines}


def test_h5py_reads_it_as_it_reads_uniprots(
    campaign: Campaign, index: list[dict], tmp_path: Path
) -> None:
    output = tmp_path / "per-protein.h5"
    export(campaign.master, "uniprot-h5", output)
    renamed = names_of(output)
    with h5py.File(output, "r") as file:
        assert file.attrs["model_name"] == EVERYTHING.model
        np.testing.assert_array_equal(
            file["P12345"][:], vector(next(row for row in index if row["id"] == "P12345"))
        )
        found = {
            accession: (np.array(embedding), embedding.attrs["original_id"])
            for accession, embedding in file.items()
        }
    assert len(found) == len(ODD_IDS) - 1  # `same` is one dataset
    for row in index:
        values, id = found[renamed.get((row["id"], row["number"]), row["id"])]
        np.testing.assert_array_equal(values, vector(row))
        assert id == row["id"].replace("\0", "%00") and values.dtype == np.float16
    assert (
        "A%2Fduck%2F1%2F99(H1N1)" in found and "流感" in found and "P12345" not in renamed.values()
    )
    assert renamed["", 7] == "a.fasta:7"
    long = {renamed[LONG, 4], renamed[f"{LONG}x", 5]}
    assert len(long) == 2 and all(len(name) < 1000 and LONG.startswith(name[:900]) for name in long)
    assert ("twice", 8) not in renamed and renamed["twice", 9] == "twice.2"  # the first keeps it
    plain = tmp_path / "plain.h5"
    assert export(campaign.master, "uniprot-h5", plain, ids=["P12345"])[1] == [plain]


def test_matrices_per_residue(campaign: Campaign, index: list[dict], tmp_path: Path) -> None:
    output = tmp_path / "per-residue.h5"
    export(campaign.master, "uniprot-h5", output, "per_residue_l3")
    renamed = names_of(output)
    with h5py.File(output) as file:
        for row in index:
            values = file[renamed.get((row["id"], row["number"]), row["id"])][:]
            np.testing.assert_array_equal(values, vector(row, "per_residue_l3"))


def test_numpy_maps_an_array_with_ids_beside_it(
    campaign: Campaign, index: list[dict], tmp_path: Path
) -> None:
    output = tmp_path / "vectors.npy"
    written = export(campaign.results, "npy", output, "max_l3")
    assert written == (len(index), [output, tmp_path / "vectors.npy.ids.tsv"])
    found = np.load(output, mmap_mode="r")
    assert isinstance(found, np.memmap) and found.shape == (len(index), DIM)
    np.testing.assert_array_equal(found, np.stack([vector(row, "max_l3") for row in index]))
    with (tmp_path / "vectors.npy.ids.tsv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file, delimiter="\t"))
    assert [(line["id"], line["cache_key"]) for line in lines] == [
        (row["id"], row["cache_key"]) for row in index
    ]


def test_anndata_reads_it(
    campaign: Campaign, index: list[dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "BATCH_ROWS", 5)
    output = tmp_path / "vectors.h5ad"
    export(campaign.master, "anndata", output)
    with plm_embed.open(campaign.master) as embeddings:
        names = embeddings.to_anndata().obs_names.tolist()
    assert {"same", "same-1", "twice", "twice-1", "n%00ul"} < {*names}
    for backed in (None, "r"):
        found = anndata.read_h5ad(output, backed=backed)
        assert found.obs_names.tolist() == names
        assert found.obs["id"].tolist() == [row["id"].replace("\0", "%00") for row in index]
        assert found.var_names.tolist() == [str(number) for number in range(DIM)]
        assert found.obs["row"].tolist() == [row["row"] for row in index]
        functions = found.obs["function"].astype(object).replace(np.nan, None).tolist()
        assert functions == [row["function"] for row in index]
        np.testing.assert_array_equal(found.X[:], np.stack([vector(row) for row in index]))
    export(campaign.master, "anndata", tmp_path / "one.h5ad", ids=["n\0ul"])
    found = anndata.read_h5ad(tmp_path / "one.h5ad")
    assert found.obs_names.tolist() == ["n%00ul"] and found.obs_names.name == "id"


@pytest.mark.parametrize(("to", "beside"), [("uniprot-h5", "names"), ("npy", "ids")])
def test_no_file_of_ones_own_is_touched(
    campaign: Campaign, tmp_path: Path, to: str, beside: str
) -> None:
    mine = tmp_path / ".tmp-out"
    mine.mkdir()
    (mine / "file").touch()
    (tmp_path / f"out.{beside}.tsv").write_text("mine")
    with pytest.raises(
        PlmEmbedError, match=f"out.{beside}.tsv: exists; remove it, or choose another name"
    ):
        export(campaign.master, to, tmp_path / "out")
    assert (
        not (tmp_path / "out").exists() and (tmp_path / f"out.{beside}.tsv").read_text() == "mine"
    )
    export(campaign.master, to, tmp_path / "other")
    assert {path.name for path in tmp_path.iterdir()} == {
        *(".tmp-out", f"out.{beside}.tsv", "other", f"other.{beside}.tsv")
    }
    assert (mine / "file").exists()


def test_what_cannot_be_exported_is_said(campaign: Campaign, tmp_path: Path) -> None:
    with pytest.raises(PlmEmbedError, match="no representation mean_l9; it has max_l2"):
        export(campaign.master, "npy", tmp_path / "new", "mean_l9")
    with pytest.raises(PlmEmbedError, match="npy cannot hold matrices"):
        export(campaign.master, "npy", tmp_path / "new", "per_residue_l2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("to", ["uniprot-h5", "npy", "anndata"])
def test_a_failure_leaves_nothing(
    campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: Format
) -> None:
    take, calls = plm_embed.reading.open.Embeddings.rows, []

    def fail(self, rows, name="emb"):
        calls.append(rows)
        if any(rows):
            raise OSError(28, "No space left on device")
        return take(self, rows, name)

    monkeypatch.setattr("plm_embed.reading.open.Embeddings.rows", fail)
    with pytest.raises(OSError, match="No space"):
        export(campaign.master, to, tmp_path / "out")
    assert calls and not list(tmp_path.iterdir())


def test_an_empty_master(tmp_path: Path) -> None:
    empty = gathered_campaign(tmp_path, fingerprint=MEAN, records=[])
    for to in get_args(Format):
        export(empty.master, to, tmp_path / f"out.{to}")
    assert np.load(tmp_path / "out.npy").shape == (0, 0)
    assert anndata.read_h5ad(tmp_path / "out.anndata").shape == (0, 0)


def test_ids_that_sequences_share_get_numbers(tmp_path: Path) -> None:
    ids = ["p", "p", "p", "p.2", "p.2", "p"]
    sequences = ["MKV", "MKVL", "MKV", "MKVLA", "MKVL", "MKVLAA"]
    records = make_records()[1:2] * len(ids)
    for number, (id, sequence) in enumerate(zip(ids, sequences, strict=True), start=1):
        record = {"number": number, "id": id, "sequence": sequence, "key": key(sequence)}
        records[number - 1] = records[number - 1] | record | {"length": len(sequence)}
    campaign = gathered_campaign(tmp_path, records=records)
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
