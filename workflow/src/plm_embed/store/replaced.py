"""Names that moved to `parts` and `store`."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from plm_embed.store.parts import PartInfo
from plm_embed.store.store import PartList, stored_vectors

__all__ = ["PartInfo", "PartList", "current_parts", "despite_compact", "stored_vectors"]
Result = TypeVar("Result")


def current_parts(named: Iterable[PartInfo], _folder: Path) -> tuple[PartInfo, ...]:
    return tuple(sorted(named, key=lambda part: part.name))


def was_compacted(_path: Path) -> bool:
    return False


def despite_compact(work: Callable[[], Result]) -> Result:
    return work()
