"""The configuration: checked as a whole, completed with defaults; and what the rules derive from it."""

import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from plm_embed.deduplicated import known_summary
from plm_embed.errors import UserError
from plm_embed.manifest import read_manifest
from plm_embed.models import Model, find_model
from plm_embed.savings import savings

Config = dict[str, Any]

# Columns that the index and records.parquet have by themselves.
OWN_COLUMNS = {
    *("id", "cache_key", "key", "row", "length", "source", "number"),
    *("header", "status", "reason", "detail", "events", "sequence"),
}


def checked(raw: Mapping[str, Any], schema_file: Path) -> Config:
    """The complete configuration: defaults filled in, model and layers by their canonical names.

    Relative paths are looked up from the working directory. Checking a checked configuration changes nothing.
    Raises UserError with one line per problem, all of them at once: the key, its value, what is wrong.
    """
    schema = yaml.safe_load(schema_file.read_text(encoding="utf-8"))
    config: Config = _completed(dict(raw), schema)
    errors = list(Draft202012Validator(schema).iter_errors(config))
    problems = [line for error in errors for line in _in_words(error)]
    unusable = [_place(error) for error in errors if error.absolute_path and error.validator != "additionalProperties"]
    problems += _contradictions(config, unusable)
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        heading = f"The configuration has {count} (config/README.md explains every key):"
        raise UserError("\n".join([heading, *(f"  {problem}" for problem in problems)]))
    return config


def _completed(value: Any, schema: Mapping[str, Any]) -> Any:
    """`value` with defaults for absent keys, and with numbers and lists that came as text (`--config`) parsed."""
    if isinstance(value, str) and schema.get("type", "string") != "string":
        value = _parsed(value)
    if schema.get("type") == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)  # 1e3 and 64.0
    if isinstance(value, Mapping) and "properties" in schema:
        properties = schema["properties"]
        given = {key: item for key, item in value.items() if item is not None}  # `weights:` and nothing after it
        for key, sub in properties.items():
            if key not in given and ("default" in sub or "properties" in sub):
                given[key] = sub.get("default", {})
        return {key: _completed(item, properties.get(key, {})) for key, item in given.items()}
    if schema.get("format") == "path" and isinstance(value, str):
        return os.path.expanduser(value)  # noqa: PTH111 - a Path would make a dot of ""
    if isinstance(value, list) and "items" in schema:
        return [_completed(item, schema["items"]) for item in value]
    return value


def _parsed(text: str) -> Any:
    for parse in (json.loads, yaml.safe_load):  # JSON first: YAML takes 1e-3 for text
        try:
            return parse(text)
        except (ValueError, yaml.YAMLError):
            continue
    return text


