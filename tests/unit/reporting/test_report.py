"""The report: what people ask first, of a campaign in every state; whole and in part, offline."""

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
from plm_embed.fingerprint import SPANS
from plm_embed.io.json_files import write_sealed
from plm_embed.master.validation_record import VALIDATION, read_validation
from plm_embed.reporting.facts import Facts, collect
from plm_embed.reporting.report import lengths, write_report
from plm_embed.sequences.summary import read_summary
from support.campaigns import seal_sequences
from support.finished import DEMO, MODEL


def text(facts: Facts, page: Path) -> tuple[str, str]:
    """The words of a new report's first section, and those of the whole page, without its scripts,
    styles and marks.
    """
    write_report(facts, page)
    content = page.read_text(encoding="utf-8")
    content = re.sub(r"<(script|style).*?</\1>", " ", content, flags=re.DOTALL)
    first, whole = (
        html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", gap, part)))
        for part, gap in ((content.split("<section")[1], ""), (content, " "))
    )
    return first, whole


def test_a_finished_campaign_has_everything(results: Path, tmp_path: Path) -> None:
    page, facts = tmp_path / "report.html", collect(results)
    first, whole = text(facts, page)
    for words in (
        "Yes: 180 of 181 records have a vector; skipped: 1 unknown residues.",
        "Yes: all 14 checks passed, also the comparison of 2 sequences with ",
        f"{facts.master} (52.8 kB)",
        f"plm-embed search {facts.folder} --id '{facts.example}' ",
        f"plm-embed export {facts.folder} \\ vectors.parquet",
    ):
        assert words in first
    for words in (
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
        "doi:10.1126/science.ade2574",
        "Embeddings of 180 protein sequences (129 distinct; 1 of 181 records skipped)",
    ):
        assert words in whole
    assert page.stat().st_size < 300_000
    raw = page.read_text(encoding="utf-8")
    assert raw.count('role="img" aria-label=') == 1, "a text alternative for the map"
    assert "default-src 'none'" in raw and "The map needs JavaScript" in raw
    loads = re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(?!data:|#)", raw)
    assert not loads, "it loads nothing"
    facts.metadata = facts.metadata | {"inputs": {"records": 3}}
    assert "No: the input has changed" in text(facts, page)[0]


def test_nobody_is_led_to_vectors_that_failed(copy: Path) -> None:
    folder = copy / MODEL
    validation = read_validation(folder / VALIDATION)
    assert validation
    first, *others = validation.checks
    bad = replace(first, result="failed", problems=1, listed=("0001.json: no such file",))
    write_sealed(folder / VALIDATION, replace(validation, status="failed", checks=(bad, *others)))
    words, whole = text(collect(folder), folder / "report.html")
    assert "No: 1 of 14 checks failed (completion records). Do not use" in words
    assert "Yes" not in words and "import plm_embed" not in words and "export" not in words
    assert "completion records: 0001.json: no such file" in whole


def test_an_unfinished_campaign_has_what_there_is_and_what_stopped_it(copy: Path) -> None:
    folder = copy / MODEL
    page = folder / "report.html"
    (folder / VALIDATION).unlink()
    _, whole = text(collect(copy), page)
    assert "not finished yet" in whole and "Not validated yet" in whole
    assert "No master file yet" not in whole and "Their lengths are from" in whole
    for path in (*folder.glob("master_*"), folder / "embedded" / "0002.json"):
        path.unlink()
    words, whole = text(collect(copy), page)
    assert "No master file yet" in whole and "No bucket is finished yet" not in whole
    assert "Not yet: 2 of 3 buckets finished." in words and "import plm_embed" not in words
    assert "Wait while the run is at work." in words and f"plm-embed watch {copy}" in words
    log = copy / "logs" / MODEL / "embed" / "0002.log"
    log.parent.mkdir(parents=True)
    log.write_text("plm-embed: error: the disk is full\n", encoding="utf-8")
    assert f"A step failed: the disk is full ({log})" in text(collect(copy), page)[0]
    for path in folder.glob("embedded/*.json"):
        path.unlink()
    assert "No bucket is finished yet" in text(collect(copy), page)[1]


def test_each_kind_of_vectors_has_its_reader(tmp_path: Path) -> None:
    for names, call in (
        (("mean_l3", "per_residue_l3"), "get(['a'])"),
        ((SPANS, "per_token_l3"), "per_token('a')"),
    ):
        facts = Facts(tmp_path, tmp_path, MODEL, rows=1, names=names, example="a")
        assert facts.opening.endswith(f"embeddings.{call}")


def test_what_repeats_a_run_is_kept_beside_its_report(copy: Path, tmp_path: Path) -> None:
    settings = {"inputs": [str(DEMO / "proteins.fasta")], "model": MODEL, "buckets": 4}
    command = ["report", str(copy), "--settings", json.dumps(settings)]
    done = CliRunner().invoke(group, command, catch_exceptions=False)
    assert f"{copy / MODEL / 'report.html'}: open it" in done.output
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
