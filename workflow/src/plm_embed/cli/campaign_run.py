"""A campaign as one call of Snakemake: its configuration as a file, the command, what it says and
what went wrong.
"""

import re
import shlex
import subprocess
import sys
import time
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
from plm_embed.jobs.gpus import visible_gpus
from plm_embed.planning.campaign_input import read_config
from plm_embed.planning.speeds import cores as usable_cores
from plm_embed.workflow.campaign import check_inputs
from plm_embed.workflow.config import Config, checked, schema
from plm_embed.workflow.ending import AGAIN
from plm_embed.workflow.failures import failures
from plm_embed.workflow.schema import completed

_PACKAGE = Path(plm_embed.__file__).resolve().parent
_AROUND = _PACKAGE.parents[2]
CLONE = _AROUND if (_AROUND / "workflow" / "Snakefile").is_file() else _PACKAGE / "clone"
"""The clone; of an installed package a folder with the same Snakefile, rules, profiles, sample."""
SAMPLE_MODEL = "esm2_t3_untrained"
SAMPLE = CLONE / "config" / "demo"
"""A tiny untrained model and real proteins, to try an installation with."""
CONFIG = "config.yaml"
_SHOWN = re.compile(r"plm-embed: |\d+ of \d+ steps \(")
_FIRST_LINE = "# To run it again, or extended: "
_NOTHING = "Nothing to be done"
_ERROR = re.compile(r"\w*(Error|Exception)\b")
_LINES = 400
_CAUSE_LINES = 8


def configuration(given: Mapping[str, Any], settings: Sequence[str]) -> Config:
    """The configuration of these keys and of `key=value` settings: no more keys than were given.

    ConfigError when the workflow would refuse it, with a line for each problem. InputError for a
    table without the named columns.
    """
    config: Config = {key: dict(item) if key == "table" else item for key, item in given.items()}
    for setting in settings:
        key, equals, value = setting.partition("=")
        # names of models may have a dot
        *blocks, last = key.split(".", 1 if key.startswith(("weights.", "adapter.")) else -1)
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
            words += ["--resources", f"gpu={gpus}", "--set-resources", f"embed:gpu={gpus}"]
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

    ConfigError when a campaign with other settings has begun in that folder.
    """
    wanted = checked(config)
    results = Path(wanted["results"])
    path = results / CONFIG
    if path.exists() and not path.read_text(encoding="utf-8").startswith(_FIRST_LINE):
        raise ConfigError(
            f"{path}: is not a file that `plm-embed run` wrote; choose another --results, or run "
            f"{shlex.join(command.shown)}",
            key="--results",
            path=path,
        )
    if (results / "sequences" / "summary.json").exists():
        _check_same(path, wanted, command)
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    with atomic_path(path) as temporary:
        temporary.write_text(
            f"{_FIRST_LINE}{printable(shlex.join(command.shown))}\n{text}",
            encoding="utf-8",
        )
    return path


def _check_same(path: Path, wanted: Config, command: Command) -> None:
    if not path.exists():
        raise ConfigError(
            f"{path.parent}: holds a campaign of another configuration; choose another --results",
            key="--results",
            path=path.parent,
        )
    try:
        there, now = (dict(_flat(config)) for config in (read_config(path), wanted))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", key=error.key, path=path) from None
    different = [
        f"  {key}: {there.get(key)} there, {now.get(key)} asked for"
        for key in sorted(there.keys() | now.keys())
        if there.get(key) != now.get(key)
    ]
    if different:
        raise ConfigError(
            "\n".join([f"{path}: the campaign in this folder has other settings:", *different])
            + f"\nchoose another --results; or edit that file and run {shlex.join(command.shown)}",
            key=different[0].split(":")[0].strip(),
            path=path,
        )


def _flat(config: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(config, dict):
        yield place, config
        return
    for key, item in config.items():
        yield from _flat(item, f"{place}.{key}".lstrip("."))


def execute(command: Command, results: Path) -> bool:
    """Run it to its end, and show how far it is; False when there was nothing to do.

    PlmEmbedError with the cause and the log of the step that failed.
    """
    began = time.time_ns()
    program = [sys.executable, "-m", "snakemake", *command.words, "--quiet", "host", "rules"]
    lines: list[str] = []
    with subprocess.Popen(
        program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace",
    ) as process:  # fmt: skip
        assert process.stdout
        try:
            for line in process.stdout:
                lines = [*lines[-_LINES:], line.rstrip()]
                if _SHOWN.match(line):
                    click.echo(printable(line.rstrip()), err=True)
        except KeyboardInterrupt:  # Snakemake has it too, and ends its jobs
            process.wait()
            raise
    if process.returncode:
        raise PlmEmbedError(_cause(lines, results, began), path=results)
    return not any(line.startswith(_NOTHING) for line in lines)


def _cause(lines: Sequence[str], results: Path, began: int) -> str:
    """What the first step to fail says, and its log; else the end of what Snakemake says."""
    logs = results / "logs"
    models = [folder.name for folder in logs.glob("*") if folder.is_dir()]
    if found := failures(results, models, began):
        reason = with_weights(found[0].reason, ["plm-embed", *sys.argv[1:]])
        return f"{reason}\nlog: {found[0].log}; {AGAIN}"
    errors = [number for number, line in enumerate(lines) if _ERROR.match(line)]
    said = [line for line in lines[errors[-1] if errors else -_CAUSE_LINES :] if line]
    return "\n".join(["Snakemake stopped:", *said[:_CAUSE_LINES]])


def with_weights(reason: str, words: Sequence[str]) -> str:
    """A failure in which the next command, made of the words of this one, stands in place of what
    to write into a configuration about weights.
    """
    from plm_embed.models.sources.fetch_weights import IN_CONFIG

    several = sum(word.partition("=")[0] == "--model" for word in words) > 1

    def command(found: re.Match[str]) -> str:
        model, path = found.groups()
        named = f"--set weights.{model}={path}" if several else f"--weights {path}"
        return f"run: {shlex.join(words)} {named}"

    return IN_CONFIG.sub(command, reason)
