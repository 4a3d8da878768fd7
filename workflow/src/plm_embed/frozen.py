"""The configuration that the main process checked is the one that its jobs use, whatever happens to the file meanwhile.

Snakemake hands each job the paths of the configuration files and the words after --config, and the job reads them when
it starts, which may be days later. Here it gets the path of a copy.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from plm_embed.config import Config
from plm_embed.errors import UserError
from plm_embed.files import atomic_path

FOLDER = Path(".snakemake") / "plm-embed"
"""In the working folder. Copies stay: jobs of a main process that was killed may still be waiting."""


def freeze(workflow: Any, config: Config) -> None:
    """Write the checked configuration to a file of its own name, and let the jobs of Snakemake's `workflow` read that.

    Raises UserError when the working folder cannot be written to.
    """
    text = json.dumps(config, indent=1, ensure_ascii=False)
    path = (FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json").absolute()
    try:
        with atomic_path(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}\nSnakemake needs a working folder that it can write to") from None
    workflow.config_settings.configfiles = [path]
    workflow.config_settings.config_args = ""  # they are in the file


def notes_file(workflow: Any) -> Path:
    """Where the main process notes for its jobs why earlier attempts failed; the same in both."""
    frozen: Path = workflow.overwrite_configfiles[0]
    return frozen.with_suffix(".failures")
