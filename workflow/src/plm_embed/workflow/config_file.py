"""The configuration as the workflow sees it, from its file and the words after --config."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from plm_embed.errors import ConfigError
from plm_embed.sites.data import laid_over
from plm_embed.workflow.config import Config, checked
from plm_embed.workflow.repeated_keys import check_repeated_keys


def read_config(
    configfile: Path | None, settings: Sequence[str] = (), *, awaited: bool = False
) -> Config:
    """The configuration as the workflow sees it: `configfile`, or without one config/config.yaml,
    and the `KEY=VALUE` of Snakemake's --config laid over it. awaited: as in `checked`.
    """
    config = _yaml(configfile or Path("config/config.yaml"))
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not (equals and key):
            raise ConfigError(
                f"--config {setting}: write KEY=VALUE, as for snakemake, such as buckets=64; "
                "a file goes after --configfile",
                key="--config",
            )
        config = laid_over(config, {key: _value(value)})
    return checked(config, awaited=awaited)


def _value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _where(error: yaml.YAMLError) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    return f", line {mark.line + 1}: not YAML: {problem}" if mark else f": not YAML ({error})"


def _yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: there is no such file", path=path, remedy="name yours with --configfile"
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}{_where(error)}", path=path) from None
    check_repeated_keys([path])
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: not a configuration: it has no keys", path=path)
    return content
