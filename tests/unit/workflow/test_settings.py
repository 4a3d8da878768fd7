"""A setting has one default and one range, wherever it can be given."""

import re
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any, get_args

import click
import pytest

import plm_embed
from plm_embed.fingerprint import SCORES, ComputeDtype, LongPolicy, Pooling, StorageDtype, Strand
from plm_embed.inference.settings import Settings
from plm_embed.keys import MAX_BUCKETS
from plm_embed.reading.exports import Format
from plm_embed.reading.search import Metric
from plm_embed.sequences.residues import ResiduePolicy
from plm_embed.workflow.config import schema, settings_of, with_defaults
from support.commands import COMMANDS
from support.configs import keys

ROOT = Path(__file__).parents[3]
KEYS = keys(schema())
BY_NAME = {key.rpartition(".")[2]: rules for key, rules in KEYS.items()}
OTHER_NAMES = {"dtype": "compute_dtype"}
"""Keys of the configuration, by the parameters that they set."""
OF_THE_WORKFLOW = {"inputs", "model", "weights_folder", "store", "container", "results", "weights"}
"""Keys that no function has a parameter for, or only one without a default."""
OPTIONS = {
    "buckets": ("deduplicate", "--buckets"),
    "embedding.per_residue_limit_gb": ("embed", "--per-residue-limit-gb"),
    "validate.spot_checks": ("validate", "--spot-checks"),
}
"""Keys that steps take by an option of their own; others they take as JSON."""


def allowed(key: str) -> set[str]:
    """The words that a key may have; none where it has other values."""
    return set(KEYS[key].get("enum") or KEYS[key].get("items", {}).get("enum") or ())


@pytest.mark.parametrize("key", OPTIONS)
def test_an_option_has_the_default_and_the_range_of_its_key(key: str) -> None:
    step, name = OPTIONS[key]
    (option,) = (one for one in COMMANDS[step].params if name in one.opts)
    rules, kind = KEYS[key], option.type
    assert isinstance(kind, click.IntRange | click.FloatRange)
    assert option.to_info_dict()["default"] == rules["default"]
    assert (kind.min, kind.max) == (rules.get("minimum"), rules.get("maximum"))
    assert key != "buckets" or kind.max == MAX_BUCKETS


def test_options_of_embed_have_the_defaults_of_the_settings() -> None:
    options = {one.name: one.to_info_dict()["default"] for one in COMMANDS["embed"].params}
    speed = options.keys() & vars(Settings()).keys()
    assert {"device", "threads", "toks_per_batch", "scratch", "flush_minutes"} < speed
    assert {name: options[name] for name in speed} == {
        name: getattr(Settings(), name) for name in speed
    }


def test_what_a_campaign_computes_has_the_defaults_of_the_keys() -> None:
    empty = with_defaults({"inputs": [], "model": ""})
    assert settings_of(empty) == Settings()
    assert ResiduePolicy(**empty["residues"]) == ResiduePolicy()


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("embedding.pooling", get_args(Pooling)),
        ("embedding.scores", SCORES),
        ("embedding.compute_dtype", ("auto", *get_args(ComputeDtype))),
        ("embedding.storage_dtype", get_args(StorageDtype)),
        ("embedding.long_sequences.policy", get_args(LongPolicy)),
        ("residues.strand", get_args(Strand)),
    ],
)
def test_a_key_has_the_words_of_its_type(key: str, words: tuple[str, ...]) -> None:
    assert allowed(key) == set(words)


@pytest.mark.parametrize("function", [plm_embed.load, plm_embed.embed])
def test_a_function_has_the_defaults_of_the_keys(function: Callable[..., Any]) -> None:
    given = {
        OTHER_NAMES.get(name, name): parameter.default
        for name, parameter in signature(function).parameters.items()
        if name != "long_sequences"  # a dataclass, which has its own test
    }
    known = given.keys() & BY_NAME.keys() - OF_THE_WORKFLOW
    assert {"strand", "compute_dtype"} <= known
    for name in known:
        default = BY_NAME[name]["default"]
        assert given[name] == (default[0] if isinstance(default, list) else default), name


def test_what_is_imported_is_stored_as_campaigns_ask_for_it() -> None:
    given = {option.name: option for option in COMMANDS["import"].params}
    assert given["storage_dtype"].default == BY_NAME["storage_dtype"]["default"]
    assert [given["layer"].default] == BY_NAME["layers"]["default"]
    words = given["compute_dtype"].type
    assert isinstance(words, click.Choice) and set(words.choices) <= set(get_args(ComputeDtype))


def test_the_manual_names_every_word_that_is_allowed() -> None:
    manual = (ROOT / "config" / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w.]+)` (\|.*)$", manual, re.MULTILINE))
    for key in KEYS:
        for word in allowed(key):
            assert f"`{word}`" in rows[key] or f"`[{word}]`" in rows[key], (key, word)


@pytest.mark.parametrize(
    ("page", "words", "key"),
    [
        ("numerics", "`embedding.storage_dtype` chooses the precision on disk, {} by default",
         "embedding.storage_dtype"),
        ("numerics", "{} rows (`validate.spot_checks`)", "validate.spot_checks"),
        ("models", "The default is `{}`, the mean", "embedding.pooling"),
        ("output", "the key `results` names, `{}` by default", "results"),
    ],
)  # fmt: skip
def test_a_page_that_says_a_default_says_the_right_one(page: str, words: str, key: str) -> None:
    default = KEYS[key]["default"]
    said = words.format(*(default if isinstance(default, list) else [default]))
    assert said in (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def test_words_that_commands_spell_out_are_those_of_the_code() -> None:
    """`search` and `export` name theirs without loading what knows them."""
    for command, option, words in (("search", "metric", Metric), ("export", "to", Format)):
        (given,) = [each for each in COMMANDS[command].params if each.name == option]
        assert isinstance(given.type, click.Choice)
        assert tuple(given.type.choices) == get_args(words)
