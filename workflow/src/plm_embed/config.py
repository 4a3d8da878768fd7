"""The configuration: checked as a whole, completed with defaults; and what the rules derive from it."""

import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from plm_embed.deduplicated import known_summary
from plm_embed.errors import UserError
from plm_embed.manifest import read_manifest
from plm_embed.models import Model, find_model
from plm_embed.paths import folder_problem, input_problems, missing, unusable
from plm_embed.savings import savings
from plm_embed.schema import completed, in_words, odd_values, outsized, place_of

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
    if monsters := [f"{key}: is nested too deeply, or holds too large a number" for key in raw if outsized(raw[key])]:
        raise _refusal(monsters)
    config: Config = completed(dict(raw), schema)
    errors = list(Draft202012Validator(schema).iter_errors(config))
    odd = dict(odd_values(config))
    wrong = [place_of(error) for error in errors if error.absolute_path and error.validator != "additionalProperties"]
    problems = [line for error in errors for line in in_words(error)]
    problems += [f"{place}: {words}" for place, words in odd.items()]
    problems += _contradictions(config, [*wrong, *odd])
    if problems:
        raise _refusal(problems)
    return config


def _refusal(problems: Sequence[str]) -> UserError:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    heading = f"The configuration has {count} (config/README.md explains every key):"
    return UserError("\n".join([heading, *(f"  {problem}" for problem in problems)]))


def _contradictions(config: Config, wrong: Sequence[str]) -> Iterator[str]:
    """Problems that the schema cannot see. Puts the canonical model, layers and store in place on the way."""

    def usable(*places: str) -> bool:
        bad = any(one.startswith(place) or place.startswith(one) for one in wrong for place in places)
        return not bad and all(place.split(".")[0] in config for place in places)

    model = None
    if usable("model"):
        try:
            model = find_model(config["model"])
            config["model"] = model.name
        except UserError as error:
            yield str(error).replace("\n", "\n    ")
    paths = ("results", "weights_folder", "store", "weights", "reuse")
    yield from _path_problems({key: config[key] for key in paths if usable(key)})
    if isinstance(config.get("inputs"), list):
        yield from _inputs_problems(config["inputs"], wrong)
    if model and usable("weights") and not config["weights"] and not model.urls:
        yield f"weights: {model.name} is not published anywhere: give a .pt file or a Hugging Face folder"
    if usable("table.keep"):
        taken = "the index has a column of its own of this name; rename yours"
        yield from (f"table.keep: {name}: {taken}" for name in sorted(OWN_COLUMNS & set(config["table"]["keep"])))
    if model and usable("embedding.layers"):
        yield from _layer_problems(config["embedding"], model)
    if usable("embedding.long_sequences"):
        yield from _length_problems(config["embedding"]["long_sequences"], model)
    if usable("embedding.compute_dtype", "speed.device"):
        yield from _device_problems(config["embedding"]["compute_dtype"], config["speed"]["device"])
    if usable("speed.scratch"):
        yield from _scratch_problems(config["speed"]["scratch"])
    if model and usable("results", "store"):
        config["store"] = config["store"] or f"{config['results']}/{model.name}/store"


def _path_problems(paths: Config) -> Iterator[str]:
    for key in ("results", "weights_folder", "store"):
        if words := unusable(paths.get(key, "")) or folder_problem(paths.get(key, "")):
            yield f"{key}: {paths[key]}: {words}"
    if paths.get("results", "").startswith("-"):
        yield f"results: {paths['results']}: must not begin with -, which the commands take for an option"
    weights = paths.get("weights", "")
    if words := unusable(weights):
        yield f"weights: {weights}: {words}"
    elif weights and (words := missing(Path(weights))):
        yield f'weights: {weights}: {words}; write "" to download the published weights'
    for path in paths.get("reuse", []):
        if words := unusable(path, in_rules=False) or missing(Path(path)):
            yield f"reuse: {path}: {words}"


def _inputs_problems(inputs: Sequence[Any], wrong: Sequence[str]) -> Iterator[str]:
    """Of the inputs that nothing else is wrong with, each one once."""
    named = (path for number, path in enumerate(inputs) if f"inputs[{number}]" not in wrong)
    problems = {path: unusable(path) for path in named}
    yield from (f"inputs: {path}: {words}" for path, words in problems.items() if words)
    yield from input_problems([Path(path) for path, words in problems.items() if not words])


def _scratch_problems(scratch: str) -> Iterator[str]:
    if scratch not in ("auto", "") and not scratch.startswith(("/", "$")):
        yield f'speed.scratch: {scratch}: must be an absolute path, auto, or "" to write beside the store'
    elif set("{}<>") & set(scratch):
        yield f"speed.scratch: {scratch}: {unusable(scratch)}"


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
