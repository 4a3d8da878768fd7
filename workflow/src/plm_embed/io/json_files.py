"""JSON files of dataclasses that carry the SHA-256 of their own content: a changed bit is named and
never believed.

The key `sha256` of a file is the SHA-256 of everything else in it, as JSON with sorted keys and
without white space.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from plm_embed.errors import PlmEmbedError, StoreError, delete
from plm_embed.io.files import atomic_path

SEAL = "sha256"
T = TypeVar("T")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON with sorted keys, atomically."""
    with atomic_path(path) as temporary:
        text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def write_sealed(path: Path, record: object) -> None:
    """Write a dataclass, or a dictionary, without a key `sha256` as sealed JSON, atomically."""
    content = to_plain(record)
    write_json(path, {**content, SEAL: _digest(content)})


def read_sealed(
    path: Path,
    kind: type[T],
    name: str,
    remedy: str | None = None,
    error: type[PlmEmbedError] = StoreError,
) -> T:
    """Return the dataclass, or dictionary, that was written to a sealed JSON file. Keys of other
    versions, which it does not have, are left out.

    Raise `error` when the file is missing, damaged, changed, or lacks a key: it names the path,
    says that this is not `name` ("a summary of sequences"), and gives `remedy`, by default to
    delete it.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        if content.pop(SEAL) == _digest(content):
            return msgspec.convert(content, kind, str_keys=True)
        problem = "changed since it was written (its sha256 does not fit)"
    except (FileNotFoundError, NotADirectoryError):
        problem = "there is no such file"
    except msgspec.ValidationError as unfit:
        problem = f"not {name} of this version ({unfit})"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        problem = f"not {name}, or damaged"
    remedy = delete(path) if remedy is None else remedy
    raise error(f"{path}: {problem}", remedy=remedy, path=path)


def to_plain(record: object) -> dict[str, Any]:
    """Return a dataclass as JSON gives it back: dictionaries with text as keys, and lists."""

    # not by msgspec, which leaves out defaults of dataclasses that it made, nor by `asdict`, which
    # cannot copy a Counter
    def plain(value: Any) -> Any:
        if is_dataclass(value):
            return {field.name: getattr(value, field.name) for field in fields(value)}
        return value.item()  # of NumPy

    content: dict[str, Any] = json.loads(json.dumps(record, default=plain))
    return content


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
