"""Refusals and notices while the Snakefile is parsed: one line each."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plm_embed.errors import PlmEmbedError
from plm_embed.inference.settings import within_limit
from plm_embed.io.json_files import to_plain
from plm_embed.io.paths import missing, repeated, unusable
from plm_embed.jobs.completion_record import read_completion
from plm_embed.models.family import pooling_problems
from plm_embed.models.manifest import read_record
from plm_embed.models.registry import Model, find_model
from plm_embed.sequences.settings import taken
from plm_embed.sequences.summary import known_summary
from plm_embed.wording import did_you_mean
from plm_embed.workflow.config import (
    Config,
    input_paths,
    input_tables,
    listed,
    models_of,
    residues_of,
    schema,
    settings_of,
    source_of,
    with_defaults,
)

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

_NOT_PASSED_ON = re.compile(r"""["'`$\\\n]""")
"""Letters that Snakemake does not quote as a shell reads them where it writes the job of a cluster.
"""


def refusals(config: Config, own: Mapping[str, Any], storage: Any, alone: bool) -> Iterator[str]:
    """Yield a line for each reason for which a campaign cannot run.

    own: the part of the configuration that does not come from config/config.yaml. storage: the
    storage settings of Snakemake. alone: no rule of another workflow makes the inputs.
    """
    provider = storage.default_storage_provider
    if provider or "input-output" not in map(str, storage.shared_fs_usage):
        yield (
            f"storage: {provider or 'shared-fs-usage without input-output'}: all jobs must see one "
            "folder, for the store is no output of a rule: leave the storage provider out, and use "
            "an executor with a shared disk"
        )
    wrong = mistakes(config, own if alone else {})
    yield from wrong
    # before there are results, Snakemake itself says that an input is missing
    if alone and not wrong and known_summary(Path(config.get("results", "results"), "sequences")):
        for path in input_paths(config):
            if words := missing(Path(path)):
                yield f"inputs: {path}: {words}"


def notices(config: Config) -> Iterator[str]:
    """Yield a line for the sequences, and one for each model, whose results are of other settings.

    Snakemake makes them again by its notes (.snakemake), which may be lost.
    """
    results = Path(config["results"])
    if summary := known_summary(results / "sequences"):
        there = [os.path.realpath(entry.path) for entry in summary.inputs], summary.buckets
        asked = [os.path.realpath(path) for path in input_paths(config)], config["buckets"]
        if (there, summary.policy) != (asked, residues_of(config)):
            yield (
                f"{results / 'sequences'} is of other inputs or settings; if no job is planned, "
                "add --forcerun deduplicate"
            )
    for name, model in models_of(config).items():
        record = next((results / name / "embedded").glob("*.json"), None)
        try:
            made = read_completion(record).fingerprint.stated if record else {}
        except PlmEmbedError:  # the job that reads it says so
            continue
        others = [
            f"{key} {made[key]}"
            for key, value in known_settings(config, model).items()
            if made and made[key] != value
        ]
        if others:
            yield (
                f"{results / name} has vectors of other settings ({', '.join(others)}); if no job "
                "is planned, add --forcerun embed"
            )


def known_settings(config: Config, model: Model) -> dict[str, Any]:
    """Return what of the fingerprint is known before anything is computed."""
    asked = settings_of(config)
    long = within_limit(asked.long_sequences, model.name, model.max_residues)
    layers = [layer % (model.layers + 1) for layer in asked.layers]
    plain: dict[str, Any] = to_plain(asked.recipe | {"long_sequences": long, "layers": layers})
    return plain


def mistakes(config: Config, own: Mapping[str, Any]) -> list[str]:
    """Return a line for each mistake in a configuration, which need not have its defaults."""
    from jsonschema import Draft202012Validator  # 0.1 s, for nothing in those who check none

    errors = Draft202012Validator(schema()).iter_errors(config)
    if wrong := [line for error in errors for line in _in_words(error)]:
        return wrong
    lines = list(_mistakes(with_defaults(config)))
    untrained = [name for name in listed(config["model"]) if not _trained(name)]
    if untrained and "inputs" in own and "model" not in own:
        lines.append(
            f"model: missing: only the demo takes {untrained[0]}, whose vectors mean nothing; name "
            "a model, such as esm2_t33_650M_UR50D"
        )
    return lines


