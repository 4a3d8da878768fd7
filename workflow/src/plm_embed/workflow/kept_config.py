"""The configuration of a run, kept beside its results: in the results folder by `plm-embed run`, in
the folder of a model by the workflow.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from plm_embed.errors import StoreError, delete
from plm_embed.io.files import atomic_path
from plm_embed.io.terminal import printable

_RELATIVE = "# Paths are relative to "


def write_kept(path: Path, config: Mapping[str, Any], title: str) -> None:
    """Write a configuration below a line of comment, with the folder that its paths start from."""
    plain = json.loads(json.dumps(dict(config)))  # YAML would write anchors for shared values
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)
    head = f"# {printable(title)}\n{_RELATIVE}{json.dumps(str(Path.cwd()))}\n"
    with atomic_path(path) as temporary:
        temporary.write_text(head + text, encoding="utf-8")


def read_kept(path: Path) -> tuple[dict[str, Any], Path]:
    """Return a kept configuration, and the folder that its paths start from.

    Both are empty where there is no file. StoreError when it is damaged.
    """
    if not path.is_file():
        return {}, Path()
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.splitlines() if line.startswith(_RELATIVE)]
    try:
        config = yaml.safe_load(text)
        folder = Path(json.loads(lines[0].removeprefix(_RELATIVE))) if lines else Path()
        return dict(config or {}), folder
    except (yaml.YAMLError, ValueError, TypeError):
        message = f"{path}: damaged or edited: not the configuration of a run"
        raise StoreError(message, remedy=delete(path), path=path) from None
