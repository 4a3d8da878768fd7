"""The configuration of a run, and the options of Snakemake that carry it out."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from plm_embed.errors import ConfigError
from plm_embed.io.paths import missing
from plm_embed.io.threads import cores as usable_cores
from plm_embed.jobs.gpus import visible_gpus
from plm_embed.models.checkpoints import files_of
from plm_embed.models.weights import read_record
from plm_embed.reporting.outputs import CONFIG
from plm_embed.sequences.records import Reader
from plm_embed.workflow.call import CLONE, profile_folder, shell_line
from plm_embed.workflow.checks import mistakes
from plm_embed.workflow.config import (
    Config,
    input_paths,
    input_tables,
    key_and_value,
    listed,
    models_of,
    refusal,
    source_of,
    with_defaults,
)
from plm_embed.workflow.kept_config import read_kept, write_kept
from plm_embed.workflow.resources import local_resources

_COLUMN_REMEDIES = {
    name: f"name yours: --{name} {{}}"
    for name in ("id", "sequence", "structure", "partner", "keep")
}


def configuration(keys: Mapping[str, Any], settings: Sequence[str]) -> Config:
    """Return the complete configuration of these keys and of `key=value` settings.

    ConfigError with a line for each problem.
    """
    config: Config = dict(keys)
    for setting in settings:
        key, value = key_and_value("--set", setting)
        *blocks, last = key.split(".", 1 if key.startswith("weights.") else -1)
        block = config
        for name in blocks:
            block[name] = block.get(name) or {}  # "" of weights
            if not isinstance(block[name], dict):
                raise ConfigError(f"--set {setting}: {name} is already {block[name]}", key=name)
            block = block[name]
        block[last] = value
    if problems := mistakes(config, config):
        raise refusal(problems)
    config = with_defaults(config)
    models = list(models_of(config))
    return config | {"model": models if len(models) > 1 else models[0]}


def with_inputs_checked(config: Config) -> Config:
    """Return the configuration with columns of tables alone, not of FASTA files.

    ConfigError for an input that is missing, and InputError for one that, by its first bytes,
    cannot be read or lacks a column.
    """
    inputs = []
    for entry, path, table in zip(
        listed(config["inputs"]), input_paths(config), input_tables(config), strict=True
    ):
        if words := missing(Path(path)):
            raise ConfigError(f"inputs: {path}: {words}", key="inputs", path=path)
        columns = replace(table, remedies=_COLUMN_REMEDIES)
        inputs.append(path if Reader(Path(path), columns).format == "fasta" else entry)
    return config | {"inputs": inputs}


def snakemake_options(
    config: Config, profile: str, cores: int | None, device: str = ""
) -> list[str]:
    """Return the options of Snakemake for a campaign; without a profile it runs here, on as many
    GPUs as there are.
    """
    options = ["--configfile", str(Path(config["results"], CONFIG))]
    options += ["--workflow-profile", str(CLONE / "profiles" / "default")]
    if profile:
        options += ["--profile", profile_folder(profile)]
    elif device == "cpu":
        options += ["--set-resources", "embed:device=cpu"]
    else:
        options += local_resources(len(visible_gpus()))
    if cores or not profile:
        options += ["--cores", str(cores or usable_cores())]
    return options


def write_configuration(config: Config, options: Sequence[str]) -> Path:
    """Write the configuration into the results folder, and return its path.

    ConfigError when the folder has vectors that this campaign would not have: of other inputs or
    settings.
    """
    path = Path(config["results"], CONFIG)
    has_vectors = any(path.parent.glob("*/embedded/*.json"))
    before, folder = read_kept(path) if has_vectors else ({}, Path())
    if lost := [*_lost(before, config, folder), *_other_weights(before, config, path.parent)]:
        raise ConfigError(
            f"{path}: the results here differ: {'; '.join(words for _, words in lost)}",
            key=lost[0][0],
            path=path,
            remedy="choose another --results, or delete that file to replace its results",
        )
    write_kept(path, config, f"To continue with Snakemake: {shell_line(options)}")
    return path


def _lost(before: Config, config: Config, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the inputs and the settings of the vectors that another configuration does not have.

    folder: what the paths in `before` are relative to.
    """
    for block in ("embedding", "residues"):
        for key, old in before.get(block, {}).items():
            new = config[block].get(key)
            if old != new and key != "per_residue_limit_gb":
                yield f"{block}.{key}", f"{block}.{key}: {old}, not {new}"
    files = {os.path.realpath(path) for path in input_paths(config)}
    for path in input_paths(before) if before else ():
        if not {os.path.realpath(path), os.path.realpath(folder / path)} & files:
            yield "inputs", f"they also include {path}"


def _other_weights(before: Config, config: Config, results: Path) -> Iterator[tuple[str, str]]:
    """Yield the models whose vectors are of other weights than the configuration names."""
    for model in models_of(config).values():
        path, record = source_of(config, model), read_record(results / model.name)
        if not before or record is None or path == source_of(before, model):
            continue
        same = (
            files_of(Path(path), model).sha256 == record.source.sha256
            if path
            else record.published == "sha256"
        )
        if not same:
            yield "weights", f"the weights of {model.name} are others than {path or 'published'}"
