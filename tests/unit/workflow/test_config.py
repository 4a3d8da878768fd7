"""The configuration: what is accepted, what becomes of it, and that its documents agree."""

import copy
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from plm_embed.errors import PlmEmbedError
from plm_embed.models.registry import MODELS
from plm_embed.sequences.settings import ResiduePolicy
from plm_embed.sequences.summary import write_summary
from plm_embed.workflow.by_model import by_model
from plm_embed.workflow.campaign import options, plan_line, reading_options, workflow_commit
from plm_embed.workflow.config import checked, input_reading, schema
from support.configs import config, keys
from support.made_up_sequences import counted

pytestmark = pytest.mark.usefixtures("in_a_folder_with_files")

ROOT = Path(__file__).parents[3]
SCHEMA = schema()
SHIPPED: dict[str, Any] = yaml.safe_load(
    (ROOT / "config" / "config.yaml").read_text(encoding="utf-8")
)


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= (
            flat(value, f"{prefix}{name}.")
            if isinstance(value, dict)
            else {f"{prefix}{name}": value}
        )
    return found


def test_schema_defaults_shipped_file_and_readme_are_in_step() -> None:
    documented = dict(
        re.findall(
            r"^\| `([\w.]+)` \| (?:`([^|]+)`)? ?\|",
            readme := text("config/README.md"),
            re.MULTILINE,
        )
    )
    defaults = {name: part.get("default") for name, part in keys(SCHEMA).items()}
    assert set(flat(SHIPPED)) == set(defaults) == set(documented)
    assert {
        name: yaml.safe_load(value) if value else None for name, value in documented.items()
    } == defaults
    of_the_demo = {"inputs", "table.id", "table.keep", "model", "weights"}
    assert {name: value for name, value in flat(SHIPPED).items() if name not in of_the_demo} == {
        name: value for name, value in defaults.items() if name not in of_the_demo
    }
    for name, part in keys(SCHEMA).items():
        assert part["description"], name
    for model in MODELS:
        assert model in readme or model.startswith("esm1v")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_unknown_keys_are_refused_everywhere() -> None:
    def objects(schema: dict[str, Any]) -> list[dict[str, Any]]:
        below = [part for part in schema.get("properties", {}).values() if "properties" in part]
        return [schema, *(found for part in below for found in objects(part))]

    assert all(part["additionalProperties"] is False for part in objects(SCHEMA))


def test_the_shipped_file_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert checked(SHIPPED)["model"] == ["esm2_t3_untrained"]


def test_defaults_are_filled_in_and_names_made_canonical() -> None:
    raw = config(model="facebook/ESM2_t6_8M_UR50D", embedding={"layers": [-1, 3, 0]})
    before = copy.deepcopy(raw)
    complete = checked(raw)
    assert raw == before
    assert complete["model"] == ["esm2_t6_8M_UR50D"]
    assert set(flat(complete)) == set(keys(SCHEMA))
    assert checked(complete) == complete
    mine = by_model(complete)["esm2_t6_8M_UR50D"]
    assert (mine["model"], mine["weights"]) == ("esm2_t6_8M_UR50D", "")
    assert mine["store"] == "results/esm2_t6_8M_UR50D/store"
    assert mine["embedding"]["layers"] == [6, 3, 0]


def test_the_alphabet_is_that_of_the_model() -> None:
    assert input_reading(checked(config())).policy == ResiduePolicy()
    assert "--alphabet=protein" in reading_options(checked(config()))
    complete = checked(config(model="DNABERT-S", residues={"strand": "canonical"}))
    assert input_reading(complete).policy == ResiduePolicy(alphabet="dna", strand="canonical")
    assert {"--alphabet=dna", "--strand=canonical"} < set(reading_options(complete))


def test_a_key_with_nothing_after_it_means_its_default() -> None:
    complete = checked(config(weights=None, speed=None, embedding={"long_sequences": None}))
    assert complete["weights"] == ""
    assert complete["speed"]["device"] == "auto"
    assert complete["embedding"]["long_sequences"]["policy"] == "whole"


