"""Results beside which Snakemake has no notes, or that it takes for current by their times."""

import os
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from plm_embed.inference.prepare_weights import prepare
from plm_embed.io.files import touched
from plm_embed.models.manifest import RECORD, write_manifest
from plm_embed.models.registry import MODELS
from plm_embed.sequences.deduplicate import deduplicate
from plm_embed.sequences.scan import scan
from plm_embed.sequences.settings import Reading
from plm_embed.sequences.summary import SUMMARY
from plm_embed.sequences.tables import Table
from plm_embed.workflow.by_model import by_model
from plm_embed.workflow.campaign import known_settings
from plm_embed.workflow.config import Config, checked
from plm_embed.workflow.forget import forget, inputs_changed
from support.checkpoints import random_state, write_fair_esm, write_hugging_face

MODEL = MODELS["esm2_t3_untrained"]
SEQUENCES, VECTORS = Path("results/sequences"), Path("results", MODEL.name)
TABLE = "id,other,sequence,mutant\na,b,MKVLA,MKVLC\n"
LONG_AGO = 10**9


def settings(**change: Any) -> Config:
    given = {"inputs": "a.csv", "model": MODEL.name, "weights": "esm2.pt", "buckets": 1} | change
    return by_model(checked(given))[MODEL.name]


def said(**change: Any) -> str:
    """What is told of a campaign with these settings."""
    return "\n".join(forget(settings(**change), looking=True))


