"""What Arrow and NumPy are told before they are loaded by the steps that sort millions of rows."""

import os
import sys
from importlib.abc import MetaPathFinder

KEEP_MEMORY = {"MIMALLOC_PURGE_DELAY": "-1", "MIMALLOC_ALLOW_THP": "0", "NUMPY_MADVISE_HUGEPAGE": "0"}
"""Arrow gives no memory back to the system, which would clear it when it is taken again, and there are no huge pages,
which are cleared whole. A sixth of the time of deduplicate."""


class _Pandas(MetaPathFinder):
    """Lets pandas seem absent: Arrow would load it to look for pandas' types, for as long as all else takes to load."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("this step does without pandas", name=name)


def set_up() -> None:
    """Call it before Arrow or NumPy is imported. What the environment says already stays."""
    for name, value in KEEP_MEMORY.items():
        os.environ.setdefault(name, value)
    sys.meta_path.insert(0, _Pandas())
