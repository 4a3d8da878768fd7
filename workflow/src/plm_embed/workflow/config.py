"""The configuration: checked as a whole, and completed with defaults."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from plm_embed.errors import ConfigError, PlmEmbedError
from plm_embed.io.files import read_shipped
from plm_embed.io.paths import folder_problem, input_problems, missing, unusable
from plm_embed.models.family import pooling_problems
from plm_embed.models.model import Model
from plm_embed.models.registry import find_model
from plm_embed.sequences.columns import taken
from plm_embed.sequences.settings import NO_UNKNOWN, ONE_STRAND, Reading
from plm_embed.setting import from_config
from plm_embed.wording import did_you_mean
from plm_embed.workflow.schema import completed, in_words, odd_values, outsized, place_of

Config = dict[str, Any]


def schema() -> Config:
    """The JSON Schema of the configuration, with every default."""
    found: Config = read_shipped(Path(__file__).with_name("config.schema.yaml"))
    return found


def checked(raw: Mapping[str, Any], *, awaited: bool = False) -> Config:
    """The complete configuration: defaults filled in, models by their canonical names. What it
    means for each of them: `by_model`.

    Relative paths are looked up from the working directory. Checking a checked configuration
    changes nothing. awaited: rules of another workflow may yet make the inputs. Raises ConfigError
    with one line per problem, all of them at once: the key, its value, what is wrong.
    """
    from jsonschema import Draft202012Validator  # 0.1 s, for nothing in those who check none

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
    problems += _contradictions(config, [*wrong, *odd], awaited=awaited)
    if problems:
        raise _refusal(problems)
    return config


def input_reading(config: Config) -> Reading:
    """How a campaign reads its inputs; the alphabet is that of its models."""
    alphabet = find_model(config["model"][0]).family.alphabet.name
    return from_config(Reading, config, alphabet=alphabet)


def _refusal(problems: Sequence[str]) -> ConfigError:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    heading = f"The configuration has {count} (config/README.md explains every key):"
    return ConfigError(
        "\n".join([heading, *(f"  {problem}" for problem in problems)]),
        key=problems[0].partition(":")[0],
        problems=problems,
    )


def _contradictions(config: Config, wrong: Sequence[str], *, awaited: bool) -> Iterator[str]:
    """Problems that the schema cannot see. Puts the canonical names of models in place on the
    way.
    """

    def usable(*places: str) -> bool:
        bad = any(
            one.startswith(place) or place.startswith(one) for one in wrong for place in places
        )
        return not bad and all(place.split(".")[0] in config for place in places)

    models: list[Model] = []
    if usable("model"):
        problems, models = _found_models(config["model"])
        yield from problems
    if usable("weights"):
        yield from _shared_out(config, "weights", models)
    paths = ("results", "weights_folder", "store", "weights", "reuse")
    yield from _path_problems({key: config[key] for key in paths if usable(key)})
    if isinstance(config.get("inputs"), list):
        yield from _inputs_problems(config["inputs"], wrong, awaited=awaited)
    if usable("weights"):
        yield from (
            f"weights: {model.name} cannot be downloaded: give its .pt file or Hugging Face folder"
            for model in models
            if not source_of(config["weights"], model) and not (model.address or model.shipped)
        )
    if usable("table.keep"):
        kept = sorted(set(config["table"]["keep"]))
        yield from (f"table.keep: {name}: {why}" for name in kept if (why := taken(name)))
    layers = config["embedding"]["layers"] if usable("embedding.layers") else []
    pooling = config["embedding"]["pooling"] if usable("embedding.pooling") else []
    strand = config["residues"]["strand"] if usable("residues.strand") else ""
    for model in models:
        yield from _layer_problems(layers, model)
        yield from pooling_problems(pooling, model.family, model.name)
    if strand == "canonical" and not all(model.family.alphabet.complements for model in models):
        yield ONE_STRAND
    unknown = config["residues"]["unknown"] if usable("residues.unknown") else ""
    if unknown == "substitute" and not all(model.family.alphabet.unknown for model in models):
        yield NO_UNKNOWN
    if usable("embedding.long_sequences"):
        yield from _length_problems(config["embedding"]["long_sequences"], models)
    if usable("embedding.compute_dtype", "speed.device"):
        yield from _device_problems(config["embedding"]["compute_dtype"], config["speed"]["device"])
    if usable("speed.scratch"):
        yield from _scratch_problems(config["speed"]["scratch"])
    if models:
        config["model"] = [model.name for model in models]


def _found_models(names: Sequence[str]) -> tuple[list[str], list[Model]]:
    """Problems with the models of a campaign, and the models when there are none."""
    problems: list[str] = []
    found: dict[str, Model] = {}
    for name in names:
        try:
            model = find_model(name)
        except PlmEmbedError as error:
            problems.append(str(error).replace("\n", "\n    "))
            continue
        if model.name in found:
            problems.append(f"model: {name}: names {model.name} twice")
        found[model.name] = model
    alphabets = {model.family.alphabet.name: model.name for model in found.values()}
    if len(alphabets) > 1:
        words = ", ".join(f"{name} reads {alphabet}" for alphabet, name in alphabets.items())
        problems.append(f"model: {words}: sequences are of one kind; make it several campaigns")
    return problems, [] if problems else list(found.values())


def _shared_out(config: Config, key: str, models: Sequence[Model]) -> Iterator[str]:
    """Problems with whose weights a key names; puts canonical names of models in place."""
    given = config[key] if models else ""
    if isinstance(given, str):
        if given and len(models) > 1:
            yield (
                f"{key}: {given}: of which of the {len(models)} models? Write "
                f"`{key}: {{{models[0].name}: {given}}}`"
            )
        return
    named: dict[str, str] = {}
    for name, source in given.items():
        try:
            model = find_model(str(name))
        except PlmEmbedError:
            model = None
        if model not in models:
            known = [one.name for one in models]
            yield f"{key}.{name}: is not a model of this campaign{did_you_mean(name, known)}"
        elif model and model.name in named:
            yield f"{key}.{name}: names {model.name} twice"
        named[model.name if model else name] = source
    config[key] = named


def source_of(given: str | Mapping[str, str], model: Model) -> str:
    """What `weights` names for a model; '' for a download."""
    return given if isinstance(given, str) else given.get(model.name, "")


def _path_problems(paths: Config) -> Iterator[str]:
    for key in ("results", "weights_folder", "store"):
        if words := unusable(paths.get(key, "")) or folder_problem(paths.get(key, "")):
            yield f"{key}: {paths[key]}: {words}"
    if paths.get("results", "").startswith("-"):
        yield (
            f"results: {paths['results']}: must not begin with -, which "
            "the commands take for an option"
        )
    given = paths.get("weights", "")
    for source in [given] if isinstance(given, str) else given.values():
        if words := unusable(source):
            yield f"weights: {source}: {words}"
        elif source and (words := missing(Path(source))):
            yield f'weights: {source}: {words}; write "" to download the published weights'
    for path in paths.get("reuse", []):
        if words := unusable(path, in_rules=False) or missing(Path(path)):
            yield f"reuse: {path}: {words}"


def _inputs_problems(
    inputs: Sequence[Any], wrong: Sequence[str], *, awaited: bool
) -> Iterator[str]:
    """Of the inputs that nothing else is wrong with, each one once."""
    named = (path for number, path in enumerate(inputs) if f"inputs[{number}]" not in wrong)
    problems = {path: unusable(path) for path in named}
    yield from (f"inputs: {path}: {words}" for path, words in problems.items() if words)
    usable = [Path(path) for path, words in problems.items() if not words]
    yield from input_problems(usable, awaited=awaited)


def _scratch_problems(scratch: str) -> Iterator[str]:
    if scratch not in ("auto", "") and not scratch.startswith(("/", "$")):
        yield (
            f"speed.scratch: {scratch}: must be an absolute path, auto, "
            'or "" to write beside the store'
        )
    elif set("{}<>") & set(scratch):
        yield f"speed.scratch: {scratch}: {unusable(scratch)}"


def layers_of(asked: Sequence[int], model: Model) -> list[int]:
    """Layers of a model, counted from its input, 0."""
    return [layer if layer >= 0 else model.layers + 1 + layer for layer in asked]


def _layer_problems(asked: Sequence[int], model: Model) -> Iterator[str]:
    layers = layers_of(asked, model)
    outside = [
        given for given, layer in zip(asked, layers, strict=True) if not 0 <= layer <= model.layers
    ]
    if outside:
        yield (
            f"embedding.layers: {outside}: {model.name} has layers 0 to "
            f"{model.layers}, and -1 for the last"
        )
    elif len(set(layers)) < len(layers):
        yield f"embedding.layers: {layers}: names a layer twice, of {model.name}"


def _length_problems(long: Config, models: Sequence[Model]) -> Iterator[str]:
    policy, limit, overlap = long["policy"], long["max_residues"], long["overlap"]
    place = "embedding.long_sequences"
    if policy == "whole" and limit:
        yield (
            f"{place}.max_residues: {limit}: means nothing with policy whole; "
            "choose window, crop or skip, or 0"
        )
    if policy != "whole" and not limit:
        yield f"{place}.max_residues: 0: policy {policy} needs a limit, such as 1022"
    for model in models:
        if model.max_residues and limit > model.max_residues:
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
