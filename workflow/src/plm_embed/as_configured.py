"""How a run's configuration names a file of its results: only so does Snakemake know the file,
whatever path leads to it from here.
"""

import json
import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

CONFIG = "config.yaml"
"""In the folder of a model: every setting of the run that made the report."""
RELATIVE = "# Paths are relative to "
_RESULTS = "results: "


def as_configured(file: "str | os.PathLike[str]") -> tuple[str, str]:
    """The name of a file, two folders deep in results, and the folder in which it is called that,
    '' for the present one. The path as it is where no copy of a configuration says more.
    """
    with suppress(OSError):  # there may be no present folder any more
        return _as_configured(str(file), str(Path.cwd()))
    return str(file), ""


@lru_cache
def _as_configured(file: str, here: str) -> tuple[str, str]:
    path = Path(os.path.normpath(Path(here, file)))
    results = path.parent.parent
    for copy in (path.with_name(CONFIG), *sorted(results.glob(f"*/{CONFIG}"))):
        with suppress(OSError, ValueError, TypeError):  # damaged, or of results that lie elsewhere
            text = copy.read_text(encoding="utf-8")
            began, named = began_in(text), Path(_said(text, _RESULTS).strip("'\""))
            if began and (began / named).samefile(results):
                elsewhere = "" if began.samefile(here) else str(began)
                return str(named / path.relative_to(results)), elsewhere
    return file, ""


def began_in(copy: str) -> Path | None:
    """The folder that paths in the copy of a configuration are relative to; None where it says
    none. ValueError or TypeError when that line is damaged.
    """
    said = _said(copy, RELATIVE)
    return Path(json.loads(said)) if said else None


def _said(copy: str, start: str) -> str:
    """What follows in the line of this start, '' if there is none. Without a parser of YAML, which
    takes longer than all else that a reader does before its first vector.
    """
    lines = copy.splitlines()
    return next((line.removeprefix(start) for line in lines if line.startswith(start)), "")
