"""A campaign as one call of Snakemake: its configuration as a file, and the command."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import click
import yaml

import plm_embed
from plm_embed.errors import ConfigError, PlmEmbedError, missing_extra
from plm_embed.io.files import atomic_path
from plm_embed.io.terminal import printable
from plm_embed.io.threads import cores as usable_cores
from plm_embed.jobs.gpus import visible_gpus
from plm_embed.models.registry import find_model
from plm_embed.sequences.summary import SUMMARY
from plm_embed.workflow.campaign import check_inputs
from plm_embed.workflow.config import Config, checked, schema, source_of
from plm_embed.workflow.config_file import read_config
from plm_embed.workflow.resources import local_resources
from plm_embed.workflow.schema import completed

_PACKAGE = Path(plm_embed.__file__).resolve().parent
_AROUND = _PACKAGE.parents[2]
CLONE = _AROUND if (_AROUND / "workflow" / "Snakefile").is_file() else _PACKAGE / "clone"
"""The clone; of an installed package a folder with the same Snakefile, rules, profiles, sample."""
SAMPLE_MODEL = "esm2_t3_untrained"
SAMPLE = CLONE / "config" / "demo"
"""A tiny untrained model and real proteins, to try an installation with."""
CONFIG = "config.yaml"
_FIRST_LINE = "# To run it again, or extended: "
_GROWING = ("inputs", "model")
"""Settings that may get more items: what is finished for the others stays."""


def configuration(given: Mapping[str, Any], settings: Sequence[str]) -> Config:
    """The configuration of these keys and of `key=value` settings: no more keys than were given.

    ConfigError when the workflow would refuse it, with a line for each problem. InputError for a
    table without the named columns.
    """
    config: Config = {key: dict(item) if key == "table" else item for key, item in given.items()}
    for setting in settings:
        key, equals, value = setting.partition("=")
        # names of models may have a dot
        *blocks, last = key.split(".", 1 if key.startswith("weights.") else -1)
        block = config
        for name in blocks:
            block = block.setdefault(name, {}) if isinstance(block, dict) else block
        if not (equals and last and isinstance(block, dict)):
            raise ConfigError(
                f"--set {setting}: write KEY=VALUE, such as --set embedding.layers=[-1]",
                key="--set",
            )
        block[last] = value
    check_inputs(checked(config))
    found: Config = _only(completed(config, schema()), config)
    return found


def _only(full: Any, given: Any) -> Any:
    """Of a configuration with all defaults, the keys that were given."""
    if not (isinstance(full, dict) and isinstance(given, dict)):
        return full
    return {key: _only(full[key], item) for key, item in given.items()}


def need_snakemake() -> None:
    """PlmEmbedError when Snakemake is not installed."""
    if find_spec("snakemake") is None:
        raise PlmEmbedError(missing_extra(ModuleNotFoundError(name="snakemake")))


@dataclass(frozen=True)
class Command:
    """How Snakemake is called: the words after the program's name."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, config: Config, profile: str, cores: int | None) -> Self:
        """For a campaign; without a profile it runs here, on as many GPUs as there are.

        PlmEmbedError when Snakemake is not installed.
        """
        need_snakemake()
        configfile = str(Path(config["results"]) / CONFIG)
        words = ["--snakefile", str(CLONE / "Snakefile"), "--configfile", configfile]
        on_cpu = config.get("speed", {}).get("device") == "cpu"
        if not (profile or on_cpu) and (gpus := len(visible_gpus())):
            profile = "local"
            words += local_resources(gpus)
        if profile:
            shipped = CLONE / "profiles" / profile
            own = _is_profile(Path(profile)) or not shipped.exists()
            words += ["--profile", profile if own else str(shipped)]
        if cores or not profile:
            words += ["--cores", str(cores or usable_cores())]
        return cls(tuple(words))

    @property
    def shown(self) -> list[str]:
        """For a shell in this folder."""
        here = Path("Snakefile").exists() and Path("Snakefile").samefile(CLONE / "Snakefile")
        return ["snakemake", *(self.words[2:] if here else self.words)]


