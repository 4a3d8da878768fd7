"""Exact neighbors, against the whole matrix of scores."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

import plm_embed
from plm_embed.cli.main import group
from plm_embed.errors import InputError, PlmEmbedError, StoreError
from plm_embed.keys import key
from plm_embed.reading import search
from plm_embed.reading.search import SCORES, Metric, nearest_rows, neighbor_table
from plm_embed.store.parts import PartRows, write_part
from support.campaigns import MEAN
from support.tiny_campaign import make_gathered
from support.tiny_steps import MODEL

METRICS = tuple(SCORES)
Nearest = tuple[np.ndarray, np.ndarray]


def look(
    vectors: np.ndarray, queries: np.ndarray, k: int = 10, metric: Any = "cosine", threads: int = 1
) -> Nearest:
    """Search a master that has these vectors as its rows."""
    keys = np.array([f"{row:064x}" for row in range(len(vectors))], "S64")
    ones = np.ones(len(vectors), np.int32)
    kind = replace(MEAN, storage_dtype="float16" if vectors.dtype == "<f2" else "float32")
    with TemporaryDirectory() as folder:
        master = Path(folder, "master_esm2_embeddings.h5")
        write_part(master, PartRows(keys, ones, ones, {"mean_l3": vectors}), kind, {})
        with plm_embed.open(master) as embeddings:
            return nearest_rows(embeddings, queries, k, metric, "mean_l3", threads)


def brute_force(vectors: np.ndarray, queries: np.ndarray, k: int, metric: Metric) -> Nearest:
    rows, asked = vectors.astype(np.float64), queries.astype(np.float64)
    if metric == "euclidean":
        scores = np.linalg.norm(rows[None] - asked[:, None], axis=2)
    else:
        scores = (rows[None] * asked[:, None]).sum(axis=2)
    if metric == "cosine":
        lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(asked, axis=1)[:, None]
        scores = np.where(lengths > 0, scores / np.where(lengths > 0, lengths, 1), 0)
    order = np.argsort(scores if metric == "euclidean" else -scores, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(scores, order, axis=1)


@settings(max_examples=40)
@given(
    shape=st.tuples(st.integers(1, 300), st.integers(1, 9), st.integers(0, 2**32 - 1)),
    k=st.integers(1, 310),
    metric=st.sampled_from(METRICS),
    threads=st.integers(1, 3),
    dtype=st.sampled_from(["<f2", "<f4"]),
)
def test_the_neighbors_are_those_of_brute_force(
    shape: tuple[int, int, int], k: int, metric: Metric, threads: int, dtype: str
) -> None:
    count, queries, seed = shape
    draw = np.random.default_rng(seed)
    vectors = draw.standard_normal((count, 5)).astype(dtype)
    vectors[draw.random(count) < 0.1] = 0
    asked = draw.standard_normal((queries, 5)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "BLOCK_ROWS", 64 * threads)
        patch.setattr(search, "QUERIES_AT_ONCE", 4)
        rows, scores = look(vectors, asked, k, metric, threads)
    expected_rows, expected_scores = brute_force(vectors, asked, k, metric)
    assert rows.shape == (queries, min(k, count))
    assert np.allclose(scores, expected_scores, rtol=1e-12, atol=1e-12)
    assert np.array_equal(rows, expected_rows)
    assert metric != "cosine" or (np.abs(scores) <= 1).all()


@pytest.mark.parametrize(
    ("queries", "options", "message"),
    [
        (np.zeros((1, 4)), {}, r"queries have the shape \(1, 4\), not \(q, 5\)"),
        (np.full((1, 5), np.nan), {}, "numbers that are not finite"),
        (np.zeros((1, 5)), {"metric": "manhattan"}, "'manhattan' is not one of cosine, dot, euc"),
        (np.zeros((1, 5)), {"k": 0}, "k: 0 is not above 0"),
        (np.zeros((1, 5)), {"k": True}, "k: True is not a whole number"),
        (np.zeros((1, 5)), {"threads": 0}, "threads: 0 is not above 0"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    queries: np.ndarray, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlmEmbedError, match=message):
        look(np.zeros((3, 5)), queries, **options)


@pytest.mark.parametrize("metric", METRICS)
def test_of_equal_scores_the_first_rows_come_first(metric: Metric) -> None:
    draw = np.random.default_rng(5)
    vectors = np.repeat(draw.standard_normal((7, 13)), 700, axis=0)[draw.permutation(4900)]
    vectors = vectors.astype(np.float32)
    rows, _ = look(vectors, vectors[:3], 40, metric)
    assert np.array_equal(rows, brute_force(vectors, vectors[:3], 40, metric)[0])


@pytest.mark.parametrize("dtype", ["<f2", "<f4"])
@pytest.mark.parametrize("metric", METRICS)
def test_numbers_that_are_not_finite_are_told_and_large_ones_are_none(
    metric: Metric, dtype: str
) -> None:
    vectors = np.random.default_rng(3).standard_normal((3000, 5)).astype(dtype)
    for number in (np.nan, np.inf):
        vectors[2000, 3] = number
        with pytest.raises(StoreError, match=r"_embeddings.h5: holds numbers that are not finite"):
            look(vectors, np.ones((1, 5)), 2, metric)
    vectors[:] = np.finfo(np.float16).max
    assert look(vectors, np.ones((1, 5)), 2, metric)[0].tolist() == [[0, 1]]


def test_float16_becomes_float32_exactly() -> None:
    numbers = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    numbers = numbers[np.isfinite(numbers)]
    wide = np.empty(len(numbers), np.float32)
    search._write_float32(numbers, wide)
    expected = numbers.astype(np.float32)
    assert np.array_equal(wide.view(np.uint32), expected.view(np.uint32))  # also -0.0


def test_a_line_for_each_record_of_each_neighbor() -> None:
    lines = pa.table(
        {"row": [2, 2, 4, 7], "id": ["a", "b", "c", "d"], "rank": ["p", "q", "r", "s"]}
    )
    nearest, scores = np.array([[4, 2], [2, 7]]), np.array([[0.9, 0.8], [0.7, 0.6]])
    made = neighbor_table((nearest, scores), ["q", "r"], "cosine", lines)
    # a column of the index keeps clear of those of the search
    assert made.column_names == ["query", "rank", "similarity", "row", "id", "record_rank"]
    assert [tuple(line.values()) for line in made.to_pylist()] == [
        ("q", 1, 0.9, 4, "c", "r"),
        ("q", 2, 0.8, 2, "a", "p"),
        ("q", 2, 0.8, 2, "b", "q"),
        ("r", 1, 0.7, 2, "a", "p"),
        ("r", 1, 0.7, 2, "b", "q"),
        ("r", 2, 0.6, 7, "d", "s"),
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a campaign with a master, where commands run; its weights are the cache."""
    folder = tmp_path_factory.mktemp("search") / "campaign"
    make_gathered(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLM_EMBED_WEIGHTS", str(folder / "resources" / "weights"))
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def sequence(finished: Path) -> str:
    bucket = pq.read_table(finished / "results" / "sequences" / "buckets" / "0001.parquet")
    return str(bucket["sequence"][0])


def search_command(*words: object) -> Result:
    return CliRunner().invoke(group, ["search", "results", *map(str, words)])


def test_queries_may_be_sequences_ids_or_vectors_and_a_store_knows_keys(
    finished: Path, sequence: str
) -> None:
    weights = finished / "resources" / "weights" / MODEL
    with plm_embed.open("results") as embeddings:
        table = embeddings.nearest(sequences={"q": sequence}, k=3, weights=weights)
        first = table.to_pylist()[0]
        assert (first["query"], first["rank"], first["cache_key"]) == ("q", 1, key(sequence))
        assert first["similarity"] == pytest.approx(1, abs=1e-12)
        copy = pickle.loads(pickle.dumps(embeddings))
        for other, query in (
            (embeddings.nearest([first["id"]], k=3), first["id"]),
            (embeddings.nearest(vectors=embeddings.get([first["id"]])[0], k=3), "0"),
            (copy.nearest(sequences=[sequence], k=3, weights=weights), "1"),
        ):
            assert set(other["query"].to_pylist()) == {query}
            assert other.drop(["query"]).equals(table.drop(["query"]))
        with pytest.raises(PlmEmbedError, match="give one of ids, vectors and sequences"):
            embeddings.nearest()
    with plm_embed.open(f"results/{MODEL}/store") as store:
        table = store.nearest(sequences=[sequence], k=2, weights=weights)
    assert table.column_names == ["query", "rank", "similarity", "row", "key", "length"]
    assert table["key"][0].as_py() == key(sequence)
    assert table["length"][0].as_py() == len(sequence)


@pytest.mark.usefixtures("finished")
def test_a_bad_query_is_named_and_does_not_keep_the_others_from_an_answer(
    sequence: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queries = tmp_path / "queries.fasta"
    queries.write_text(f">bad\nMK1V\n>empty\n>good\n{sequence}\n>other\nM?\n")
    done = search_command(queries, "--top", 1)
    assert done.exit_code == 0, done.output
    assert {line.split("\t")[0] for line in done.stdout.splitlines()} == {"query", "good"}
    with plm_embed.open("results") as embeddings:
        with pytest.raises(InputError, match=r"sequence 1 \(bad\): unknown_residues"):
            embeddings.nearest(sequences=queries)
        table = embeddings.nearest(sequences=["M?", sequence, ""], k=1, on_error="skip")
        assert set(table["query"].to_pylist()) == {"2"}  # as the warning counts
        assert len(embeddings.nearest(sequences={"a": "M?"}, on_error="skip")) == 0
    assert "3 sequences have no vector: sequence 1 (bad): unknown_residues" in caplog.text
    assert "sequence 1 (a): unknown_residues" in caplog.text


@pytest.mark.usefixtures("finished")
def test_a_table_of_queries_may_call_its_columns_otherwise(sequence: str, tmp_path: Path) -> None:
    table = tmp_path / "queries.csv"
    table.write_text(f"name,residues\nmine,{sequence}\n")
    done = search_command(table)
    assert isinstance(done.exception, InputError)
    assert str(done.exception).endswith("name yours: --id-column NAME")
    done = search_command(table, "--output", table)
    assert f"{table}: exists; remove it, or choose another name" == str(done.exception)
    done = search_command(table, "--id-column=name", "--sequence-column=residues")
    assert done.exit_code == 0, done.output
    assert {line.split("\t")[0] for line in done.stdout.splitlines()[1:]} == {"mine"}


@pytest.mark.usefixtures("finished")
def test_the_command_prints_or_writes_the_table(sequence: str, tmp_path: Path) -> None:
    queries = tmp_path / "queries.fasta"
    queries.write_text(f">q1\n{sequence}\n>q2\n{sequence[::-1]}\n")
    done = search_command(queries, "--top", 2)
    assert done.exit_code == 0, done.output
    header, *lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert header == ["query", "rank", "similarity", "id", "length"]  # no key, no row
    assert lines[0][:3] == ["q1", "1", "1.000000"] and {line[0] for line in lines} == {"q1", "q2"}
    options = ["--top", 2, "--threads", 2, "--metric", "euclidean", "--id", lines[0][3]]
    for suffix, read in {
        ".tsv": partial(pd.read_csv, sep="\t"),
        ".csv": pd.read_csv,
        ".parquet": pd.read_parquet,
    }.items():
        output = tmp_path / f"neighbors{suffix}"
        done = search_command(*options, "--output", output)
        assert done.exit_code == 0 and f" neighbors in {output}\n" in done.stdout
        table = read(output)
        assert table["distance"][0] == 0 and table["rank"][0] == 1
        assert {"cache_key", "row", "source", "number"} < {*table.columns}
    for refused, words in (
        ([], "give a file of queries, or --id"),
        (["--id", "nobody"], "no vector for nobody"),
        (["--id", "p1", "--output", "x.xlsx"], "x.xlsx must end with .tsv, .csv or"),
    ):
        done = search_command(*refused)
        assert done.exit_code != 0 and words in done.output + str(done.exception)
