"""Refusals and notices while the Snakefile is parsed: one line each."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from plm_embed.errors import ConfigError, PlmEmbedError
from plm_embed.inference.settings import mistakes as model_mistakes
from plm_embed.inference.settings import resolved
from plm_embed.io.files import missing, repeated
from plm_embed.io.json_files import to_plain
from plm_embed.jobs.completion_record import read_completion
from plm_embed.models.checkpoints import model_of
from plm_embed.models.registry import Model
from plm_embed.models.weights import read_record
from plm_embed.sequences.settings import why_not_kept
from plm_embed.sequences.summary import known_summary
from plm_embed.wording import did_you_mean
from plm_embed.workflow.config import (
    Config,
    input_paths,
    input_tables,
    key_and_value,
    merged,
    models_of,
    read_yaml,
    residues_of,
    schema,
    settings_of,
    source_of,
    with_defaults,
)
from plm_embed.workflow.resources import misspelt

_NOT_TAKEN = re.compile(r"[{}<>]|^~|^\$\w")
"""Wildcards of Snakemake, and what a shell would have expanded."""
_UNQUOTED = re.compile(r"""["'`$\\\n]""")
"""Letters that Snakemake does not quote as a shell reads them in the job of a cluster."""


def refusals(
    config: Config, changes: Mapping[str, Any], storage: Any, alone: bool
) -> Iterator[str]:
    """Yield a line for each reason for which a campaign cannot run.

    changes: the part of the configuration that does not come from config/config.yaml. storage: the
    storage settings of Snakemake. alone: no rule of another workflow makes the inputs.
    """
    provider = storage.default_storage_provider
    if provider or "input-output" not in map(str, storage.shared_fs_usage):
        yield (
            f"storage: {provider or 'shared-fs-usage without input-output'}: all jobs must see one "
            "folder, because the store is no output of a rule; leave the storage provider out, and "
            "use an executor with a shared disk"
        )
    wrong = mistakes(config, changes if alone else {})
    yield from wrong
    # before there are results, Snakemake itself says that an input is missing
    if alone and not wrong and known_summary(Path(config.get("results", "results"), "sequences")):
        yield from _missing_inputs(config)


def notices(config: Config, profile: Any) -> Iterator[str]:
    """Yield a line for each name in a profile (Snakemake's ResourceSettings) that is nearly right,
    and for the sequences, and each model, whose results are of other settings: Snakemake makes them
    again by its notes (.snakemake), which may be lost.
    """
    yield from misspelt(profile)
    results = Path(config["results"])
    if summary := known_summary(results / "sequences"):
        now = (config["buckets"], residues_of(config), *map(os.path.realpath, input_paths(config)))
        inputs = (os.path.realpath(entry.path) for entry in summary.inputs)
        if now != (summary.buckets, summary.policy, *inputs):
            yield (
                f"{results / 'sequences'} is of other inputs or settings; if no job is planned, "
                "add --forcerun deduplicate"
            )
    for name, model in models_of(config).items():
        record = next((results / name / "embedded").glob("*.json"), None)
        try:
            stated = read_completion(record).fingerprint.stated if record else {}
        except PlmEmbedError:  # the job that reads it says so
            continue
        differences = [
            f"{key} {stated[key]}"
            for key, value in known_settings(config, model).items()
            if stated and stated[key] != value
        ]
        if differences:
            yield (
                f"{results / name} has vectors of other settings ({', '.join(differences)}); if no "
                "job is planned, add --forcerun embed"
            )


def known_settings(config: Config, model: Model) -> dict[str, Any]:
    """Return the part of the fingerprint that is known before anything is computed."""
    return to_plain(resolved(settings_of(config), model).recipe)


def read_config(configfile: Path | None, settings: Sequence[str] = ()) -> Config:
    """Return the complete configuration as the workflow sees it: config/config.yaml of this folder,
    `configfile` merged over it, and over both the `KEY=VALUE` of --config.

    Raises ConfigError for what is no YAML, and with a line for each value that is refused.
    """
    usual = Path("config/config.yaml")
    changes = read_yaml(configfile) if configfile else {}
    for setting in settings:
        changes = merged(changes, dict([key_and_value("--config", setting)]))
    return checked(merged(read_yaml(usual) if usual.exists() else {}, changes), changes)


def checked(config: Config, changes: Mapping[str, Any]) -> Config:
    """Return the configuration with its defaults; changes as for `refusals`. ConfigError with a
    line for each mistake, or for each input that is not there.
    """
    if lines := mistakes(config, changes) or list(_missing_inputs(config)):
        key = lines[0].partition(":")[0]
        raise ConfigError("\n  ".join(lines), key=key, problems=lines)
    return with_defaults(config)


