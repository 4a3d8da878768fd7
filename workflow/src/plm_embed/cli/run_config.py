"""The configuration of a run, and the options of Snakemake that carry it out."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from plm_embed.cli.options import COLUMN_REMEDIES
from plm_embed.errors import ConfigError
from plm_embed.jobs.gpus import visible_gpus
from plm_embed.kernels.devices import cores as usable_cores
from plm_embed.models.checkpoints import files_of
from plm_embed.models.weights import read_record
from plm_embed.reporting.outputs import CONFIG
from plm_embed.sequences.records import Reader
from plm_embed.workflow.call import CLONE, profile_folder, shell_line
from plm_embed.workflow.checks import checked
from plm_embed.workflow.config import (
    Config,
    input_paths,
    input_tables,
    key_and_value,
    listed,
    merged,
    models_of,
    read_kept,
    source_of,
    write_kept,
)
from plm_embed.workflow.resources import local_resources


def configuration(keys: Mapping[str, Any], settings: Sequence[str]) -> Config:
    """Return the complete configuration of these keys and of `key=value` settings, which come
    first, with columns of tables alone, not of FASTA files.

    ConfigError with a line for each problem; InputError for an input that, by its first bytes,
    cannot be read or lacks a column.
    """
    config: Config = dict(keys)
    for setting in settings:
        key, value = key_and_value("--set", setting)
        if key.startswith("weights.") and isinstance(path := config.get("weights"), str) and path:
            raise ConfigError(f"--set {setting}: weights is already {path}", key="weights")
        # names of models have dots, too
        for name in reversed(key.split(".", 1 if key.startswith("weights.") else -1)):
            value = {name: value}
        config = merged(config, value)
    config = checked(config, config)
    models = list(models_of(config))
    config["model"] = models if len(models) > 1 else models[0]
    entries = zip(listed(config["inputs"]), input_paths(config), input_tables(config), strict=True)
    config["inputs"] = []
    for entry, path, table in entries:
        columns = replace(table, remedies=COLUMN_REMEDIES)
        is_fasta = Reader(Path(path), columns).format == "fasta"
        config["inputs"].append(path if is_fasta else entry)
    return config


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
    settings, or a configuration that no run wrote. Columns that are no longer kept are named on
    stderr.
    """
    path = Path(config["results"], CONFIG)
    before, folder = read_kept(path)
    if before and not folder.is_absolute():  # somebody wrote it by hand
        words = f"{path}: not written by `plm-embed run`, which would replace it"
        raise ConfigError(words, path=path, remedy="choose another --results, or move that file")
    if before and any(path.parent.glob("*/embedded/*.json")):
        if lost := "; ".join(_lost(before, config, folder)):
            remedy = "choose another --results, or delete that file to replace its results"
            raise ConfigError(f"{path}: the results here differ: {lost}", path=path, remedy=remedy)
        if gone := ", ".join(sorted(_kept_columns(before) - _kept_columns(config))):
            words = "no --keep names it any more; the index is rebuilt without it"
            print(f"plm-embed: {gone}: {words}", file=sys.stderr)
    write_kept(path, config, f"To continue with Snakemake: {shell_line(options)}")
    return path


def _kept_columns(config: Config) -> set[str]:
    return {name for table in input_tables(config) for name in table.keep}


def _lost(before: Config, config: Config, folder: Path) -> Iterator[str]:
    """Yield a line for each input or setting of the vectors that another configuration does not
    have.

    folder: what the paths in `before` are relative to.
    """
    for block in ("embedding", "residues"):
        for key, old in before.get(block, {}).items():
            if key != "per_residue_limit_gb" and old != (new := config[block].get(key)):
                yield f"{block}.{key}: {old}, not {new}"
    now = dict(zip(map(os.path.realpath, input_paths(config)), input_tables(config), strict=True))
    for path, old in zip(input_paths(before), input_tables(before), strict=True):
        table = now.get(os.path.realpath(path)) or now.get(os.path.realpath(folder / path))
        if not table:
            yield f"they also include {path}"
        elif replace(table, id=old.id, keep=old.keep) != old:
            yield f"{path} was read with other columns"
    for model in models_of(config).values():
        source = source_of(config, model)
        record = read_record(Path(config["results"], model.name))
        if not record or source == source_of(before, model):
            continue
        if source:
            same = files_of(Path(source), model).sha256 == record.source.sha256
        else:
            same = record.published == "sha256"
        if not same:
            yield f"the weights of {model.name} are others than {source or 'published'}"
