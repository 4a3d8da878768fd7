"""Vectors in the formats of other programs, and in those that `export` writes, become a store."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import plm_embed
from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import IMPORTED_DEVICE, StorageDtype
from plm_embed.inference.weights import prepare
from plm_embed.keys import key
from plm_embed.master.adopt import UNKNOWN, Adopted, adopt
from plm_embed.master.foreign import Files
from plm_embed.reading.exports import Format, export
from plm_embed.sequences.settings import Table
from plm_embed.store.parts import Part
from support.families import TINY, add_model, source
from support.finished import DEMO, MODEL, finished_campaign
from support.foreign_masters import IDS, SEQUENCES, SETTINGS, adopted, mean_vectors

TABLE = Table("protein_id", "sequence")
INPUTS = (DEMO / "proteins.fasta", DEMO / "proteins.csv")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's results, finished."""
    return finished_campaign(tmp_path_factory.mktemp("finished"))


@pytest.fixture(scope="module")
def means(prepared: Path) -> np.ndarray:
    return mean_vectors(prepared, SEQUENCES)


def stored(store: Path) -> dict[bytes, bytes]:
    """The bits of each vector in a store, by key."""
    bits = {}
    for path in store.glob("*/parts/*.h5"):
        with Part(path) as part:
            assert part.provenance["device"] == IMPORTED_DEVICE
            (name,) = part.names
            rows = part.bits(name, np.arange(part.count))
            bits |= dict(zip(part.keys.tolist(), map(bytes, rows), strict=True))
    return bits


@pytest.mark.parametrize("to", get_args(Format))
def test_exports_are_read_back(tmp_path: Path, results: Path, to: Format) -> None:
    name = {"anndata": "vectors.h5ad", "uniprot-h5": "vectors.h5"}.get(to, f"vectors.{to}")
    master = results / MODEL / "master_esm2_embeddings.h5"
    with h5py.File(master) as file:
        expected = dict(zip(file["emb_keys"][...].tolist(), map(bytes, file["emb"]), strict=True))
    export(master, to, tmp_path / name)
    files = Files(tmp_path / name, None, INPUTS, TABLE, "")
    done = adopt(files, tmp_path / "store", results.parent / "weights", SETTINGS, 8)
    imported = stored(tmp_path / "store")
    assert imported == {key: expected[key] for key in imported}
    assert done.relative_l2 < 1e-3 and done.by_key == (to != "uniprot-h5")
    if done.by_key:
        assert imported == expected
    else:  # ids that different sequences share name none of them
        assert done.left_out[UNKNOWN] >= len(expected) - len(imported) < 8


def write_datasets(path: Path, names: list[str], vectors: np.ndarray, **ids: list[str]) -> Path:
    with h5py.File(path, "w") as file:
        for place, (name, vector) in enumerate(zip(names, vectors, strict=True)):
            file[name] = vector
            for attribute, values in ids.items():
                file[name].attrs[attribute] = values[place]
    return path


def fasta(path: Path, headers: list[str], sequences: Sequence[str] = SEQUENCES) -> Path:
    pairs = zip(headers, sequences, strict=True)
    path.write_text("".join(f">{header}\n{sequence}\n" for header, sequence in pairs))
    return path


def adopted_from(
    vectors: Path, sequences: Path, prepared: Path, index: Path | None = None, **settings: Any
) -> Adopted:
    files = Files(vectors, index, (sequences,), Table(), "")
    return adopted(files, prepared, replace(SETTINGS, **settings))


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("P{:05d}", "sp|P{:05d}|NAME_HUMAN A protein"),  # UniProt's per-protein.h5
        ("{:032x}", "fig|{}.peg"),  # biotrainer's and bio_embeddings', whose attribute has the id
        ("tr|A{}_1_2|X of a virus", "tr|A{}.1/2|X of a virus"),  # ProtTrans'
    ],
)
def test_datasets_named_by_accessions_hashes_or_headers(
    tmp_path: Path, prepared: Path, means: np.ndarray, name: str, header: str
) -> None:
    names, headers = ([*map(text.format, range(48))] for text in (name, header))
    ids = {"original_id": IDS} if headers == IDS else {}
    vectors = means.astype("f2") if name.startswith("P") else means
    path = write_datasets(tmp_path / "datasets.h5", names, vectors, **ids)
    done = adopted_from(path, fasta(tmp_path / "in.fasta", headers), prepared)
    assert (done.rows, done.by_key, done.left_out) == (48, False, {})


def test_sequences_with_b_are_left_out_where_the_model_reads_another_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_model(monkeypatch, TINY["protbert"])
    prepare(TINY["protbert"], source("protbert"), weights := tmp_path / "weights")
    sequences = ["MKTAYIAKQR", "MKTABIAKQR", "MKVLAAGIVG"]
    vectors = mean_vectors(weights, sequences, TINY["protbert"].layers)
    path = write_datasets(tmp_path / "protein.h5", ["a", "b", "c"], vectors)
    done = adopted_from(path, fasta(tmp_path / "in.fasta", ["a", "b", "c"], sequences), weights)
    assert done.rows == 2
    assert done.left_out == {"B in the sequence, which ProtTrans keeps and we read as X": 1}


