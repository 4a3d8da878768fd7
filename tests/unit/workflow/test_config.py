"""The configuration: its documents agree, mistakes are named in a line, and files merge."""

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from snakemake.settings.types import SharedFSUsage, StorageSettings
from snakemake.utils import validate

from plm_embed.errors import ConfigError, StoreError
from plm_embed.models.registry import find_model
from plm_embed.sequences.settings import Table
from plm_embed.workflow.checks import known_settings, mistakes, read_config, refusals
from plm_embed.workflow.config import (
    SCHEMA,
    input_paths,
    input_tables,
    models_of,
    read_kept,
    reading_options,
    residues_of,
    schema,
    settings_of,
    source_of,
    vector_settings,
    with_defaults,
    write_kept,
)
from support.commands import COMMANDS
from support.configs import keys

ROOT = Path(__file__).parents[3]
SHIPPED: dict[str, Any] = yaml.safe_load(
    (ROOT / "config" / "config.yaml").read_text(encoding="utf-8")
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the files that small configurations name."""
    monkeypatch.chdir(tmp_path)
    Path("a.fasta").write_text(">a\nMKV\n", encoding="utf-8")
    Path("esm2.pt").write_bytes(b"")


def config(**changes: Any) -> dict[str, Any]:
    return {"inputs": ["a.fasta"], "model": "esm2_t6_8M_UR50D", **changes}


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        nested = isinstance(value, dict)
        found |= flat(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return found


LONG = {"policy": "window", "max_residues": 1023}


def keep(column: str) -> dict[str, Any]:
    return {"inputs": [{"path": "a.fasta", "keep": [column]}]}


def test_schema_defaults_shipped_file_and_readme_are_in_step() -> None:
    readme = (ROOT / "config" / "README.md").read_text(encoding="utf-8")
    before_speed = readme.partition("\n## Speed")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| (?:`([^|]+)`)? ?\|", before_speed, re.MULTILINE)
    defaults = {name: part.get("default") for name, part in keys(schema()).items()}
    assert set(flat(SHIPPED)) == set(defaults) == {name for name, _ in rows}
    assert {name: yaml.safe_load(value) if value else None for name, value in rows} == defaults
    changed = {name for name, value in flat(SHIPPED).items() if value != defaults[name]}
    assert changed == {"inputs", "model", "buckets"}, "of the demo"
    assert all(part["description"] for part in keys(schema()).values())


def test_a_job_gets_every_setting_that_decides_a_vector() -> None:
    long = {"policy": "window", "max_residues": 200, "overlap": 20}
    embedding = {"layers": [6, -1], "pooling": ["max"], "long_sequences": long}
    dna: dict[str, Any] = {"model": "DNABERT-S", "residues": {"strand": "canonical"}}
    chosen = with_defaults(config(embedding=embedding, **dna))
    context = click.Context(COMMANDS["embed"])
    (option,) = (one for one in COMMANDS["embed"].params if one.name == "vectors")
    assert option.process_value(context, vector_settings(chosen)) == settings_of(chosen)


def test_unknown_keys_are_refused_in_every_block() -> None:
    def blocks(rules: dict[str, Any]) -> list[dict[str, Any]]:
        below = [part for part in rules.get("properties", {}).values() if "properties" in part]
        return [rules, *(found for part in below for found in blocks(part))]

    for rules in [*blocks(schema()), schema()["properties"]["inputs"]["items"]]:
        assert rules["propertyNames"] == {"enum": list(rules["properties"])}


def test_the_package_fills_in_the_defaults_that_snakemake_does() -> None:
    for given in (config(), config(embedding={"long_sequences": {"policy": "crop"}})):
        filled = dict(given)
        validate(filled, SCHEMA)
        assert with_defaults(given) == filled
        assert set(flat(filled)) == set(keys(schema()))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bukets": 4}, "bukets: there is no such key; did you mean buckets?"),
        (
            {"embedding": {"poling": ["mean"]}},
            "embedding.poling: there is no such key; did you mea",
        ),
        ({"inputs": [{"path": "a.fasta", "ids": "x"}]}, "inputs[0].ids: there is no such key; did"),
        ({"zzz": [1]}, "zzz: there is no such key"),
        ({"embedding.layers": [6]}, "embedding.layers: there is no such key; did you mean embed"),
        ({"buckets": "many"}, "buckets: 'many' is not of type 'integer'"),
        ({"buckets": 0}, "buckets: 0 is less than the minimum of 1"),
        ({"inputs": []}, "inputs: [] should be non-empty"),
        ({"inputs": [{"id": "x"}]}, "inputs[0]: 'path' is a required property"),
        ({"residues": {"unknown": "skp"}}, "residues.unknown: 'skp' is not one of ['skip', 'sub"),
        ({"results": "<x>"}, "results: <x>: write the whole path: ~, variables and { } < > are"),
        ({"results": "it's"}, "results: it's: a cluster's jobs cannot take a path with"),
        ({"store": "$HOME/w"}, "store: $HOME/w: write the whole path"),
        ({"weights": {"esm2_8m": "~/w.pt"}}, "weights: ~/w.pt: write the whole path"),
        (
            {"inputs": ["a.fasta", "./a.fasta"]},
            "inputs: a.fasta: is the same file as a.fasta; name",
        ),
        (keep("length"), "inputs: a.fasta: keep: length: the results have a column of their own"),
        (
            keep("entropy") | {"embedding": {"scores": ["entropy"]}},
            "inputs: keep: entropy: is a sc",
        ),
        ({"model": "esm2_650"}, "model: 'esm2_650' is not known; did you mean"),
        ({"model": ["esm2_8m", "DNABERT-S"]}, "model: esm2_t6_8M_UR50D reads protein, DNABERT-S"),
        ({"weights": "esm3.pt"}, "weights: esm3.pt: not found; did you mean esm2.pt?"),
        ({"weights": {"esm2_35m": "esm2.pt"}}, "weights.esm2_35m: is no model of this campaign"),
        ({"residues": {"strand": "canonical"}}, "residues.strand: canonical: the model reads prot"),
        ({"embedding": {"layers": []}}, "embedding.layers: []"),
        ({"embedding": {"layers": [7]}}, "embedding.layers: [7]: esm2_t6_8M_UR50D has layers 0"),
        (
            {"model": "prott5", "embedding": {"pooling": ["mean", "bos"]}},
            "embedding.pooling: bos: prot_t5_xl_half_uniref50-enc has no <cls> token",
        ),
        (
            {"embedding": {"linker": "G", "long_sequences": LONG | {"policy": "crop"}}},
            "embedding.long_sequences.policy: crop: would part the chains of a pair; choose whole",
        ),
        (
            {"model": "esm1b", "embedding": {"long_sequences": LONG}},
            "embedding.long_sequences: esm1b_t33_650M_UR50S takes at most 1022 residues",
        ),
    ],
)
def test_a_mistake_is_named_in_a_line_with_its_place(changes: dict[str, Any], words: str) -> None:
    (line,) = mistakes(config(**changes), {})
    assert line.startswith(words)


def test_mistakes_are_named_together() -> None:
    for wrong, places in (
        (config(buckets="many", results=3), ["results", "buckets"]),
        (config(model="esm2_650", results="~/r", store="$HOME/w"), ["results", "store", "model"]),
        # a mistyped key comes before one that is missing
        ({"inputs": ["a.fasta"], "models": ["650M"]}, ["models", "'model' is a required property"]),
    ):
        assert [line.partition(":")[0] for line in mistakes(wrong, {})] == places


def test_the_demos_model_is_no_default_for_inputs_of_ones_own() -> None:
    merged = SHIPPED | {"inputs": ["a.fasta"]}
    (line,) = mistakes(merged, {"inputs": ["a.fasta"]})
    assert line.startswith("model: missing: only the demo takes esm2_t3_untrained")
    assert not mistakes(merged, {"inputs": ["a.fasta"], "model": "esm2_t3_untrained"})
    assert not mistakes(SHIPPED, {"buckets": 8})


def test_storage_that_jobs_do_not_share_is_refused() -> None:
    left = SharedFSUsage.all() - {SharedFSUsage.INPUT_OUTPUT}
    for settings, words in (
        (StorageSettings(default_storage_provider="fs"), "fs: all jobs must see one"),
        (StorageSettings(shared_fs_usage=left), "shared-fs-usage without"),
    ):
        (line,) = refusals(config(), {}, settings, alone=True)
        assert line.startswith(f"storage: {words}")
    assert not list(refusals(config(), {}, StorageSettings(), alone=True))


def test_a_file_is_merged_over_the_shipped_one_and_options_over_both() -> None:
    Path("config").mkdir()
    Path("config/config.yaml").write_text(yaml.safe_dump(config(buckets=7, store="kept")))
    Path("mine.yaml").write_text("embedding: {pooling: [max]}\nbuckets: 8\n")
    found = read_config(Path("mine.yaml"), ["buckets=9", "embedding={layers: [3]}"])
    assert (found["buckets"], found["store"]) == (9, "kept")
    assert found["embedding"]["pooling"] == ["max"] and found["embedding"]["layers"] == [3]
    assert found["embedding"]["storage_dtype"] == "float16"
    with pytest.raises(ConfigError, match=r"buckets: 0 is less than .*\n  embedding.layers"):
        read_config(Path("mine.yaml"), ["buckets=0", "embedding={layers: [a]}"])
    texts = {b"a: [": "not YAML", b"- a": "has no keys", b"inputs: [caf\xe9.fasta]": "not UTF-8"}
    for text, words in texts.items():
        Path("mine.yaml").write_bytes(text)
        with pytest.raises(ConfigError, match=words):
            read_config(Path("mine.yaml"))


def test_an_input_may_have_columns_of_its_own() -> None:
    table = {"path": "b.csv", "id": "acc", "keep": ["x"]}
    given = with_defaults(config(inputs=["a.fasta", table], residues={"gaps": "skip"}))
    assert input_paths(given) == ["a.fasta", "b.csv"]
    assert input_tables(given) == [Table(), Table(id="acc", keep=("x",))]
    assert reading_options(given) == [
        "--buckets=4",
        '--residues={"alphabet": "protein", "unknown": "skip", "gaps": "skip", '
        '"strand": "as_given"}',
        '--tables=[{}, {"id": "acc", "keep": ["x"]}]',
    ]


def test_a_partner_makes_a_campaign_of_pairs() -> None:
    single = with_defaults(config())
    table = {"path": "b.csv", "sequence": "heavy", "partner": "light"}
    pairs = with_defaults(config(inputs=["a.fasta", table]))
    colons = with_defaults(config(embedding={"linker": "GGS"}))
    linkers = [json.loads(vector_settings(one))["linker"] for one in (single, pairs, colons)]
    assert linkers == ["", 25 * "G", "GGS"]
    alphabets = [residues_of(one).alphabet for one in (single, pairs, colons)]
    assert alphabets == ["protein", "protein_pair", "protein_pair"]
    limited = known_settings(pairs, find_model("esm1b"))
    assert limited["long_sequences"]["max_residues"] == 1022 - 25
    assert limited["linker"] == 25 * "G"


def test_weights_are_named_for_one_model_or_by_model() -> None:
    esm, bert = "esm2_t6_8M_UR50D", "prot_bert"
    both = with_defaults(config(model=[esm, bert], weights={"prot_bert": "esm2.pt"}))
    models = models_of(both)
    assert list(models) == [esm, bert]
    assert source_of(both, models[bert]) == "esm2.pt"
    assert source_of(both, models[esm]) == ""
    (line,) = mistakes(config(model=[esm, bert], weights="esm2.pt"), {})
    assert "weights: esm2.pt: of which model?" in line


@pytest.mark.parametrize(
    "text", ["a: [", "- a", "word", '# Paths are relative to "x', "# Paths are relative to 3\n"]
)
def test_a_damaged_copy_is_named_with_its_remedy(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    assert read_kept(path) == ({}, Path())
    write_kept(path, {"store": "here"}, "a run\x1b")
    assert read_kept(path) == ({"store": "here"}, Path.cwd())
    path.write_text(text)
    with pytest.raises(StoreError, match=r"config.yaml: damaged .*; delete .*config.yaml and run"):
        read_kept(path)
