"""Sequences given in memory that have no vector: named, or skipped."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from Bio.Seq import Seq
from Bio.SeqRecord import SeqRecord

import plm_embed
from plm_embed.errors import InputError
from plm_embed.fingerprint import LongSequences
from plm_embed.inference.language_model import LanguageModel


@pytest.fixture(scope="module")
def model(prepared: Path) -> Iterator[LanguageModel]:
    with plm_embed.load("esm2_t3_untrained", weights=prepared) as model:
        yield model


@pytest.mark.parametrize(
    ("given", "said", "record"),
    [
        (["MKV", "MKJ"], r"sequence 2: unknown_residues \(J at 3\)", 2),
        ([("a", "MKV"), ("b", "")], r"sequence 2 \(b\): empty", 2),
        (["MK\udc80"], r"sequence 1: unknown_residues \(\? at 3\)", 1),
        (["MKV", ("a", 5)], r"sequence 2: \('a', 5\) is no sequence; give strings, pairs", 2),
        (["MKV", (1, "MKV")], r"sequence 2: \(1, 'MKV'\) is no sequence", 2),
        (["MKV", None], "sequence 2: missing_value", 2),
        ({"b": float("nan")}, r"sequence 1 \(b\): missing_value", 1),
        ([__file__], "sequence 1: .* is the name of a file", 1),
        (
            ["a.fasta", "b.fasta"],
            "sequence 1: 'a.fasta' is the name of a file; pass a file by itself",
            1,
        ),
        (["MKV", "my.proteins.csv.gz"], "sequence 2: .* is the name of a file", 2),
        ({"x": "a.parquet"}, "sequence 1: 'a.parquet' is the name of a file", 1),
        ([Path("a.faa")], "sequence 1: 'a.faa' is the name of a file", 1),
        ({"MKV", "MKL"}, "a set of sequences has no order; give a list", None),
        ("a.fasta", "'a.fasta' is not a file", None),
        (Path("x" * 300), "xxx' is not a file", None),
        ("~nobody_has_this_name/a.fasta", "a.fasta' is not a file", None),
        ("MKV", "'MKV' is not a file; give the name of a file, or a list of sequences", None),
        ("M" * 9000, "is not a file", None),
        (
            SeqRecord(Seq("MKV"), id="x"),
            "sequences: a SeqRecord is no list of sequences; give a list",
            None,
        ),
        (Seq("MKV"), "a Seq is no list of sequences", None),
        (5, "sequences: a int is no list of sequences; give a list of sequences", None),
        (None, "a NoneType is no list of sequences", None),
        ([SeqRecord(None, id="x")], r"sequence 1 \(x\): missing_value", 1),  # type: ignore[arg-type]
        (
            pd.DataFrame({"ID": ["a"], "SEQUENCE": ["MKV"]}),
            "a DataFrame is no list of sequences; .*; of a table, its column",
            None,
        ),
    ],
)
def test_what_has_no_vector_is_named(
    model: LanguageModel, given: object, said: str, record: int | None
) -> None:
    with pytest.raises(InputError, match=said) as error:
        model.embed(given)  # type: ignore[arg-type]
    assert error.value.record == record


def test_a_table_with_other_columns_is_to_be_renamed(model: LanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    path.write_text("accession,sequence\na,MKV\n")
    with pytest.raises(InputError, match=r"no column 'id'; .*; rename yours: a table") as error:
        model.embed(path)
    assert "--" not in str(error.value)


def test_an_open_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.fasta"
    path.write_text(">a\nMKV\n")
    for mode in ("r", "rb"):
        with (
            path.open(mode) as file,
            pytest.raises(InputError, match=r"is no list of sequences; .* or a file by its name"),
        ):
            plm_embed.embed(file, "esm2_t3_untrained")  # type: ignore[call-overload]


def test_missing_values_are_skipped(model: LanguageModel, caplog: pytest.LogCaptureFixture) -> None:
    column = pd.Series(["MKV", None, float("nan"), pd.NA])
    found = model.embed(column, on_error="skip")
    assert np.isnan(found[1:]).all() and np.array_equal(found[:1], model.embed(["MKV"]))
    assert "sequence 4: missing_value" in caplog.text


def test_what_has_no_vector_may_be_skipped(
    model: LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    given = [("a", "MKV"), ("b", "MKJ"), ("c", "A" * 50)]
    limit = LongSequences("skip", 40)
    found = model.embed(given, on_error="skip", long_sequences=limit)
    assert np.isnan(found[1:]).all() and np.array_equal(found[:1], model.embed(["MKV"]))
    assert (
        "2 sequences have no vector: sequence 2 (b): unknown_residues (J at 3), "
        "sequence 3 (c): too_long (50 residues)" in caplog.text
    )
    matrices = model.embed(given, on_error="skip", long_sequences=limit, pooling="per_residue")
    assert [each.shape for each in matrices] == [(3, 32), (0, 32), (0, 32)]
    streamed = model.stream(given, on_error="skip", long_sequences=limit)
    assert [id for id, _ in streamed] == ["a"]
