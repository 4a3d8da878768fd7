"""A setting has one default and one range, wherever it can be given."""

import re
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
import pytest

import plm_embed
from plm_embed.fingerprint import ComputeDtype
from plm_embed.inference.language_model import LanguageModel
from plm_embed.inference.settings import Proof, Settings
from plm_embed.keys import MAX_BUCKETS
from plm_embed.reading.exports import Format
from plm_embed.reading.search import Metric
from plm_embed.sequences.settings import Memory, Reading
from plm_embed.setting import Setting, settings
from plm_embed.workflow.config import schema
from support.commands import COMMANDS

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
OTHER_NAMES = {"dtype": "compute_dtype"}
"""Of parameters, the key that they are called in the configuration."""
OF_THE_WORKFLOW = {
    *("results", "inputs", "model", "weights", "weights_folder", "store", "container"),
}
"""Keys that no command has an option for, or only one without a default."""
STEPS: dict[str, tuple[type, ...]] = {
    "deduplicate": (Reading, Memory),
    "embed": (Settings,),
    "validate": (Proof,),
}
"""The steps of the workflow that take something from the configuration, and what they take."""
SETTINGS = [
    (step, one) for step, kinds in STEPS.items() for kind in kinds for one in settings(kind)
]
OPTIONS = {one.parameter: one.option for _, one in SETTINGS if one.key}


def allowed(rules: Rules) -> set[str] | None:
    found = rules.get("enum") or rules.get("items", {}).get("enum")
    return set(found) if found else None


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def test_names_of_keys_are_told_apart_without_their_block() -> None:
    assert len(BY_NAME) == len(KEYS)


def test_what_a_step_needs_to_know_is_a_setting_of_it() -> None:
    assert {one.key for _, one in SETTINGS if one.key} == set(KEYS) - OF_THE_WORKFLOW


@pytest.mark.parametrize(("step", "one"), SETTINGS, ids=lambda one: getattr(one, "option", one))
def test_a_setting_has_the_default_and_the_range_of_its_key(step: str, one: Setting) -> None:
    if one.key:
        rules = KEYS[one.key]
        assert plain(one.default) == rules["default"]
        assert set(one.words) == (allowed(rules) or set())
        if "type" in rules and isinstance(one.default, int | float):
            kinds = {bool: "boolean", int: "integer", float: "number"}
            assert rules["type"] == kinds[type(one.default)]
        bounds = (one.least, one.above, one.most)
        assert bounds == tuple(map(rules.get, ("minimum", "exclusiveMinimum", "maximum")))
    (option,) = (each for each in COMMANDS[step].params if each.name == one.parameter)
    assert option.opts == [f"--{one.option}"]
    default = option.to_info_dict()["default"]
    assert (tuple(default) if one.repeated else default) == one.default
    kind = option.type
    if isinstance(kind, click.Choice):
        assert list(kind.choices) == one.words
    elif isinstance(kind, (click.IntRange, click.FloatRange)):
        assert kind.min == (one.above if kind.min_open else one.least)
        assert (kind.max, kind.min_open) == (one.most, one.above is not None)
    else:
        assert not one.words and (one.least, one.above, one.most) == (None, None, None)


def test_a_step_gets_its_settings_in_one_piece() -> None:
    """Its function names none of them, and no option of its own stands for a key."""
    keyed = OPTIONS.keys() | {key.rpartition(".")[2] for key in KEYS.keys() - OF_THE_WORKFLOW}
    for step, kinds in STEPS.items():
        command = COMMANDS[step]
        mine = {one.parameter for kind in kinds for one in settings(kind)}
        assert command.callback and mine.isdisjoint(signature(command.callback).parameters), step
        named = {one.name for one in command.params if isinstance(one, click.Option)}
        assert named & keyed <= mine, step


def literals(kind: Any) -> set[str] | None:
    """The words that a type allows; None when it is no type of words."""
    if get_origin(kind) is Literal:
        return set(get_args(kind))
    inside = [literals(each) for each in get_args(kind)]
    words: set[str] = set().union(*(each for each in inside if each))
    return words or None


@pytest.mark.parametrize("function", [plm_embed.load, plm_embed.embed, LanguageModel])
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


@pytest.mark.parametrize("name", ["strand", "dtype"])
def test_a_model_in_memory_takes_the_words_of_the_keys(name: str) -> None:
    kind = get_type_hints(LanguageModel.__init__)[name]
    assert literals(kind) == allowed(BY_NAME[OTHER_NAMES.get(name, name)])


def test_what_is_imported_is_stored_as_campaigns_ask_for_it() -> None:
    given = {option.name: option for option in COMMANDS["import"].params}
    assert given["storage_dtype"].default == BY_NAME["storage_dtype"]["default"]
    assert [given["layer"].default] == BY_NAME["layers"]["default"]
    words = given["compute_dtype"].type
    assert isinstance(words, click.Choice) and set(words.choices) <= set(get_args(ComputeDtype))


def test_as_many_buckets_as_can_be_named_are_allowed() -> None:
    assert BY_NAME["buckets"]["maximum"] == MAX_BUCKETS


def test_the_manual_names_every_word_that_is_allowed() -> None:
    manual = (ROOT / "config" / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w.]+)` (\|.*)$", manual, re.MULTILINE))
    for key, rules in KEYS.items():
        for word in allowed(rules) or ():
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


def test_comments_of_the_shipped_file_name_every_word_or_none() -> None:
    text = (ROOT / "config" / "config.yaml").read_text(encoding="utf-8")
    for key, value, comment in re.findall(r"^ *(\w+): ([^#\n]+?) +# (.*)$", text, re.MULTILINE):
        known = (allowed(BY_NAME.get(key, {})) or set()) - {value.strip("[]")}
        said = known & set(re.findall(r"\w+", comment))
        assert said in (set(), known), key


def test_the_rule_gives_every_option_of_embed() -> None:
    rule = (ROOT / "workflow" / "rules" / "embed.smk").read_text(encoding="utf-8")
    given = OPTIONS.values()  # which test_dag.py sees in the command
    for option in COMMANDS["embed"].params:
        if not isinstance(option, click.Option) or option.hidden:  # for other nodes
            continue
        if option.opts[0] == "--gpu-required":  # a parameter of the rule makes it
            continue
        if option.opts[0].removeprefix("--") not in given:
            assert re.search(f"{option.opts[0]}[ =]", rule) or option.hidden, option.name


def test_words_that_commands_spell_out_are_those_of_the_code() -> None:
    """`search` and `export` name theirs without loading what knows them."""
    for command, option, words in (("search", "metric", Metric), ("export", "to", Format)):
        (given,) = [each for each in COMMANDS[command].params if each.name == option]
        assert isinstance(given.type, click.Choice)
        assert tuple(given.type.choices) == get_args(words)
