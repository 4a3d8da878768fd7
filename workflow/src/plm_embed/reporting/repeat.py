"""Configuration, command and versions with which a campaign can be repeated."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from plm_embed._version import __version__
from plm_embed.errors import StoreError, delete
from plm_embed.io.files import atomic_path
from plm_embed.jobs.heartbeat import Heartbeat
from plm_embed.workflow.call import shell_line
from plm_embed.workflow.resources import local_resources

CONFIG = "config.yaml"
"""File in the folder of a model with every setting of the run that made the report."""
_RELATIVE = "# Paths are relative to "


def keep_config(settings: Mapping[str, Any], folder: Path) -> None:
    """Write the checked configuration that a run was started with into the folder of a model."""
    head = (
        f"# The configuration that plm-embed {__version__} ran with, defaults included.\n"
        f"{_RELATIVE}{json.dumps(str(Path.cwd()))}\n"
    )
    text = yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True, width=100)
    with atomic_path(folder / CONFIG) as temporary:
        temporary.write_text(head + text, encoding="utf-8")


def kept_config(folder: Path) -> str:
    """The text of the copy, '' when there is none."""
    path = folder / CONFIG
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def kept_settings(folder: Path) -> dict[str, Any]:
    """Return the settings in the copy; empty when there is none. StoreError when it is damaged."""
    try:
        found = yaml.safe_load(kept_config(folder)) or {}
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict):
        raise _damaged(folder)
    return found


def _damaged(folder: Path) -> StoreError:
    path = folder / CONFIG
    what = f"{path}: damaged or edited: not the configuration of a run"
    return StoreError(what, remedy=delete(path), path=path)


def ran_in(folder: Path) -> Path:
    """The folder that paths in the copy are relative to; the present one when nothing says it.
    StoreError when that line is damaged.
    """
    lines = kept_config(folder).splitlines()
    began = next((line for line in lines if line.startswith(_RELATIVE)), "")
    try:
        return Path(json.loads(began.removeprefix(_RELATIVE))) if began else Path()
    except (ValueError, TypeError):
        raise _damaged(folder) from None


def command(folder: Path, attempts: Sequence[Heartbeat], on_gpus: bool) -> str:
    """Return the command that runs the campaign again; no record names a cluster's profile."""
    words = ["--configfile", str(folder / CONFIG), "--cores", "all"]
    workers = len(attempts[-1].workers) if on_gpus and attempts and not attempts[-1].job else 0
    return shell_line([*words, *local_resources(workers)])


def lacks(attempts: Sequence[Heartbeat]) -> str:
    """Return a sentence on what the command lacks; '' when that is nothing."""
    if not any(attempt.job for attempt in attempts):
        return ""
    return "It ran in jobs of a scheduler: add their profile, such as --profile slurm."


def versions(metadata: Mapping[str, Any]) -> str:
    """The software that computed the vectors, as YAML; '' while nothing is gathered."""
    if not metadata:
        return ""
    libraries = {
        name: version
        for name, version in sorted(metadata["library_versions"].items())
        if name != "plm-embed"
    }
    commit = str(metadata.get("workflow_commit", "")) or "unknown"
    own = metadata["library_versions"].get("plm-embed", __version__)
    found = {"plm-embed": {"version": own, "commit": commit}} | libraries
    return yaml.safe_dump(found, sort_keys=False)
