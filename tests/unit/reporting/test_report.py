"""The report: whole and in part, offline."""

import html
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from plm_embed.cli.main import group
from plm_embed.errors import PlmEmbedError
from plm_embed.io.json_files import write_sealed
from plm_embed.master.validation_record import (
    VALIDATION,
    Outlier,
    read_validation,
)
from plm_embed.reporting.facts import collect
from plm_embed.reporting.report import LABELS, histogram, write_report
from plm_embed.sequences.summary import read_summary
from support.campaigns import seal_sequences
from support.finished import DEMO, MODEL, note

FIGURES = ("lengths", "outcomes")


def words(page: Path) -> str:
    """The text of a page without its scripts, styles and marks."""
    text = re.sub(
        r"<(script|style).*?</\1>", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text)))


def test_a_finished_campaign_has_everything(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_report(collect(results), page)
    text = words(page)
    for expected in (
        "complete and validated",
        "XFD33108.1 unknown residues J at 82",
        "keys ✓ passed Each distinct sequence has one row",
        "master_esm2_embeddings.h5 52.8 kB vectors, one row per distinct sequence",
        "commit 0123456789abcdef",
        "181 records from 2 files, 129 distinct sequences, 129 vectors of 32 numbers",
        "51 of them (28.3 %) repeat a sequence",
        "upper cased 1",
        "2 attempts. Parts that they had published",
        "0000 " + collect(results).attempts[0].started[:10],
        "no usable <device> ask for one",
        "x1, job 17.pbs killed (time limit, out of memory or canceled)",
        "14 checks, each over every row; 2 sequences recomputed by",
        "0123456789abcdef",
        "doi:10.1126/science.ade2574",
        "Embeddings of 180 protein sequences (129 distinct; 1 of 181 records was skipped)",
    ):
        assert expected in text
    assert page.stat().st_size < 300_000
    raw = page.read_text(encoding="utf-8")
    assert all(f'id="figure-{name}"' in raw for name in FIGURES)
    assert raw.count('role="img" aria-label=') == 2, "a text alternative for each picture"
    assert "default-src 'none'" in raw and "The map needs JavaScript" in raw
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(?!data:|#)", raw), (
        "it loads nothing"
    )


@pytest.mark.parametrize(
    "missing", ["validation.json", "master_esm2_embeddings.h5", "embedded/*.json"]
)
def test_an_unfinished_campaign_has_what_there_is(
    results: Path, tmp_path: Path, missing: str
) -> None:
    copy = tmp_path / "results"
    shutil.copytree(results, copy)
    model = copy / MODEL
    for path in {model / "validation.json", *model.glob(missing)}:
        path.unlink()
    result = CliRunner().invoke(group, ["report", str(copy)], catch_exceptions=False)
    page = model / "report.html"
    assert str(page) in result.output
    text = words(page)
    assert (
        "not finished yet" in text
        and "Not validated yet" in text
        and "Lengths of the distinct sequences" in text
    )
    assert ("No master file yet" in text) == (missing == "master_esm2_embeddings.h5")
    assert ("No bucket is finished yet" in text) == (missing == "embedded/*.json")


def test_a_job_at_work_is_no_attempt_that_ended(results: Path, tmp_path: Path) -> None:
    copy, page = tmp_path / "results", tmp_path / "report.html"
    shutil.copytree(results, copy)
    (copy / MODEL / "embedded" / "0002.json").unlink()
    note(copy / MODEL, "0002", ended="", host="x2")
    write_report(collect(copy), page)
    assert "2 attempts." in words(page) and "x2" not in words(page)
    path = max((copy / MODEL / "embedded" / "jobs").glob("*-0002-*.json"))
    beat = json.loads(path.read_text())
    path.write_text(json.dumps(beat | {"updated": beat["started"].replace("20", "19", 1)}))
    write_report(collect(copy), page)
    assert "3 attempts." in words(page) and "x2 killed (time limit" in words(page)


def test_what_repeats_a_run_is_kept_beside_its_report(results: Path, tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(results, copy)
    settings = {"inputs": [str(DEMO / "proteins.fasta")], "model": MODEL, "buckets": 4}
    command = ["report", str(copy), "--settings", json.dumps(settings)]
    CliRunner().invoke(group, command, catch_exceptions=False)
    kept = copy / MODEL / "config.yaml"
    assert yaml.safe_load(kept.read_text(encoding="utf-8")) == settings
    text = words(copy / MODEL / "report.html")
    assert f"snakemake --configfile {kept} --cores all" in text
    assert "skipped.tsv has them all" in text


def test_a_folder_without_a_campaign_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlmEmbedError, match="no campaign in it yet"):
        collect(tmp_path)


def test_text_from_the_input_is_no_markup(results: Path, tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(results, copy)
    first, *others = read_summary(copy / "sequences").inputs
    named = replace(first, path="<script>alert(1)</script>")
    seal_sequences(copy / "sequences", inputs=(named, *others))
    write_report(collect(copy), tmp_path / "report.html")
    assert "<script>alert(1)" not in (tmp_path / "report.html").read_text()


def test_vectors_with_unusual_norms_are_named_by_their_records(
    results: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "results"
    shutil.copytree(results, copy)
    path = copy / MODEL / VALIDATION
    validation = read_validation(path)
    assert validation
    ((name, norms),) = validation.norms.items()
    listed = (Outlier(row=41, key="", norm=5.292, z=7.3),)
    write_sealed(path, replace(validation, norms={name: replace(norms, listed=listed)}))
    write_report(collect(copy), tmp_path / "report.html")
    index = pq.read_table(copy / MODEL / "master_esm2_embeddings.parquet", columns=["id", "row"])
    first = index["id"][index["row"].index(41).as_py()]
    assert f"{first} 5.292 7.3 41" in words(tmp_path / "report.html")


@given(st.dictionaries(st.integers(1, 40_000), st.integers(1, 10**6), min_size=1, max_size=50))
def test_every_length_is_counted_once(counts: dict[int, int]) -> None:
    _, bars = histogram(counts)
    counted = sum(int(tip.rpartition(": ")[2].replace(",", "")) for _, _, tip in bars)
    assert counted == sum(counts.values())
    assert all(0 <= height <= 100 for _, height, _ in bars)
    assert len([label for label, *_ in bars if label]) <= LABELS
