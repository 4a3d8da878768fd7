"""A campaign as one call of Snakemake: its configuration as a file, the command, and its end."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

import plm_embed
from plm_embed.errors import ConfigError, PlmEmbedError, missing_extra
from plm_embed.io.files import atomic_path
from plm_embed.io.terminal import printable
from plm_embed.io.threads import cores as usable_cores
from plm_embed.jobs.gpus import visible_gpus
from plm_embed.workflow.checks import mistakes
from plm_embed.workflow.config import Config, listed, models_of, refusal, with_defaults
from plm_embed.workflow.resources import local_resources

_PACKAGE = Path(plm_embed.__file__).resolve().parent
_AROUND = _PACKAGE.parents[2]
CLONE = _AROUND if (_AROUND / "workflow" / "Snakefile").is_file() else _PACKAGE / "clone"
"""The clone; of an installed package a folder with the same rules, profiles and sample."""
SNAKEFILE = CLONE / "workflow" / "Snakefile"
CONFIG = "config.yaml"
_FIRST_LINE = "# To run it again, or extended: "
_GROWING = ("inputs", "model")
"""Keys that may get more items: what is finished for the others is kept."""
_LOCKED = "Directory cannot be locked"


def configuration(given: Mapping[str, Any], settings: Sequence[str]) -> Config:
    """Return the complete configuration of these keys and of `key=value` settings.

    ConfigError with a line for each problem.
    """
    config: Config = dict(given)
    for setting in settings:
        key, equals, value = setting.partition("=")
        *blocks, last = key.split(".", 1 if key.startswith("weights.") else -1)
        block = config
        for name in blocks:
            block = block.setdefault(name, {})
        if not equals:
            raise ConfigError(
                f"--set {setting}: write KEY=VALUE, such as --set embedding.layers=[-1]",
                key="--set",
            )
        block[last] = yaml.safe_load(value)
    if problems := mistakes(config, config):
        raise refusal(problems)
    models = list(models_of(config))
    return with_defaults(config) | {"model": models if len(models) > 1 else models[0]}


def need_snakemake() -> None:
    """PlmEmbedError when Snakemake is not installed."""
    if find_spec("snakemake") is None:
        raise PlmEmbedError(missing_extra(ModuleNotFoundError(name="snakemake")))


def command(config: Config, profile: str, cores: int | None, device: str = "") -> list[str]:
    """Return the words of the call for a campaign; without a profile it runs here, on as many GPUs
    as there are.
    """
    words = ["snakemake", "--snakefile", str(SNAKEFILE)]
    words += ["--configfile", str(Path(config["results"], CONFIG))]
    words += ["--workflow-profile", str(CLONE / "profiles" / "default")]
    if profile:
        shipped = CLONE / "profiles" / profile
        words += ["--profile", str(shipped if shipped.is_dir() else profile)]
    elif device == "cpu":
        words += ["--set-resources", "embed:device=cpu"]
    else:
        words += local_resources(len(visible_gpus()))
    if cores or not profile:
        words += ["--cores", str(cores or usable_cores())]
    return words


def write_configuration(config: Config, words: Sequence[str]) -> Path:
    """Write the configuration into the results folder, and return its path.

    ConfigError when that folder has a campaign with other settings; inputs and models may come to
    it.
    """
    path = Path(config["results"]) / CONFIG
    there = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
    if lines := list(_differences(there, config)):
        raise ConfigError(
            f"{path}: the campaign in this folder has other settings: {'; '.join(lines)}",
            key=lines[0].partition(":")[0],
            path=path,
            remedy="choose another --results, or remove that file to replace its results",
        )
    with atomic_path(path) as temporary:
        text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
        temporary.write_text(f"{_FIRST_LINE}{printable(shlex.join(words))}\n{text}", "utf-8")
    return path


def _differences(there: Config, config: Config) -> Iterator[str]:
    for key in there:
        old, new = there[key], config.get(key)
        grown = key in _GROWING and all(one in listed(new) for one in listed(old))
        # weights may be named where a download had failed
        if old != new and not grown and not (key == "weights" and not old):
            yield f"{key}: {old} there, {new} asked for"


def execute(words: Sequence[str]) -> None:
    """Run Snakemake to its end, with its words on the screen. PlmEmbedError when it fails."""
    need_snakemake()
    locked = False
    with subprocess.Popen(
        # -P: a file of the user's that is called like a module is none
        [sys.executable, "-P", "-m", *words, "--quiet", "host", "rules"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", env={**os.environ, "PYTHONSAFEPATH": "1"},
    ) as process:  # fmt: skip
        assert process.stdout
        for line in process.stdout:
            print(printable(line.rstrip()), file=sys.stderr, flush=True)
            locked = locked or _LOCKED in line
    if process.returncode and locked:
        raise PlmEmbedError(
            "another Snakemake works in this folder, or was killed",
            remedy=f"wait for it; if there is none: `{shlex.join([*words, '--unlock'])}`, then the "
            "same command again",
        )
    if process.returncode:
        raise PlmEmbedError(
            "a step failed; its log is above",
            remedy="fix the problem and give the same command again; finished work is kept",
        )
