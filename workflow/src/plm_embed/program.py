"""Names of the commands of this environment, as the user can call them."""

import os
import shlex
import shutil
import sys
from pathlib import Path

USERS_PATH = "PLM_EMBED_PATH"
"""The variable in which the workflow keeps the user's PATH, to which it adds for its jobs."""


def program() -> str:
    """Return this program as it was called: `plm-embed`, `.venv/bin/plm-embed` or
    `python -m plm_embed`.
    """
    words = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    if words[-2:] == ["-m", "plm_embed"] and USERS_PATH not in os.environ:
        return shlex.join(words)
    return called("plm-embed")


def called(name: str) -> str:
    """Return the name of a command if a shell finds this environment's, else its path."""
    beside = Path(sys.executable).with_name(name)
    on_path = shutil.which(name, path=os.environ.get(USERS_PATH))
    if not beside.exists() or (on_path and Path(on_path).absolute() == beside.absolute()):
        return name
    folder = Path.cwd()
    return shlex.quote(str(beside.relative_to(folder) if beside.is_relative_to(folder) else beside))