@pytest.fixture(autouse=True)
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences and weights as the campaign leaves them, in a working folder."""
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text(TABLE, encoding="utf-8")
    weights = write_fair_esm(Path("esm2.pt"), MODEL, random_state(MODEL, 1))
    for path in (Path("a.csv"), weights):
        os.utime(path, (LONG_AGO, LONG_AGO))
    write_sequences()
    write_weights("esm2.pt", "resources/weights")


def write_sequences(**table: str) -> None:
    deduplicate(
        [Path("a.csv")], SEQUENCES, **vars(Reading(buckets=1, table=Table(**table))), memory_mb=500
    )


def write_weights(source: str, folder: str) -> None:
    made = prepare(MODEL, source, Path(folder, MODEL.name))
    VECTORS.mkdir(exist_ok=True)
    write_manifest(VECTORS / RECORD, made)


def test_what_the_configuration_asks_for_stays() -> None:
    assert said() == ""
    assert said(inputs="./a.csv", weights=str(Path("esm2.pt").resolve()), weights_folder="w") == (
        f"plm-embed: w/{MODEL.name} holds no weights now: a run makes {RECORD} again"
    )


@pytest.mark.parametrize("column", ["id", "sequence"])
def test_other_columns_of_a_table_are_read_again(column: str) -> None:
    write_sequences(**{column: "mutant"})
    assert "has sequences that were read with other settings" in said()
    assert said(table={column: "mutant"}) == ""


def test_the_columns_of_tables_mean_nothing_for_fasta() -> None:
    Path("a.csv").write_text(">a\nMKVLA\n", encoding="utf-8")
    write_sequences(id="other")
    assert said() == ""


@pytest.mark.parametrize("content", [TABLE.replace("MKVLA", "MKVLAA"), TABLE.replace("LA", "LG")])
def test_an_older_file_in_the_place_of_an_input_is_read(content: str) -> None:
    Path("a.csv").write_text(content, encoding="utf-8")
    os.utime("a.csv", (LONG_AGO, LONG_AGO))
    assert said() == f"plm-embed: a.csv is not the file that was read: a run makes {SUMMARY} again"
    forget(settings(), looking=False)
    assert not (SEQUENCES / SUMMARY).exists()


def test_a_scan_of_a_file_that_was_replaced_is_removed() -> None:
    """It is left where the run ended before its sequences were collected."""
    folder = SEQUENCES / "scans" / "00000-abc"
    scan(Path("a.csv"), 0, folder, **vars(Reading(buckets=1)))
    assert said() == "" and not inputs_changed(Path("results"))
    Path("a.csv").write_text(TABLE.replace("LA", "LG"), encoding="utf-8")
    os.utime("a.csv", (LONG_AGO, LONG_AGO))
    assert "a.csv is not the file that was read: a run makes 00000-abc again" in said()
    forget(settings(), looking=False)
    assert not folder.exists()


def test_inputs_that_have_grown_since_are_other_ones() -> None:
    with Path("a.csv").open("a", encoding="utf-8") as file:
        file.write("b,c,MKV,MKV\n")
    assert said() == ""  # Snakemake sees it by the time
    assert inputs_changed(Path("results"))


@pytest.mark.parametrize("anew", [True, False])
def test_a_large_input_is_hashed_where_it_was_touched(
    anew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("plm_embed.workflow.forget")  # the package has its function of that name
    monkeypatch.setattr(module, "_SMALL", 1)
    hashed: list[Path] = []
    monkeypatch.setattr(module, "sha256_file", lambda path: hashed.append(path) or "")
    if anew:
        os.utime("a.csv", (LONG_AGO, LONG_AGO))
    assert ("not the file that was read" in said()) == anew
    assert hashed == [Path("a.csv")] * anew


def other_checkpoint() -> Config:
    write_fair_esm(Path("esm2.pt"), MODEL, random_state(MODEL, 2))
    os.utime("esm2.pt", (LONG_AGO, LONG_AGO))
    return {}


def other_link() -> Config:
    shutil.move("esm2.pt", "first.pt")
    write_fair_esm(Path("second.pt"), MODEL, random_state(MODEL, 2))
    Path("esm2.pt").symlink_to("second.pt")
    return {}


def other_path() -> Config:
    write_fair_esm(Path("other.pt"), MODEL, random_state(MODEL, 2))
    os.utime("other.pt", (LONG_AGO, LONG_AGO))
    return {"weights": "other.pt", "weights_folder": "w"}


@pytest.mark.parametrize(
    "change",
    [other_checkpoint, other_link, other_path],
)
def test_vectors_of_other_weights_are_not_taken_for_these(change: Callable[[], Config]) -> None:
    config = change()
    assert said(**config) == (
        f"plm-embed: {VECTORS} has vectors of other weights: a run makes {RECORD} again"
    )
    forget(settings(**config), looking=False)
    assert not (VECTORS / RECORD).exists()


def test_what_changed_in_the_same_instant_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks of file systems tick every few milliseconds, or seconds."""
    monkeypatch.setattr(import_module("plm_embed.workflow.forget"), "_SMALL", 1)
    other_link()
    Path("a.csv").write_text(TABLE.replace("LA", "LG"), encoding="utf-8")
    os.utime("a.csv", (LONG_AGO, LONG_AGO))
    for file, record in (("esm2.pt", VECTORS / RECORD), ("a.csv", SEQUENCES / SUMMARY)):
        os.utime(record, ns=(0, touched(Path(file))))
    assert "other weights" in said() and "not the file that was read" in said()


def test_equal_weights_elsewhere_are_the_same() -> None:
    shutil.copy("esm2.pt", "copy.pt")
    assert said(weights="copy.pt") == ""
    write_hugging_face(Path("hf"), MODEL, random_state(MODEL, 1))
    assert "other weights" in said(weights="hf")  # nobody has converted these
    write_weights("hf", "resources/weights")
    assert said(weights="hf") == ""


def test_weights_that_cannot_be_read_are_left_to_their_rule() -> None:
    Path("esm2.pt").unlink()
    Path("esm2.pt").mkdir()
    assert said() == ""


@pytest.mark.parametrize(
    ("asked", "known"),
    [
        ({}, {"policy": "skip", "max_residues": 1022, "overlap": 0}),
        (
            {"policy": "window", "max_residues": 500, "overlap": 100},
            {"policy": "window", "max_residues": 500, "overlap": 100},
        ),
    ],
)
def test_what_a_model_with_a_limit_does_with_long_sequences_is_known_before(
    asked: dict[str, Any], known: dict[str, Any]
) -> None:
    """Or results of another policy, without Snakemake's notes, would be taken for these."""
    given = {"inputs": "a.csv", "model": "esm1b", "embedding": {"long_sequences": asked}}
    (config,) = by_model(checked(given)).values()
    assert known_settings(config)["long_sequences"] == known