@pytest.mark.parametrize("index", ["list", "tsv", "parquet"])
def test_an_array_and_its_ids(
    tmp_path: Path, prepared: Path, means: np.ndarray, index: str
) -> None:
    np.save(tmp_path / "means.npy", means)
    path = tmp_path / f"ids.{index}"
    if index == "parquet":
        pq.write_table(pa.table({"id": IDS}), path)
    else:
        lines = IDS if index == "list" else ["number\tid", *(f"7\t{id}" for id in IDS)]
        path.write_text("\n".join(lines) + "\n")
    proteins = fasta(tmp_path / "in.fasta", IDS)
    assert adopted_from(tmp_path / "means.npy", proteins, prepared, path).rows == 48
    np.save(tmp_path / "means.npy", means[1:])
    with pytest.raises(PlmEmbedError, match=r"ids\.\w+: .*48 rows and no column `row`.* 47 vec"):
        adopted_from(tmp_path / "means.npy", proteins, prepared, path)


def test_a_table_with_a_column_of_lists(tmp_path: Path, prepared: Path, means: np.ndarray) -> None:
    table = pa.table({"name": IDS, "vector": means.tolist()})
    pq.write_table(table, path := tmp_path / "means.parquet")
    files = Files(path, None, (fasta(tmp_path / "in.fasta", IDS),), Table(), "name")
    assert adopted(files, prepared).rows == 48
    with pytest.raises(
        PlmEmbedError, match=r"means\.parquet: .*its rows have no names; name the column"
    ):
        adopted(replace(files, id_column=""), prepared)
    with pytest.raises(PlmEmbedError, match="no column `accession`; it has name, vector; name the"):
        adopted(replace(files, id_column="accession"), prepared)


@pytest.mark.parametrize(
    ("dtype", "largest"), [("float16", 65504.0), ("bfloat16", 3.3895e38), ("float32", 3.4028e38)]
)
def test_numbers_that_a_store_would_make_infinite_are_left_out(
    tmp_path: Path, prepared: Path, means: np.ndarray, dtype: StorageDtype, largest: float
) -> None:
    short = np.argsort([*map(len, SEQUENCES)])[:3]  # which are not compared with the reference
    vectors = means.copy()
    with np.errstate(over="ignore"):
        vectors[short, 0] = largest, 1.002 * largest, np.nan
    path = write_datasets(tmp_path / "means.h5", IDS, vectors)
    files = Files(path, None, (fasta(tmp_path / "in.fasta", IDS),), Table(), "")
    done = adopt(
        files, tmp_path / "store", prepared, replace(SETTINGS, storage_dtype=dtype), sample=4
    )
    assert (done.rows, done.left_out) == (46, {"NaN, infinity or too large a number": 2})


def test_pairs_of_chains(tmp_path: Path, prepared: Path) -> None:
    pairs = list(zip(SEQUENCES[::2], SEQUENCES[1::2], strict=True))
    lines = [f"{id},{heavy},{light}\n" for id, (heavy, light) in zip(IDS, pairs, strict=False)]
    (tmp_path / "pairs.csv").write_text("id,heavy,light\n" + "".join(lines))
    vectors = plm_embed.embed(pairs, MODEL, weights=prepared, linker="GGS", dtype="float32")
    path = write_datasets(tmp_path / "pairs.h5", IDS[: len(pairs)], vectors)
    table = Table("id", "heavy", partner="light")
    files = Files(path, None, (tmp_path / "pairs.csv",), table, "")
    done = adopted(files, prepared, replace(SETTINGS, linker="GGS"))
    assert (done.rows, done.left_out) == (len(pairs), {})
    assert {key(":".join(pair)).encode() for pair in pairs} == stored(tmp_path / "store").keys()
    with pytest.raises(PlmEmbedError, match="not the mean over the residues"):
        adopted(files, prepared, replace(SETTINGS, linker="GGGGGGGG"))
    with pytest.raises(PlmEmbedError, match="not the mean over the residues"):  # heavy chains
        adopted(replace(files, table=Table("id", "heavy")), prepared)
    linked = mean_vectors(prepared, ["GGS".join(pair) for pair in pairs])
    path.unlink()
    write_datasets(path, IDS[: len(pairs)], linked)
    with pytest.raises(PlmEmbedError, match=r"24 of 24 .* \(24 the linker pooled in"):
        adopted(files, prepared, replace(SETTINGS, linker="GGS"))


def test_rounding_is_not_taken_for_another_pooling(tmp_path: Path, prepared: Path) -> None:
    """In long sequences the end token moves a mean by less than bfloat16 does."""
    lines = [10 * sequence for sequence in SEQUENCES]
    vectors = plm_embed.embed(lines, MODEL, weights=prepared, dtype="bfloat16")
    path = write_datasets(tmp_path / "means.h5", IDS, vectors)
    sequences = fasta(tmp_path / "in.fasta", IDS, lines)
    assert adopted_from(path, sequences, prepared, compute_dtype="bfloat16").rows == 48


