"""`make gpu-check`: what is missing here, or the verdict."""

import sys
from importlib.util import find_spec

NEEDED = {
    "torch": "torch",
    "numpy": "numpy",
    "backports.zstd": "backports.zstd",
    "click": "click",
    "esm": "fair-esm",
    "h5py": "h5py",
    "msgspec": "msgspec",
    "pyarrow": "pyarrow",
    "pytest": "pytest",
    "safetensors": "safetensors",
    "yaml": "PyYAML",
}
"""Modules without which nothing runs, and the packages that hold them."""


def lacks(module: str) -> bool:
    try:
        return find_spec(module) is None
    except ModuleNotFoundError:  # what it is a part of is missing
        return True


if __name__ == "__main__":
    missing = [package for module, package in NEEDED.items() if lacks(module)]
    if sys.version_info < (3, 11):  # noqa: UP036 (the machine's Python, not ours)
        sys.exit(f"Python {sys.version.split()[0]} is too old: set GPU_PYTHON to 3.11 or later")
    if missing:
        sys.exit(
            f"missing: {', '.join(missing)}; torch and numpy come with the machine's Python, the "
            "others with `make gpu-wheels`, where there is a network"
        )
    from verdict import main

    sys.exit(main())
