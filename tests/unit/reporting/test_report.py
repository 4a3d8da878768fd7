"""The report: whole and in part, offline."""

import html
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from plm_embed.cli.main import group
from plm_embed.errors import PlmEmbedError
from plm_embed.reporting.facts import collect
from plm_embed.reporting.report import lengths, write_report
from plm_embed.sequences.summary import read_summary
from support.campaigns import seal_sequences
from support.finished import DEMO, MODEL


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
        "All 129 vectors (mean_l3), one for each distinct sequence.",
        "keys passed Each distinct sequence has one row",
        "master_esm2_embeddings.h5 : vectors, one row per distinct sequence",
        "commit 0123456789abcdef",
        "181 records from 2 files, 129 distinct sequences, 129 vectors of 32 numbers",
        "180 of 181 records were accepted, with 129 distinct sequences.",
        "Their lengths are from 41 to 1,155, median 252.",
        "event: upper cased 1",
        "skipped: unknown residues 1",
        "14 checks, each over every row; 2 sequences recomputed by",
        "0123456789abcdef",
        "doi:10.1126/science.ade2574",
        "Embeddings of 180 protein sequences (129 distinct; 1 of 181 records skipped)",
    ):
        assert expected in text
    assert page.stat().st_size < 300_000
    raw = page.read_text(encoding="utf-8")
    assert raw.count('role="img" aria-label=') == 1, "a text alternative for the map"
    assert "default-src 'none'" in raw and "The map needs JavaScript" in raw
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(?!data:|#)", raw), (
        "it loads nothing"
    )


@pytest.mark.parametrize(
    "missing", ["validation.json", "master_esm2_embeddings.h5", "embedded/*.json"]
)
def test_an_unfinished_campaign_has_what_there_is(copy: Path, missing: str) -> None:
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
        and "Their lengths are from" in text
    )
    assert ("No master file yet" in text) == (missing == "master_esm2_embeddings.h5")
    assert ("No bucket is finished yet" in text) == (missing == "embedded/*.json")


def test_what_repeats_a_run_is_kept_beside_its_report(copy: Path, tmp_path: Path) -> None:
    settings = {"inputs": [str(DEMO / "proteins.fasta")], "model": MODEL, "buckets": 4}
    command = ["report", str(copy), "--settings", json.dumps(settings)]
    CliRunner().invoke(group, command, catch_exceptions=False)
    kept = copy / MODEL / "config.yaml"
    assert yaml.safe_load(kept.read_text(encoding="utf-8")) == settings
    page = (copy / MODEL / "report.html").read_text(encoding="utf-8")
    links = dict(re.findall(r'<li><a href="([^#"]+)">(.*?)</a>', page))
    assert set(links.values()) >= {"config.yaml", "skipped.tsv", "master_esm2_embeddings.h5"}
    assert all((copy / MODEL / address).is_file() for address in links)
    CliRunner().invoke(group, ["report", str(copy), "--output", str(tmp_path / "a.html")])
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert f'<a href="results/{MODEL}/config.yaml">' in page


def test_a_folder_without_a_campaign_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlmEmbedError, match="no campaign in it yet"):
        collect(tmp_path)


def test_text_from_the_input_is_no_markup(copy: Path, tmp_path: Path) -> None:
    first, *others = read_summary(copy / "sequences").inputs
    named = replace(first, path="<script>alert(1)</script>")
    seal_sequences(copy / "sequences", inputs=(named, *others))
    write_report(collect(copy), tmp_path / "report.html")
    assert "<script>alert(1)" not in (tmp_path / "report.html").read_text()


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=99))
def test_the_median_of_lengths_is_one_of_the_middle(values: list[int]) -> None:
    values.sort()
    words = lengths(Counter(values))
    assert words.startswith(f"Their lengths are from {values[0]:,} to {values[-1]:,}, median ")
    median = int(words.rpartition(" ")[2].rstrip(".").replace(",", ""))
    assert median in {values[len(values) // 2], values[(len(values) - 1) // 2]}