def _place(error: ValidationError) -> str:
    """Where an error is, as in 'embedding.layers[1]'; '' at the top."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
    return "".join(steps).lstrip(".")


def _in_words(error: ValidationError) -> Iterator[str]:
    rule: Any = error.validator_value
    schema: Any = error.schema
    place, value = _place(error), json.dumps(error.instance, default=str, ensure_ascii=False)
    match error.validator:
        case "additionalProperties":
            known = schema["properties"]
            given: Any = error.instance
            for key in (key for key in given if key not in known):
                value = json.dumps(given[key], default=str, ensure_ascii=False)
                hint = did_you_mean(str(key), known)
                yield f"{place}.{key}: {value}: there is no such key{hint}".lstrip(".")
        case "required":
            for key in (key for key in rule if f"'{key}'" in error.message):
                yield f"{key}: missing: {schema['properties'][key]['description']}"
        case "type":
            yield f"{place}: {value}: must be {_KINDS[rule]}"
        case "enum":
            yield f"{place}: {value}: must be one of {', '.join(rule)}{did_you_mean(str(error.instance), rule)}"
        case "minLength" | "minItems":
            yield f"{place}: {value}: must not be empty"
        case "minimum":
            yield f"{place}: {value}: must be at least {rule}"
        case "exclusiveMinimum":
            yield f"{place}: {value}: must be more than {rule}"
        case "maximum":
            yield f"{place}: {value}: must be at most {rule}"
        case "uniqueItems":
            yield f"{place}: {value}: names something twice"
        case _:
            yield f"{place}: {error.message}"


_KINDS = {
    "array": "a list, such as [a, b]",
    "integer": "a whole number",
    "number": "a number",
    "object": "a block of keys",
    "string": "text",
}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """'; did you mean NAME?' for the nearest known name, or ''."""
    near = get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _contradictions(config: Config, unusable: Sequence[str]) -> Iterator[str]:
    """Problems that the schema cannot see. Puts the canonical model, layers and store in place on the way."""

    def usable(*places: str) -> bool:
        wrong = any(bad.startswith(place) or place.startswith(bad) for bad in unusable for place in places)
        return not wrong and all(place.split(".")[0] in config for place in places)

    for place in ("results", "weights", "weights_folder", "store", "inputs"):
        if usable(place):
            yield from _brace_problems(place, config[place])
    model = None
    if usable("model"):
        try:
            model = find_model(config["model"])
            config["model"] = model.name
        except UserError as error:
            yield str(error).replace("\n", "\n    ")
    if isinstance(config.get("inputs"), list):
        named = dict.fromkeys(path for path in config["inputs"] if path and isinstance(path, str))
        yield from _input_problems([Path(path) for path in named])
    if usable("reuse"):
        yield from (f"reuse: {path}: {_not_found(Path(path))}" for path in config["reuse"] if not Path(path).exists())
    if usable("weights"):
        yield from _weights_problems(config["weights"], model)
    if usable("table.keep"):
        taken = "the index has a column of its own of this name; rename yours"
        yield from (f"table.keep: {name}: {taken}" for name in sorted(OWN_COLUMNS & set(config["table"]["keep"])))
    if model and usable("embedding.layers"):
        yield from _layer_problems(config["embedding"], model)
    if usable("embedding.long_sequences"):
        yield from _length_problems(config["embedding"]["long_sequences"], model)
    if usable("embedding.compute_dtype", "speed.device"):
        yield from _device_problems(config["embedding"]["compute_dtype"], config["speed"]["device"])
    if model and usable("results", "store"):
        config["store"] = config["store"] or f"{config['results']}/{model.name}/store"


def _brace_problems(place: str, value: str | Sequence[str]) -> Iterator[str]:
    for path in [value] if isinstance(value, str) else value:
        if set("{}") & set(path):
            yield f"{place}: {path}: must not hold braces, which Snakemake takes for wildcards"


def _input_problems(inputs: Sequence[Path]) -> Iterator[str]:
    seen: dict[Path, Path] = {}
    for path in inputs:
        if seen.setdefault(path.resolve(), path) is not path:
            yield f"inputs: {path}: is the same file as {seen[path.resolve()]}; name it once"
        if path.is_dir():
            yield f"inputs: {path}: is a folder, not a file"
        elif not path.is_file():
            yield f"inputs: {path}: {_not_found(path)}"


def _weights_problems(weights: str, model: Model | None) -> Iterator[str]:
    if weights and not Path(weights).exists():
        yield f'weights: {weights}: {_not_found(Path(weights))}; write "" to download the published weights'
    if not weights and model and not model.urls:
        yield f"weights: {model.name} is not published anywhere: give a .pt file or a Hugging Face folder"


def _layer_problems(embedding: Config, model: Model) -> Iterator[str]:
    outside = [layer for layer in embedding["layers"] if not -model.layers - 1 <= layer <= model.layers]
    if outside:
        yield f"embedding.layers: {outside}: {model.name} has layers 0 to {model.layers}, and -1 for the last"
        return
    embedding["layers"] = [layer if layer >= 0 else model.layers + 1 + layer for layer in embedding["layers"]]
    if len(set(embedding["layers"])) < len(embedding["layers"]):
        yield f"embedding.layers: {embedding['layers']}: names a layer twice"


def _length_problems(long: Config, model: Model | None) -> Iterator[str]:
    policy, limit, overlap = long["policy"], long["max_residues"], long["overlap"]
    place = "embedding.long_sequences"
    if policy == "whole" and limit:
        yield f"{place}.max_residues: {limit}: means nothing with policy whole; choose window, crop or skip, or 0"
    if policy != "whole" and not limit:
        yield f"{place}.max_residues: 0: policy {policy} needs a limit, such as 1022"
    if model and model.max_residues and limit > model.max_residues:
        yield f"{place}.max_residues: {limit}: {model.name} takes at most {model.max_residues} residues"
    if overlap and policy != "window":
        yield f"{place}.overlap: {overlap}: means nothing with policy {policy}; choose window, or 0"
    if policy == "window" and limit and overlap >= limit:
        yield f"{place}.overlap: {overlap}: must be less than max_residues, {limit}"


def _device_problems(dtype: str, device: str) -> Iterator[str]:
    if dtype == "tfloat32" and device == "cpu":
        yield "embedding.compute_dtype: tfloat32: exists on GPUs only; choose float32, or another speed.device than cpu"


def _not_found(path: Path) -> str:
    """'not found', with the nearest name in its folder, or with the first folder that does not exist."""
    if path.parent.is_dir():
        return "not found" + did_you_mean(path.name, (item.name for item in path.parent.iterdir()))
    missing = next(folder for folder in reversed(path.parents) if not folder.is_dir())
    return f"not found: there is no folder {missing}" + ("" if path.is_absolute() else f" in {Path.cwd()}")


def submissions(buckets: Sequence[str], size: int) -> dict[str, Sequence[str]]:
    """The buckets of each submission, `size` at a time; a submission is named after its first bucket."""
    return {buckets[at]: buckets[at : at + size] for at in range(0, len(buckets), size)}


def bucket_files(results: str, buckets: Iterable[str]) -> list[str]:
    """Where deduplicate puts the unique sequences of these buckets."""
    return [f"{results}/sequences/buckets/{bucket}.parquet" for bucket in buckets]


def options(name: str, values: Iterable[Any]) -> list[str]:
    """A repeated command-line option: ['--layers=6', '--layers=12']."""
    return [f"--{name}={value}" for value in values]


def workflow_commit(root: Path) -> str:
    """Commit of the workflow's clone, ending in -dirty when files were changed; 'unknown' outside a clone."""
    if not (root / ".git").exists():
        return "unknown"
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def plan_line(config: Config) -> str:
    """The campaign in one line: model, buckets, records once they were counted, parts in the store."""
    from plm_embed.costs import campaign_records
    from plm_embed.store import part_files

    buckets = "1 bucket" if config["buckets"] == 1 else f"{config['buckets']:,} buckets"
    per_submission = config["speed"]["buckets_per_submission"]
    if per_submission > 1:
        count = -(-config["buckets"] // per_submission)
        buckets += " in 1 submission" if count == 1 else f" in {count:,} submissions"
    records = "records not counted yet"
    if counts := known_summary(Path(config["results"]) / "sequences"):
        records = f"{counts['records']:,} records with {counts['unique']:,} unique sequences"
    found = campaign_records(Path(config["results"]) / config["model"] / "embedded", config["buckets"])
    known = _known_settings(config).items()
    saved = str(savings(record for record in found if known <= record["fingerprint"].items()))
    parts = sum(len(part_files(folder)) for folder in Path(config["store"]).glob("*/parts"))
    store = f"{parts:,} parts" if parts != 1 else "1 part"
    line = f"plm-embed: {config['model']}{_standing(config)}, {buckets}; {records}; {store} in {config['store']}"
    return f"{line}; not computed: {saved}" if saved else line


def _standing(config: Config) -> str:
    """A word on weights that are there and not known to be the published ones."""
    from plm_embed.published import caveat

    try:
        manifest = read_manifest(Path(config["weights_folder"]) / config["model"])
    except UserError:  # not prepared, or damaged: the rule `weights` or each embed job will say so
        return ""
    found = caveat(config["model"], manifest)
    return f" ({found.partition(':')[0]})" if found else ""


def check_reuse(config: Config) -> None:
    """Refuse, in words, a source in `reuse` that holds other vectors than the configuration asks for.

    What is known only where it is computed (dtype `auto`, the engine) is checked by each embed job before it computes.
    """
    if not config["reuse"]:
        return
    from plm_embed.reuse import check_sources

    check_sources([Path(path) for path in config["reuse"]], _known_settings(config))


def _known_settings(config: Config) -> Config:
    """What of the fingerprint is known before anything is computed."""
    embedding = config["embedding"]
    model = find_model(config["model"])
    known = {name: embedding[name] for name in ("layers", "pooling", "storage_dtype")} | {"model": model.name}
    if model.max_residues is None:
        known["long_sequences"] = embedding["long_sequences"]
    if embedding["compute_dtype"] != "auto":
        known["compute_dtype"] = embedding["compute_dtype"]
    with suppress(UserError):  # not prepared, or damaged: the rule `weights` or each embed job will say so
        known["weights_sha256"] = read_manifest(Path(config["weights_folder"]) / model.name).weights_sha256
    return known
