"""A small configuration, and the keys that a configuration may hold."""

from typing import Any


def config(**changes: Any) -> dict[str, Any]:
    return {"inputs": ["a.fasta"], "model": "esm2_t6_8M_UR50D", **changes}


def keys(schema: dict[str, Any], prefix: str = "") -> dict[str, dict[str, Any]]:
    """Every key that holds a value, by its dotted name."""
    found: dict[str, dict[str, Any]] = {}
    for name, part in schema["properties"].items():
        found |= (
            keys(part, f"{prefix}{name}.") if "properties" in part else {f"{prefix}{name}": part}
        )
    return found
