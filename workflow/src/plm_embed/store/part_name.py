"""The name of a part, which says what it holds, so that no file is opened to find a key:
`{first key}-{last key}-{rows}-{SHA-256}.h5`, of keys their first 8 hexadecimal digits, of the
SHA-256 16.
"""

import os
import re
from pathlib import Path

DIGITS = 8
"""Of a key in a name."""
_DIGEST = 16
_NAME = re.compile(r"[0-9a-f]{8}-[0-9a-f]{8}-[0-9]+-[0-9a-f]{16}\.h5")


def part_name(first_key: str, last_key: str, rows: int, sha256: str) -> str:
    """Of a part with these bytes."""
    return f"{first_key[:DIGITS]}-{last_key[:DIGITS]}-{rows}-{sha256[:_DIGEST]}.h5"


def part_names(folder: Path) -> list[str]:
    """The names of the parts in a folder, sorted; not of what is being copied there under a hidden
    name, or was set aside.
    """
    # names alone: of 100,000 parts a path each takes four times as long
    return sorted(filter(_NAME.fullmatch, os.listdir(folder))) if folder.is_dir() else []  # noqa: PTH208


def first_digits(name: str) -> str:
    """Of the first key."""
    return name[:DIGITS]


def last_digits(name: str) -> str:
    """Of the last key."""
    return name[DIGITS + 1 : 2 * DIGITS + 1]


def rows_in(name: str) -> int:
    """The number of vectors."""
    return int(name.split("-")[2])


def names_bytes(name: str, sha256: str) -> bool:
    """Whether it is the name of a part with these bytes."""
    return name.removesuffix(".h5").endswith(f"-{sha256[:_DIGEST]}")
