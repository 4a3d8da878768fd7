"""The call of Snakemake for a campaign, as commands start it and print it."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import plm_embed
from plm_embed.startup import called

_PACKAGE = Path(plm_embed.__file__).resolve().parent
_AROUND = _PACKAGE.parents[2]
CLONE = _AROUND if (_AROUND / "workflow" / "Snakefile").is_file() else _PACKAGE / "clone"
"""The clone; of an installed package a folder with the same rules, profiles and sample."""
SNAKEFILE = CLONE / "workflow" / "Snakefile"


def profile_folder(name: str) -> str:
    """Return the folder of a shipped profile; another name, and one that is here, as it is, for
    Snakemake to find.
    """
    shipped, here = CLONE / "profiles" / name, Path(name, "profile.yaml").is_file()
    return str(shipped) if name and shipped.is_dir() and not here else name


def shell_line(words: Sequence[str]) -> str:
    """Return a line for a shell that calls Snakemake with these words, from where the user is."""
    in_clone = Path.cwd() in (CLONE, CLONE / "workflow")
    rules = [] if in_clone else ["--snakefile", str(SNAKEFILE)]
    return f"{called('snakemake')} {shlex.join([*rules, *words])}"
