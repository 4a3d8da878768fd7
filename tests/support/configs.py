"""The keys that a configuration may hold."""

from typing import Any


def keys(rules: dict[str, Any], prefix: str = "") -> dict[str, dict[str, Any]]:
    """Return the schema of every key that holds a value, by its dotted name."""
    values: dict[str, dict[str, Any]] = {}
    for name, part in rules["properties"].items():
        key = f"{prefix}{name}"
        values |= keys(part, f"{key}.") if "properties" in part else {key: part}
    return values
