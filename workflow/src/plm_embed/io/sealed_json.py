"""JSON files that carry the SHA-256 of their own content: a changed bit is named and never
believed.

The key `sha256` of the file is the SHA-256 of everything else in it, as JSON with sorted keys and
without white space.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from plm_embed.errors import PlmEmbedError, StoreError
from plm_embed.io.files import write_json
from plm_embed.typed_json import UnfitError, from_plain, to_plain

SEAL = "sha256"
T = TypeVar("T")


def write_sealed(path: Path, record: object) -> None:
    """Write a dataclass, or a dictionary, without a key `sha256` as sealed JSON, atomically."""
    content = to_plain(record)
    # through JSON and back: what was written as a tuple or with numbers as keys is read otherwise
    plain = json.loads(json.dumps(content, ensure_ascii=False))
    write_json(path, {**content, SEAL: _digest(plain)})


def read_sealed(  # noqa: PLR0917
    path: Path,
    kind: type[T],
    what: str,
    remedy: str,
    error: type[PlmEmbedError] = StoreError,
    update: Callable[[dict[str, object]], dict[str, object]] = dict,
) -> T:
    """The dataclass that was written to a sealed JSON file.

    `error` when the file is missing, damaged, changed, or lacks a key or has one too many: it names
    the path, says that it is not `what` ("a summary of sequences") and has this `remedy` ("run
    `plm-embed deduplicate` again"). `update` makes the content of an earlier version that of this.
    """
    content = update(unsealed(path, what, remedy, error))
    try:
        return from_plain(kind, content)
    except UnfitError as unfit:
        raise error(
            f"{path}: not {what} of this version ({unfit})", remedy=remedy, path=path
        ) from None


def unsealed(
    path: Path, what: str, remedy: str, error: type[PlmEmbedError] = StoreError
) -> dict[str, object]:
    """The content of a sealed JSON file, whatever it is, without its seal. Errors as
    `read_sealed`.
    """
    try:
        content = json.loads(path.read_bytes())
        seal = content.pop(SEAL)
        sound = seal == _digest(content)
    except FileNotFoundError:
        raise error(f"{path}: there is no such file", remedy=remedy, path=path) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise error(f"{path}: not {what}, or damaged", remedy=remedy, path=path) from None
    if not sound:
        raise error(
            f"{path}: changed since it was written (its sha256 does not fit)",
            remedy=remedy,
            path=path,
        )
    return dict(content)


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