def test_cut_sequences_are_noticed_for_the_longest_are_computed(
    tmp_path: Path, prepared: Path, means: np.ndarray
) -> None:
    longest = int(np.argmax([len(sequence) for sequence in SEQUENCES]))
    means = means.copy()
    (means[longest],) = mean_vectors(prepared, [SEQUENCES[longest][:-20]])
    path = write_datasets(tmp_path / "means.h5", IDS, means)
    files = Files(path, None, (fasta(tmp_path / "in.fasta", IDS),), Table(), "")
    with pytest.raises(PlmEmbedError, match="1 of 2 sampled rows are not the mean"):
        adopt(files, tmp_path / "store", prepared, SETTINGS, sample=2)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"linker": "GGS"}, "linker is GGS, none is asked for"),
        ([1], "its fingerprint is not a JSON object"),
        ({"strand": "canonical"}, "strand is canonical, as_given is asked for"),
        ({"long_sequences": {"max_residues": 12}}, "48 a sequence that may have been cut"),
    ],
)
def test_what_an_export_says_of_its_sequences_has_to_fit(
    tmp_path: Path, prepared: Path, means: np.ndarray, field: Any, message: str
) -> None:
    path = write_datasets(tmp_path / "means.h5", IDS, means)
    with h5py.File(path, "r+") as file:
        file.attrs["fingerprint"] = json.dumps(field)
    with pytest.raises(PlmEmbedError, match=message):
        adopted_from(path, fasta(tmp_path / "in.fasta", IDS), prepared)


def refused(tmp_path: Path, means: np.ndarray) -> dict[str, tuple[Path, str]]:
    """Files that hold no vectors to adopt, with what is said of them."""
    outside = write_datasets(tmp_path / "outside.h5", ["a"], means[:1])
    with h5py.File(tmp_path / "linked.h5", "w") as file:
        file["a"] = h5py.ExternalLink(outside, "a")
    with h5py.File(tmp_path / "stored.h5", "w") as file:
        (tmp_path / "bytes").write_bytes(bytes(128))
        file.create_dataset("a", (32,), "f4", external=[(tmp_path / "bytes", 0, 128)])
    with h5py.File(tmp_path / "matrix.h5", "w") as file:
        file["a"] = means
    uneven = write_datasets(tmp_path / "uneven.h5", ["a"], means[:1])
    with h5py.File(uneven, "r+") as file:
        file["b"] = means[0, :8]
    h5py.File(tmp_path / "empty.h5", "w").close()
    np.save(tmp_path / "pickled.npy", np.array([{}], object))
    np.save(tmp_path / "flat.npy", means[0])
    (tmp_path / "flat.npy.ids.tsv").write_text("id\n" + "a\n" * 32)
    np.save(tmp_path / "alone.npy", means)
    lists: list[Any] = [[1.0, 2.0], [1.0]]
    pq.write_table(pa.table({"id": ["a", "b"], "v": lists}), tmp_path / "uneven.parquet")
    pq.write_table(pa.table({"id": ["a", "b"]}), tmp_path / "none.parquet")
    (tmp_path / "none.csv").write_text("id,x\na,1\n")
    (tmp_path / "words.csv").write_text("id,e0\na,one\n")
    (tmp_path / "cut.h5").write_bytes(outside.read_bytes()[:-100])
    (tmp_path / "vectors.pt").write_bytes(b"")
    return {
        "linked.h5": "a is a link to another place",
        "stored.h5": "the data of a lie in other files",
        "matrix.h5": "a is not a vector; matrices per residue are not imported",
        "uneven.h5": "vectors of 32 and of 8 numbers",
        "empty.h5": "holds no vectors",
        "cut.h5": "not a whole HDF5 file",
        "pickled.npy": "cannot be imported: .*Python objects",
        "flat.npy": r"not numbers of shape .* but float32 of shape \(32,\)",
        "alone.npy": r"ids\.tsv: there is no such file; name the table of the rows: --index",
        "uneven.parquet": "the vectors in v have different lengths",
        "none.parquet": "has columns id; expected one column of lists",
        "none.csv": "has columns id, x; expected",
        "words.csv": "cannot be imported: .*invalid value 'one'",
        "vectors.pt": r"cannot be imported: the kinds of files are \.h5, \.hdf5, \.h5ad, \.npy",
    }


def test_files_without_vectors_are_refused(
    tmp_path: Path, prepared: Path, means: np.ndarray
) -> None:
    proteins = fasta(tmp_path / "in.fasta", IDS)
    for name, message in refused(tmp_path, means).items():
        with pytest.raises(PlmEmbedError, match=message):
            adopted_from(tmp_path / name, proteins, prepared)
    assert not (tmp_path / "store").exists()
