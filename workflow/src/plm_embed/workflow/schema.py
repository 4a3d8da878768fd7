"""A configuration beside its schema: defaults, numbers that came as text, and what is wrong, in
words.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import yaml

from plm_embed.io.terminal import printable
from plm_embed.wording import did_you_mean

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

_LEVELS = 5
"""Of blocks and lists in each other; the schema has three."""
_BITS = 64
_SHOWN = 200
"""Characters of a value in a message."""


def outsized(value: Any, levels: int = _LEVELS) -> bool:
    """Whether a value is nested more deeply, or holds a larger number, than Python's own tools can
    show.
    """
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value).bit_length() > _BITS
    inside = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    )
    return levels < 0 or any(outsized(item, levels - 1) for item in inside)


def completed(value: Any, schema: Mapping[str, Any]) -> Any:
    """`value` with defaults for absent keys, and with numbers and lists that came as text
    (`--config`) parsed.
    """
    kind = schema.get("type", "string")
    if isinstance(kind, list):  # text or a block, which --config gives as text too
        parsed = _parsed(value) if isinstance(value, str) and value.startswith("{") else value
        value = parsed if isinstance(parsed, Mapping) else value
    elif isinstance(value, str) and kind != "string":
        parsed = _parsed(value)
        value = parsed if kind != "array" or isinstance(parsed, list) else [value] if value else []
    if kind == "array" and isinstance(value, int) and not isinstance(value, bool):
        value = [value]  # `layers: 33`, as `inputs: one.fasta` above
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)  # 1e3 and 64.0
    if isinstance(value, Mapping) and "properties" in schema:
        properties = schema["properties"]
        # `weights:` and nothing after it
        given = {key: item for key, item in value.items() if item is not None}
        for key, sub in properties.items():
            if key not in given and ("default" in sub or "properties" in sub):
                given[key] = sub.get("default", {})
        return {key: completed(item, properties.get(key, {})) for key, item in given.items()}
    if isinstance(value, Mapping) and isinstance(below := schema.get("additionalProperties"), dict):
        return {key: completed(item, below) for key, item in value.items() if item is not None}
    if schema.get("format") == "path" and isinstance(value, str) and value == printable(value):
        return os.path.expanduser(value)  # noqa: PTH111 - a Path would make a dot of ""
    if isinstance(value, list) and "items" in schema:
        return [completed(item, schema["items"]) for item in value]
    return value


def _parsed(text: str) -> Any:
    for parse in (json.loads, yaml.safe_load):  # JSON first: YAML takes 1e-3 for text
        try:
            value = parse(text)
        except (ValueError, RecursionError, LookupError, AttributeError, yaml.YAMLError):
            # of PyYAML, for bad tags
            continue
        return text if outsized(value) else value
    return text


def odd_values(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Places of what neither the schema nor what comes after it can judge, and what is wrong
    there.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from odd_values(item, f"{place}.{key}".lstrip("."))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from odd_values(item, f"{place}[{number}]")
    elif isinstance(value, str) and (
        value != printable(value) or ("\n" in value and not place.startswith("table."))
    ):
        yield place, f"{_shown(value)}: holds a control character; rename it"
    elif isinstance(value, float) and not math.isfinite(value):
        yield place, f"{value}: must be a finite number"


def _shown(value: Any) -> str:
    """A value for a message, cut when it is long."""
    try:
        text = json.dumps(value, default=str, ensure_ascii=False)
    except TypeError:  # a key that is no text
        text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def place_of(error: "ValidationError") -> str:
    """Where an error is, as in 'embedding.layers[1]'; '' at the top."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
    return "".join(steps).lstrip(".")


def in_words(error: "ValidationError") -> Iterator[str]:
    """Lines that say what is wrong: the key, its value, and what it should be."""
    rule: Any = error.validator_value
    schema: Any = error.schema
    place, value = place_of(error), _shown(error.instance)
    match error.validator:
        case "additionalProperties":
            known = schema["properties"]
            given: Any = error.instance
            for key in (key for key in given if key not in known):
                value = _shown(given[key])
                hint = did_you_mean(str(key), known)
                yield f"{place}.{key}: {value}: there is no such key{hint}".lstrip(".")
        case "required":
            for key in (key for key in rule if f"'{key}'" in error.message):
                yield f"{key}: missing: {schema['properties'][key]['description']}"
        case "type":
            kinds = [rule] if isinstance(rule, str) else rule
            yield f"{place}: {value}: must be {' or '.join(_KINDS[kind] for kind in kinds)}"
        case "enum":
            yield (
                f"{place}: {value}: must be one of "
                f"{', '.join(rule)}{did_you_mean(str(error.instance), rule)}"
            )
        case "minLength" | "minItems":
            yield f"{place}: {value}: must not be empty"
        case "minimum":
            yield f"{place}: {value}: must be at least {rule}"
        case "exclusiveMinimum":
            yield f"{place}: {value}: must be more than {rule}"
        case "maximum":
            yield f"{place}: {value}: must be at most {rule}"
        case "uniqueItems":
            items: Any = error.instance
            counts = Counter(json.dumps(item, default=str, ensure_ascii=False) for item in items)
            twice = [item for item, count in counts.items() if count > 1]
            yield f"{place}: {value}: names {', '.join(twice) or 'something'} twice"
        case _:
            yield f"{place}: {error.message}"


_KINDS = {
    "array": "a list, such as [a, b]",
    "integer": "a whole number",
    "number": "a number",
    "object": "a block of keys",
    "string": "text",
}
