"""A setting has one default and one range, wherever it can be given."""

import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
import pytest

import plm_embed
from plm_embed.cli.main import group
from plm_embed.fingerprint import ComputeDtype, LongSequences
from plm_embed.inference.language_model import LanguageModel
from plm_embed.inference.prepare_weights import CAMPAIGNS
from plm_embed.inference.settings import Settings
from plm_embed.keys import MAX_BUCKETS
from plm_embed.reading.exports.export import Format
from plm_embed.reading.search.scan import Metric
from plm_embed.sequences.deduplicate import LEAST_MEMORY_MB
from plm_embed.sequences.normalize import ResiduePolicy
from plm_embed.sequences.tables import Table
from plm_embed.workflow.config import schema

ROOT = Path(__file__).parents[3]
Rules = dict[str, Any]


def leaves(rules: Rules, prefix: str = "") -> Iterator[tuple[str, Rules]]:
    """Each key of the configuration by its dotted name, and the schema of its value."""
    for name, part in rules["properties"].items():
        if "properties" in part:
            yield from leaves(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", part


KEYS = dict(leaves(schema()))
BY_NAME = {key.rpartition(".")[2]: rules for key, rules in KEYS.items()}
OTHER_NAMES = {
    "long_sequences": "policy",
    "unknown_residues": "unknown",
    "id_column": "id",
    "sequence_column": "sequence",
    "dtype": "compute_dtype",
    "layer": "layers",
}
"""Of options and parameters, the key that they are called in the configuration."""
OF_THE_WORKFLOW = {
    *("results", "inputs", "model", "weights", "adapter", "weights_folder", "deduplicate"),
    *("store", "site", "container", "buckets_per_submission", "local_rules"),
}
"""Keys that no command has an option for, or only one without a default."""


def allowed(rules: Rules) -> set[str] | None:
    found = rules.get("enum") or rules.get("items", {}).get("enum")
    return set(found) if found else None


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def options() -> list[tuple[str, click.Option]]:
    """Options of the steps of the workflow that a key of the configuration stands for, but for
    those without a default, which the workflow gives.
    """
    steps = ("deduplicate", "scan", "split", "embed", "validate")
    return [
        (OTHER_NAMES.get(option.name or "", option.name or ""), option)
        for step in steps
        for option in group.commands[step].params
        if isinstance(option, click.Option)
        and not option.required
        and (option.multiple or option.to_info_dict()["default"] is not None)
        and OTHER_NAMES.get(option.name or "", option.name) in BY_NAME
    ]


def test_names_of_keys_are_told_apart_without_their_block() -> None:
    assert len(BY_NAME) == len(KEYS)


def test_what_a_command_needs_to_know_it_can_be_told() -> None:
    assert {name for name, _ in options()} == set(BY_NAME) - OF_THE_WORKFLOW


@pytest.mark.parametrize(("name", "option"), options())
def test_an_option_has_the_default_and_the_range_of_its_key(
    name: str, option: click.Option
) -> None:
    rules = BY_NAME[name]
    default = option.to_info_dict()["default"]
    assert (list(default or ()) if option.multiple else default) == rules["default"]
    kind = option.type
    if isinstance(kind, click.Choice):
        assert set(kind.choices) == allowed(rules)
    elif isinstance(kind, (click.IntRange, click.FloatRange)):
        bound = rules["exclusiveMinimum"] if kind.min_open else rules["minimum"]
        assert (kind.min, kind.max) == (bound, rules.get("maximum"))
    else:
        assert allowed(rules) is None and not {"minimum", "exclusiveMinimum"} & set(rules)


def literals(kind: Any) -> set[str] | None:
    """The words that a type allows; None when it is no type of words."""
    if get_origin(kind) is Literal:
        return set(get_args(kind))
    inside = [literals(each) for each in get_args(kind)]
    words: set[str] = set().union(*(each for each in inside if each))
    return words or None


@pytest.mark.parametrize("kind", [Settings, LongSequences, ResiduePolicy, Table])
def test_a_dataclass_has_the_default_and_the_words_of_its_keys(kind: type) -> None:
    types = get_type_hints(kind)
    known = [each.name for each in fields(kind) if each.name in BY_NAME]
    assert known
    for name in known:
        assert plain(getattr(kind(), name)) == BY_NAME[name]["default"], name
        assert literals(types[name]) == allowed(BY_NAME[name]), name


@pytest.mark.parametrize("function", [plm_embed.load, plm_embed.embed, LanguageModel])
def test_a_function_has_the_defaults_of_the_keys(function: Callable[..., Any]) -> None:
    given = {
        OTHER_NAMES.get(name, name): parameter.default
        for name, parameter in signature(function).parameters.items()
        if name != "long_sequences"  # a dataclass, which has its own test
    }
    known = given.keys() & BY_NAME.keys() - OF_THE_WORKFLOW
    assert {"strand", "device", "compute_dtype"} <= known
    for name in known:
        default = BY_NAME[name]["default"]
        assert given[name] == (default[0] if isinstance(default, list) else default), name


@pytest.mark.parametrize("name", ["strand", "device", "dtype"])
def test_a_model_in_memory_takes_the_words_of_the_keys(name: str) -> None:
    kind = get_type_hints(LanguageModel.__init__)[name]
    assert literals(kind) == allowed(BY_NAME[OTHER_NAMES.get(name, name)])


def test_what_is_imported_is_stored_as_campaigns_ask_for_it() -> None:
    given = {option.name: option for option in group.commands["import"].params}
    assert given["storage_dtype"].default == BY_NAME["storage_dtype"]["default"]
    assert [given["layer"].default] == BY_NAME["layers"]["default"]
    words = given["compute_dtype"].type
    assert isinstance(words, click.Choice) and set(words.choices) <= set(get_args(ComputeDtype))


def test_bounds_in_the_code_are_those_of_the_schema() -> None:
    buckets = BY_NAME["buckets"]
    assert (buckets["minimum"], buckets["maximum"]) == (1, MAX_BUCKETS)
    assert BY_NAME["memory_mb"]["minimum"] == LEAST_MEMORY_MB


def test_the_manual_names_every_word_that_is_allowed() -> None:
    manual = (ROOT / "config" / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w.]+)` (\|.*)$", manual, re.MULTILINE))
    for key, rules in KEYS.items():
        for word in allowed(rules) or ():
            assert f"`{word}`" in rows[key] or f"`[{word}]`" in rows[key], (key, word)


@pytest.mark.parametrize(
    ("page", "words", "key"),
    [
        ("campaign", "`speed.flush_minutes` ({} minutes)", "speed.flush_minutes"),
        ("scale", "up to {} minutes of vectors (`flush_minutes`)", "speed.flush_minutes"),
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


def test_comments_of_the_shipped_file_name_every_word_or_none() -> None:
    text = (ROOT / "config" / "config.yaml").read_text(encoding="utf-8")
    for key, value, comment in re.findall(r"^ *(\w+): ([^#\n]+?) +# (.*)$", text, re.MULTILINE):
        known = (allowed(BY_NAME.get(key, {})) or set()) - {value.strip("[]")}
        said = known & set(re.findall(r"\w+", comment))
        assert said in (set(), known), key


def test_the_rule_says_every_option_of_embed() -> None:
    rule = (ROOT / "workflow" / "rules" / "embed.smk").read_text(encoding="utf-8")
    for option in group.commands["embed"].params:
        if isinstance(option, click.Option):
            (name, *_) = option.opts
            word = name.removeprefix("--")
            assert re.search(rf"{name}[ =]|options\(\"{word}\"", rule), name


def test_words_that_commands_spell_out_are_those_of_the_code() -> None:
    """`search` and `export` name theirs without loading what knows them."""
    for command, option, words in (("search", "metric", Metric), ("export", "to", Format)):
        (given,) = [each for each in group.commands[command].params if each.name == option]
        assert isinstance(given.type, click.Choice)
        assert tuple(given.type.choices) == get_args(words)


def test_weights_are_looked_for_where_campaigns_have_them() -> None:
    assert str(CAMPAIGNS) == KEYS["weights_folder"]["default"]
