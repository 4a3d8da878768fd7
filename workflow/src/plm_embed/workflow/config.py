"""The configuration: checked as a whole, and completed with defaults."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from plm_embed.errors import ConfigError, PlmEmbedError
from plm_embed.io.paths import folder_problem, input_problems, missing, unusable
from plm_embed.models.registry import Model, find_model
from plm_embed.sequences.columns import OWN_COLUMNS
from plm_embed.sequences.normalize import ONE_STRAND, ResiduePolicy
from plm_embed.workflow.schema import completed, in_words, odd_values, outsized, place_of

Config = dict[str, Any]


def schema() -> Config:
    """The JSON Schema of the configuration, with every default."""
    found: Config = yaml.safe_load(
        (files(__package__) / "config.schema.yaml").read_text(encoding="utf-8")
    )
    return found


def checked(raw: Mapping[str, Any]) -> Config:
    """The complete configuration: defaults filled in, model and layers by their canonical names.

    Relative paths are looked up from the working directory. Checking a checked configuration
    changes nothing. Raises ConfigError with one line per problem, all of them at once: the key, its
    value, what is wrong.
    """
    if monsters := [
        f"{key}: is nested too deeply, or holds too large a number"
        for key in raw
        if outsized(raw[key])
    ]:
        raise _refusal(monsters)
    rules = schema()
    config: Config = completed(dict(raw), rules)
    errors = list(Draft202012Validator(rules).iter_errors(config))
    odd = dict(odd_values(config))
    wrong = [
        place_of(error)
        for error in errors
        if error.absolute_path and error.validator != "additionalProperties"
    ]
    problems = [line for error in errors for line in in_words(error)]
    problems += [f"{place}: {words}" for place, words in odd.items()]
    problems += _contradictions(config, [*wrong, *odd])
    if problems:
        raise _refusal(problems)
    return config


def residue_policy(config: Config) -> ResiduePolicy:
    """What a campaign does with residues; its alphabet is that of the model's family."""
    rules = config["residues"]
    alphabet = find_model(config["model"]).family.alphabet.name
    return ResiduePolicy(rules["unknown"], rules["gaps"], alphabet, rules["strand"])


def _refusal(problems: Sequence[str]) -> ConfigError:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    heading = f"The configuration has {count} (config/README.md explains every key):"
    return ConfigError(
        "\n".join([heading, *(f"  {problem}" for problem in problems)]),
        key=problems[0].partition(":")[0],
        problems=problems,
    )


def _contradictions(config: Config, wrong: Sequence[str]) -> Iterator[str]:
    """Problems that the schema cannot see. Puts the canonical model, layers and store in place on
    the way.
    """

    def usable(*places: str) -> bool:
        bad = any(
            one.startswith(place) or place.startswith(one) for one in wrong for place in places
        )
        return not bad and all(place.split(".")[0] in config for place in places)

    model = None
    if usable("model"):
        try:
            model = find_model(config["model"])
            config["model"] = model.name
        except PlmEmbedError as error:
            yield str(error).replace("\n", "\n    ")
    paths = ("results", "weights_folder", "store", "weights", "reuse")
    yield from _path_problems({key: config[key] for key in paths if usable(key)})
    if isinstance(config.get("inputs"), list):
        yield from _inputs_problems(config["inputs"], wrong)
    if model and usable("weights") and not config["weights"] and not model.address:
        yield (
            f"weights: {model.name} is not published anywhere: give a "
            ".pt file or a Hugging Face folder"
        )
    if usable("table.keep"):
        taken = "the index has a column of its own of this name; rename yours"
        yield from (
            f"table.keep: {name}: {taken}"
            for name in sorted(OWN_COLUMNS & set(config["table"]["keep"]))
        )
    if model and usable("embedding.layers"):
        yield from _layer_problems(config["embedding"], model)
    if model and usable("embedding.pooling"):
        yield from _pooling_problems(config["embedding"]["pooling"], model)
    canonical = usable("residues.strand") and config["residues"]["strand"] == "canonical"
    if model and canonical and not model.family.alphabet.complements:
        yield ONE_STRAND
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
        yield (
            f"results: {paths['results']}: must not begin with -, which "
            "the commands take for an option"
        )
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
        yield (
            f"speed.scratch: {scratch}: must be an absolute path, auto, "
            'or "" to write beside the store'
        )
    elif set("{}<>") & set(scratch):
        yield f"speed.scratch: {scratch}: {unusable(scratch)}"


def _layer_problems(embedding: Config, model: Model) -> Iterator[str]:
    outside = [
        layer for layer in embedding["layers"] if not -model.layers - 1 <= layer <= model.layers
    ]
    if outside:
        yield (
            f"embedding.layers: {outside}: {model.name} has layers 0 to "
            f"{model.layers}, and -1 for the last"
        )
        return
    embedding["layers"] = [
        layer if layer >= 0 else model.layers + 1 + layer for layer in embedding["layers"]
    ]
    if len(set(embedding["layers"])) < len(embedding["layers"]):
        yield f"embedding.layers: {embedding['layers']}: names a layer twice"


def _pooling_problems(pooling: Sequence[str], model: Model) -> Iterator[str]:
    if "bos" in pooling and not model.family.bos:
        yield f"embedding.pooling: bos: {model.name} has no <cls> token; choose mean or max"
    if "per_residue" in pooling and not model.family.token_per_letter:
        yield (
            f"embedding.pooling: per_residue: a token of {model.name} is several bases; choose "
            "mean, mean_special, max or bos"
        )


def _length_problems(long: Config, model: Model | None) -> Iterator[str]:
    policy, limit, overlap = long["policy"], long["max_residues"], long["overlap"]
    place = "embedding.long_sequences"
    if policy == "whole" and limit:
        yield (
            f"{place}.max_residues: {limit}: means nothing with policy whole; "
            "choose window, crop or skip, or 0"
        )
    if policy != "whole" and not limit:
        yield f"{place}.max_residues: 0: policy {policy} needs a limit, such as 1022"
    if model and model.max_residues and limit > model.max_residues:
        yield (
            f"{place}.max_residues: {limit}: {model.name} takes at most "
            f"{model.max_residues} residues"
        )
    if overlap and policy != "window":
        yield f"{place}.overlap: {overlap}: means nothing with policy {policy}; choose window, or 0"
    if policy == "window" and limit and overlap >= limit:
        yield f"{place}.overlap: {overlap}: must be less than max_residues, {limit}"


def _device_problems(dtype: str, device: str) -> Iterator[str]:
    if dtype == "tfloat32" and device == "cpu":
        yield (
            "embedding.compute_dtype: tfloat32: exists on GPUs only; choose "
            "float32, or another speed.device than cpu"
        )