def mistakes(config: Config, changes: Mapping[str, Any]) -> list[str]:
    """Return a line for each mistake in a configuration, which need not have its defaults; changes
    as for `refusals`.
    """
    from jsonschema import Draft202012Validator  # 0.1 s, for nothing in those who check none

    errors = Draft202012Validator(schema()).iter_errors(config)
    # what is missing may be one of the keys that are mistyped
    if last := sorted(errors, key=lambda error: error.validator == "required"):
        return [_line(error) for error in last]
    config = with_defaults(config)
    lines = list(_path_mistakes(config))
    try:
        lines += _model_mistakes(config)
    except PlmEmbedError as error:
        lines.append(str(error))
    if not lines and "inputs" in changes and "model" not in changes:
        lines = [
            f"model: missing: only the demo takes {name}, whose vectors mean nothing; name a "
            "model, such as esm2_t33_650M_UR50D"
            for name, model in models_of(config).items()
            if not model.trained
        ]
    return lines


def _line(error: Any) -> str:
    """Return where jsonschema has an error, and its words, for a key with the nearest right one."""
    place = error.json_path.lstrip("$.")
    if "propertyNames" in error.absolute_schema_path:
        hint = did_you_mean(str(error.instance), error.validator_value)
        return f"{place}.{error.instance}: there is no such key{hint}".lstrip(".")
    return f"{place}: {error.message}".removeprefix(": ")[:300]


def _missing_inputs(config: Config) -> Iterator[str]:
    for path in input_paths(config):
        if words := missing(Path(path)):
            yield f"inputs: {path}: {words}"


def _path_mistakes(config: Config) -> Iterator[str]:
    inputs, weights = input_paths(config), config["weights"]
    sources = weights.values() if isinstance(weights, Mapping) else [weights]
    paths = [("inputs", path) for path in inputs] + [("weights", path) for path in sources]
    paths += [(key, config[key]) for key in ("results", "store", "weights_folder")]
    for key, path in paths:
        if _NOT_TAKEN.search(path):
            words = "write the whole path: ~, variables and { } < > are not understood"
            yield f"{key}: {path}: {words}"
    if letter := _UNQUOTED.search(config["results"]):
        words = f"a cluster's jobs cannot take a path with {letter[0]!r}; name another folder"
        yield f"results: {config['results']}: {words}"
    for path, table in zip(inputs, input_tables(config), strict=True):
        for name in table.keep:
            if why := why_not_kept(name):
                yield f"inputs: {path}: keep: {name}: {why}"
    for file, same in repeated(list(map(Path, inputs))):
        yield f"inputs: {file}: is the same file as {same}; name it once"


def _model_mistakes(config: Config) -> Iterator[str]:
    """Yield mistakes about the models, their weights, and what is computed by them. PlmEmbedError
    for a model that is not known, and for residues that it cannot have.
    """
    models, weights, tables = models_of(config), config["weights"], input_tables(config)
    first = next(iter(models))
    alphabets = {model.family.alphabet.name: name for name, model in models.items()}
    if len(alphabets) > 1:
        words = ", ".join(f"{name} reads {alphabet}" for alphabet, name in alphabets.items())
        yield f"model: {words}: sequences are of one kind; make it several campaigns"
        return
    residues_of(config)
    if isinstance(weights, Mapping):
        for name, path in weights.items():
            if model_of(name, path).name not in models:
                yield f"weights.{name}: is no model of this campaign"
    elif weights and len(models) > 1:
        yield f"weights: {weights}: of which model? Write `weights: {{{first}: {weights}}}`"
        return
    with_states = any(model.family.alphabet.states for model in models.values())
    if not with_states and any(table.structure for table in tables):
        yield f"inputs: structure: {first} reads no 3Di letters; leave it out"
    for score in config["embedding"]["scores"]:
        if any(score in table.keep for table in tables):
            yield f"inputs: keep: {score}: is a score of `embedding.scores`; rename the column"
    for name, model in models.items():
        path = source_of(config, model)
        try:
            record = read_record(Path(config["results"], name))
        except PlmEmbedError:  # the rule makes it anew
            record = None
        # what prepared weights came from may be gone
        needed = path and not (record and record.source.path == str(Path(path).absolute()))
        if needed and not _NOT_TAKEN.search(path) and (words := missing(Path(path))):
            yield f"weights: {path}: {words}"
        if not (path or model.address or model.shipped):
            yield f"weights: {name} cannot be downloaded: name its file"
        yield from map(str, model_mistakes(settings_of(config), model))