def _is_profile(folder: Path) -> bool:
    names = ("config.yaml", "profile.yaml", "config.v*.yaml", "profile.v*.yaml")
    return any(next(folder.glob(name), None) for name in names)


def write_configuration(config: Config, command: Command) -> Path:
    """Write it into the results folder, whose campaign it is from then on; the path.

    ConfigError when a campaign with other settings has begun in that folder; inputs and models may
    come to it, and paths may be spelled otherwise: they stay as they were, as Snakemake goes by
    the spelling.
    """
    wanted = checked(config)
    results = Path(wanted["results"])
    path = results / CONFIG
    if path.exists() and not path.read_text(encoding="utf-8").startswith(_FIRST_LINE):
        raise ConfigError(
            f"{path}: is not a file that `plm-embed run` wrote",
            key="--results",
            path=path,
            remedy=f"choose another --results, or run {shlex.join(command.shown)}",
        )
    there = _compare(path, wanted, command)
    text = yaml.safe_dump(_as_there(config, there), sort_keys=False, allow_unicode=True)
    with atomic_path(path) as temporary:
        temporary.write_text(
            f"{_FIRST_LINE}{printable(shlex.join(command.shown))}\n{text}",
            encoding="utf-8",
        )
    return path


def _compare(path: Path, wanted: Config, command: Command) -> Config:
    """The settings of the campaign in the folder, none without one. ConfigError when it has begun
    with other ones than these. Inputs and models may come to it.
    """
    begun = (path.parent / "sequences" / SUMMARY).exists()
    if not path.exists():
        if begun:
            raise ConfigError(
                f"{path.parent}: holds a campaign of another configuration",
                key="--results",
                path=path.parent,
                remedy="choose another --results",
            )
        return {}
    try:
        there = read_config(path)
    except ConfigError as error:
        if not begun:
            return {}
        raise ConfigError(f"{path}: {error}", key=error.key, path=path) from None
    wanted = _as_there(wanted, there)
    different = _different(there, wanted)
    added = [one for key in _GROWING for one in wanted[key] if one not in there[key]]
    if different and begun:
        raise ConfigError(
            "\n".join([f"{path}: the campaign in this folder has other settings:", *different])
            + f"\nchoose another --results; or edit that file and run {shlex.join(command.shown)}",
            key=different[0].split(":")[0].strip(),
            path=path,
        )
    if different:
        click.echo(f"{path.parent}: nothing is finished here yet: the new settings hold", err=True)
    elif added:
        click.echo(printable(f"{path.parent}: new in this campaign: {', '.join(added)}"), err=True)
    return there


def _different(there: Config, now: Config) -> list[str]:
    """A line for each setting that was changed, or inputs and models that were taken away. Weights
    may be named where none were.
    """
    old, new = (dict(_flat(_by_model(config, there["model"]))) for config in (there, now))
    new = _as_there(new, old)
    return [
        f"  {key}: {old.get(key)} there, {new.get(key)} asked for"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
        and not (key in _GROWING and set(old[key]) <= set(new[key]))
        and not (key.startswith("weights.") and not old[key])  # what could not be downloaded
    ]


def _as_there(now: Any, there: Any) -> Any:
    """What is asked for, with the paths that are there where both lead to the same file."""
    if isinstance(now, dict) and isinstance(there, dict):
        return {key: _as_there(item, there.get(key)) for key, item in now.items()}
    if isinstance(now, list) and isinstance(there, list):
        return [next((each for each in there if _same(one, each)), one) for one in now]
    return there if _same(now, there) else now


def _same(one: Any, other: Any) -> bool:
    named = isinstance(one, str) and isinstance(other, str) and one and other
    return one == other or bool(named and os.path.realpath(one) == os.path.realpath(other))


def _by_model(config: Config, models: Sequence[str]) -> Config:
    """With weights named for each of these models, however they were given."""
    found = [find_model(name) for name in models]
    named = {
        model.name: source_of(config["weights"], model) or str(model.shipped or "")
        for model in found
    }
    return config | {"weights": named}


def _flat(config: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(config, dict):
        yield place, config
        return
    for key, item in config.items():
        yield from _flat(item, f"{place}.{key}".lstrip("."))