def _trained(name: str) -> bool:
    try:
        return find_model(name).trained
    except PlmEmbedError:
        return True


def _in_words(error: "ValidationError") -> Iterator[str]:
    """Yield lines that say where an error is, what the value is, and what it should be."""
    rule: Any = error.validator_value
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
    place = "".join(steps).lstrip(".")
    if error.validator == "enum" and "propertyNames" in error.absolute_schema_path:
        hint = did_you_mean(str(error.instance), rule)
        yield f"{place}.{error.instance}: there is no such key{hint}".lstrip(".")
    elif error.validator == "enum":
        hint = did_you_mean(str(error.instance), rule)
        yield f"{place}: {error.instance}: must be one of {', '.join(rule)}{hint}"
    else:
        yield f"{place}: {error.message}".removeprefix(": ")[:500]


def _mistakes(config: Config) -> Iterator[str]:
    """Yield mistakes that the schema cannot see."""
    for path in ("results", "store", "weights_folder"):
        if words := _unusable(config[path]):
            yield f"{path}: {config[path]}: {words}"
    if found := _NOT_PASSED_ON.search(config["results"]):
        yield (
            f"results: {config['results']}: a cluster's jobs cannot take a path with {found[0]!r}: "
            "name another folder"
        )
    try:
        models = models_of(config)
    except PlmEmbedError as error:
        yield str(error)
        return
    alphabets = {model.family.alphabet.name: name for name, model in models.items()}
    if len(alphabets) > 1:
        words = ", ".join(f"{name} reads {alphabet}" for alphabet, name in alphabets.items())
        yield f"model: {words}: sequences are of one kind; make it several campaigns"
        return
    yield from _input_mistakes(config)
    if wrong := list(_unnamed(config["weights"], models)):
        yield from wrong
        return
    for model in models.values():
        yield from _model_mistakes(config, model)
    try:
        residues_of(config)
    except PlmEmbedError as error:
        yield str(error)


def _input_mistakes(config: Config) -> Iterator[str]:
    paths = input_paths(config)
    for path, table in zip(paths, input_tables(config), strict=True):
        if words := _unusable(path):
            yield f"inputs: {path}: {words}"
        for name in table.keep:
            if why := taken(name):
                yield f"inputs: {path}: keep: {name}: {why}"
    for file, same in repeated([Path(path) for path in paths]):
        yield f"inputs: {file}: is the same file as {same}; name it once"


def _unnamed(named: str | Mapping[str, str], models: Mapping[str, Model]) -> Iterator[str]:
    """Yield mistakes in whose weights are named."""
    if isinstance(named, str):
        if named and len(models) > 1:
            first = next(iter(models))
            yield f"weights: {named}: of which model? Write `weights: {{{first}: {named}}}`"
        return
    for name in named:
        try:
            listed_here = name in models or find_model(name).name in models
        except PlmEmbedError:
            listed_here = False
        if not listed_here:
            yield f"weights.{name}: is no model of this campaign{did_you_mean(name, list(models))}"


def _model_mistakes(config: Config, model: Model) -> Iterator[str]:
    path = source_of(config, model)
    absent = path and missing(Path(path))
    if absent and _prepared_from(config, model, path):
        absent = ""  # it is not needed any more
    if words := _unusable(path) or absent:
        yield f"weights: {path}: {words}"
    if not (path or model.address or model.shipped):
        yield f"weights: {model.name} cannot be downloaded: name its file"
    asked = settings_of(config)
    most = model.layers
    outside = [layer for layer in asked.layers if not -most - 1 <= layer <= most]
    if outside:
        yield (
            f"embedding.layers: {outside}: {model.name} has layers 0 to {most}, and -1 for the last"
        )
    yield from pooling_problems(asked.pooling, model.family, model.name)
    try:
        within_limit(asked.long_sequences, model.name, model.max_residues)
    except PlmEmbedError as error:
        yield str(error)


def _unusable(path: str) -> str:
    return unusable(path) or ("write the whole path, ~ is not expanded" if path[:1] == "~" else "")


def _prepared_from(config: Config, model: Model, path: str) -> bool:
    """Return whether the campaign's weights were prepared from this file or folder."""
    try:
        made = read_record(Path(config["results"], model.name))
    except PlmEmbedError:
        return False
    return made is not None and made.source.path == str(Path(path).absolute())