def test_text_from_the_command_line_becomes_numbers_and_lists() -> None:
    given = config(
        inputs='["a.fasta"]',
        buckets="16",
        embedding='{"layers": ["3", 6], "pooling": "[mean, max]"}',
        validate={"spot_checks": "2"},
        speed={"flush_minutes": "1e-3"},
        results="12",
    )
    complete = checked(given)
    assert complete["inputs"] == ["a.fasta"]
    assert complete["buckets"] == 16
    assert complete["embedding"]["layers"] == [3, 6]
    assert complete["embedding"]["pooling"] == ["mean", "max"]
    assert complete["validate"]["spot_checks"] == 2
    assert complete["speed"]["flush_minutes"] == 0.001
    assert complete["results"] == "12"


def test_options_repeat_the_name() -> None:
    assert options("layers", [-1, 6]) == ["--layers=-1", "--layers=6"]
    assert options("keep", []) == []


def test_the_commit_is_that_of_the_clone(tmp_path: Path) -> None:
    assert workflow_commit(tmp_path) == "unknown"
    (tmp_path / ".git").mkdir()
    assert workflow_commit(tmp_path) == "unknown"
    shutil.rmtree(tmp_path / ".git")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "a.fasta"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    commit = workflow_commit(tmp_path)
    assert re.fullmatch("[0-9a-f]{40}", commit)
    (tmp_path / "a.fasta").write_text(">b\nMKV\n", encoding="utf-8")
    assert workflow_commit(tmp_path) == f"{commit}-dirty"


def test_the_plan_line_says_what_is_known() -> None:
    complete = by_model(checked(config(buckets=1)))["esm2_t6_8M_UR50D"]
    assert plan_line(complete) == (
        "plm-embed: esm2_t6_8M_UR50D, 1 bucket; records not counted yet; 0 parts in "
        "results/esm2_t6_8M_UR50D/store"
    )
    write_summary(Path("results/sequences"), counted(records=2000, unique=1500))
    parts = Path(complete["store"]) / "0123456789abcdef" / "parts"
    parts.mkdir(parents=True)
    (parts / "00000000-ffffffff-3-0123456789abcdef.h5").touch()
    (parts / ".tmp-01-00000000-ffffffff-3-fedcba9876543210.h5").touch()  # half written
    line = plan_line(complete | {"buckets": 1024})
    assert "1,024 buckets; 2,000 records with 1,500 unique sequences; 1 part in" in line


def test_whole_numbers_may_be_written_as_floats() -> None:
    found = checked(config(buckets=64.0, speed={"toks_per_batch": "1e3"}))
    assert (found["buckets"], found["speed"]["toks_per_batch"]) == (64, 1000)
    assert isinstance(found["buckets"], int) and isinstance(found["speed"]["toks_per_batch"], int)


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    found = checked(config(store="~/vectors", weights_folder="~/w/", results="~x"))
    assert (found["store"], found["weights_folder"], found["results"]) == (
        "/home/me/vectors",
        "/home/me/w/",
        "~x",
    )


def test_one_value_may_stand_for_a_list_of_one() -> None:
    Path("3").write_text(">a\nMK\n", encoding="utf-8")
    found = checked(
        config(
            inputs="3", embedding={"layers": 6, "pooling": "mean"}, reuse="", table={"keep": "x"}
        )
    )
    assert (found["inputs"], found["embedding"]["layers"], found["embedding"]["pooling"]) == (
        ["3"],
        [6],
        ["mean"],
    )
    assert (found["reuse"], found["table"]["keep"]) == ([], ["x"])


def test_inputs_that_another_workflow_has_yet_to_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = {"inputs": ["later.fasta"], "model": "esm2_8m"}
    assert checked(config, awaited=True)["inputs"] == ["later.fasta"]
    with pytest.raises(PlmEmbedError, match=r"inputs: later.fasta: not found"):
        checked(config)
    Path("later.fasta").symlink_to("nowhere")
    with pytest.raises(PlmEmbedError, match="is a link to something that is not there"):
        checked(config, awaited=True)
