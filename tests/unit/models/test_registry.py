"""The table of models and the search in it."""

import re
import shutil
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest

import plm_embed
from plm_embed.errors import ConfigError, PlmEmbedError
from plm_embed.models.checkpoints import tensor_shapes
from plm_embed.models.family import Learned
from plm_embed.models.registry import MODELS, find_model, read_models


@pytest.mark.parametrize(
    ("published", "names"),
    [
        (
            "esm2_t33_650M_UR50D",
            "esm2_t33_650M_UR50D facebook/esm2_t33_650M_UR50D Facebook/ESM2_t33_650m_ur50d "
            "esm2_650m esm2-650M 650M",
        ),
        ("esm2_t6_8M_UR50D", "8m"),
        ("esm2_t36_3B_UR50D", "3B"),
        ("esm2_t48_15B_UR50D", "esm2_t48"),
        ("esm1b_t33_650M_UR50S", "esm1b ESM-1b"),
        ("esm1v_t33_650M_UR90S_1", "esm1v_1"),
        ("esm1v_t33_650M_UR90S_5", "esm-1v-5"),
        ("esm2_t3_untrained", "esm2_t3_untrained"),
    ],
)
def test_find_model_knows_published_names_and_aliases(published: str, names: str) -> None:
    assert {find_model(f" {name} ").name for name in names.split()} == {published}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("esm2_t33_650M_UR50", "did you mean esm2_t33_650M_UR50D"),
        ("esm2_650", "is not known; did you mean esm2_650m or "),
        ("ESM2-660M", "did you mean esm2_650m"),
        ("esm2_t8", "did you mean esm2_15b or esm2_8m?"),
        ("facebook/esm2_t33_650M", "did you mean facebook/esm2_t33_650M_UR50D"),
        ("prot_t5_xl", "did you mean prott5 or prott5_full?\ndocs/models.md lists all models"),
        ("", "is not known\ndocs/models.md"),
    ],
)
def test_find_model_says_what_was_meant(name: str, hint: str) -> None:
    with pytest.raises(PlmEmbedError, match="is not known") as error:
        find_model(name)
    assert hint in str(error.value)


GOOD = """
esm2:
  license: MIT
  models:
    mine: {layers: 3, dim: 32, heads: 2, url: "https://x/mine.pt", aliases: [short]}
    other: {layers: 3, dim: 32, heads: 2, hub: me/other}
"""
PARTS = (
    "for a width of 32: each needs an equal part, an even number with rotary positions; correct it"
)
BOTH = "remove it from the one that you added or changed"
MISTAKES = [
    ("  license: MIT\n", "", "esm2: mine: license: is missing; add it"),
    (
        'url: "https://x/mine.pt", ',
        "",
        "esm2: mine: url: is missing, and so is hub; add one of them, or for an unpublished model "
        "make no entry: a name and weights are enough",
    ),
    ("heads: 2, url", "head: 2, url", "esm2: mine: head: is no field; did you mean heads?"),
    (": 3,", ": three,", "esm2: mine: layers: Expected `int`, got `str`; correct it"),
    (
        "esm2",
        "esm_2",
        "esm_2: is no family that models/families/__init__.py lists; did you mean esm2?",
    ),
    ("heads: 2", "heads: 3", f"esm2: mine: 3 heads {PARTS}"),
    ("heads: 2", "heads: 32", f"esm2: mine: 32 heads {PARTS}"),
    ("heads: 2", "heads: 0", "esm2: mine: heads: Expected `int` >= 1; correct it"),
    (
        "heads: 2",
        "heads: 2, sha256: [46f002]",
        "esm2: mine: sha256: must have 64 hexadecimal digits, in lower case; correct it",
    ),
    (GOOD, "- esm2", "Expected `object`, got `array`; correct it"),
    ("mine: {", "mine: 3 #", "esm2: mine: Expected `object`, got `int` - at `$[...]`"),
    ("mine:", "3:", "esm2: 3: Expected `str`, got `int` - at `key` in `$`"),
    ("models", "model", "esm2: models: is missing; list the models of the family there"),
    ("other:", "mine:", "line 5: mine is there twice; correct it"),
    ("other:", "MINE:", f"mine: is a name of both mine and MINE; {BOTH}"),
    ("me/other", "me/other, aliases: [Short]", f"short: is a name of both mine and other; {BOTH}"),
    ("other:", "other", "line 6: mapping values are not allowed in this context; correct it"),
]


@pytest.mark.parametrize(("old", "new", "words"), MISTAKES)
def test_a_mistake_in_the_table_is_named(old: str, new: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(GOOD)
    assert [*read_models(path)] == ["mine", "short", "other"]
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError) as error:
        read_models(path)
    assert str(error.value) == f"models.yaml: {words}"


def test_a_mistake_in_the_shipped_table_is_one_line(tmp_path: Path) -> None:
    package = shutil.copytree(Path(plm_embed.__file__).parent, tmp_path / "plm_embed")
    table = package / "models" / "models.yaml"
    table.write_text(table.read_text().replace("      heads: 20\n", "", 1))
    command = [sys.executable, "-m", "plm_embed", "weights", "--model", "esm2_8m"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)}, check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        "plm-embed: error: models.yaml: esm2: esm2_t6_8M_UR50D: heads: is missing; add it\n"
    )


def test_licenses_say_what_is_not_for_everyone() -> None:
    for model in MODELS.values():
        assert model.license
        closed = re.search(r"\bNC\b|Non-Commercial", model.license)
        assert model.license.endswith(": for non-commercial use only") == bool(closed)


def test_published_models_have_a_url_and_only_learned_positions_a_limit() -> None:
    for model in MODELS.values():
        learned = isinstance(model.family.encoder.positions, Learned)
        assert (model.family.max_residues is not None) == learned
        assert bool(model.address) == model.trained
        assert not (model.url and model.hub)
        assert {len(digest) for digest in model.sha256} <= {64}
        assert bool(model.tokens_sha256) == bool(model.family.tokenizer.file)
        assert model.dim % model.heads == 0


def test_esmc_6b_is_the_published_model() -> None:
    model = MODELS["esmc_6b"]
    assert find_model("biohub/ESMC-6B") is find_model("esmc-6b") is model
    assert (model.layers, model.dim, model.heads, model.hidden) == (80, 2560, 40, 6912)
    numbers = sum(prod(shape) for shape in tensor_shapes(model).values())
    assert round(4 * numbers / 1e9, 2) == pytest.approx(25.41, abs=0.05)  # as published
