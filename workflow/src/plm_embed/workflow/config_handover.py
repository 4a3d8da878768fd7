"""What the main process hands to its jobs: the configuration that it checked, in words that no
shell changes.

Snakemake hands each job the paths of the configuration files and the words after --config, and the
job reads them when it starts, which may be days later. Here it gets the path of a copy.
"""

import hashlib
import json
import os
import shlex
from collections.abc import Iterable
from functools import wraps
from pathlib import Path
from typing import Any

from plm_embed._version import __version__
from plm_embed.errors import PlmEmbedError
from plm_embed.io.files import atomic_path
from plm_embed.workflow.config import Config

FOLDER = Path(".snakemake") / "plm-embed"
"""In the working folder. Copies stay: jobs of a main process that was killed may still be
waiting.
"""


def frozen_file(config: Config) -> Path:
    """Where the checked configuration of a campaign is handed to its jobs; the same in both."""
    text = json.dumps(config, sort_keys=True)
    return (FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json").absolute()


def notes_file(config: Config) -> Path:
    """Where the main process notes for its jobs why earlier attempts failed; the same in both."""
    return frozen_file(config).with_suffix(".failures")


def freeze(config: Config) -> Path:
    """Write the checked configuration to a file of its own name; its path.

    Raises PlmEmbedError when the working folder cannot be written to.
    """
    path = frozen_file(config)
    try:
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(config, indent=1, ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        raise PlmEmbedError(
            f"{path.parent}: {error.strerror}\nSnakemake needs a working folder that it can write "
            "to: call it in another one",
            path=path.parent,
        ) from None
    return path


def hand_over(workflow: Any, path: Path) -> None:
    """Let the jobs of Snakemake's `workflow` read this file, and nothing else."""
    workflow.config_settings.configfiles = [path]
    workflow.config_settings.config_args = ""  # they are in the file


def quote_words(utils: Any) -> None:
    """Have Snakemake's `utils` quote paths on the command lines of jobs as a shell reads them.

    By itself it quotes them as Python does: "it's $5", in which a shell looks for a variable.
    """
    format_value = utils.format_cli_value
    if hasattr(format_value, "__wrapped__"):
        return

    @wraps(format_value)
    def format_cli_value(value: Any, quote: bool = False, base64_encode: bool = False) -> str:
        if isinstance(value, str) and quote and not base64_encode and not utils.is_quoted(value):
            return shlex.quote(value)
        words: str = format_value(value, quote, base64_encode)
        return words

    utils.format_cli_value = format_cli_value


def check_folders(folders: Iterable[Path]) -> None:
    """Refuse clones and environments that lie where jobs could not find them: they are looked for
    by way of PATH.
    """
    for folder in folders:
        if os.pathsep in str(folder) or "\n" in str(folder):
            raise PlmEmbedError(
                f"{folder}: no colon or line break may be in the path",
                path=folder,
                remedy="move it, or make it anew elsewhere",
            )


def check_version(theirs: str) -> None:
    """Refuse rules of another version of the package than the one that is imported here.

    theirs: the text of `_version.py` beside the rules.
    """
    version = theirs.partition('__version__ = "')[2].partition('"')[0]
    if version != __version__:
        raise PlmEmbedError(
            f"the rules are of plm_embed {version}, installed is {__version__}: "
            f"pip install 'plm-embed[all]=={version}', or name the tag v{__version__} of the rules"
        )
