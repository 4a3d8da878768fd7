"""Models of users' own checkpoints, which no table lists: the family and the shape are those that
config.json and the tensors show. No torch for a Hugging Face folder of safetensors.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from plm_embed.errors import ConfigError, WeightsError, some_path
from plm_embed.models.checkpoints import (
    BARE,
    UNMATCHED,
    Files,
    files_of,
    stated_heads,
    stored_shapes,
    tensor_problems,
    tensor_shapes,
)
from plm_embed.models.family import Family, Learned
from plm_embed.models.manifest import MANIFEST, read_manifest, read_record_file
from plm_embed.models.registry import MODELS, Model, family_of, find_model
from plm_embed.models.tokens import TokenizerFile

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def model_of(name: str, weights: Path | str | None = None) -> Model:
    """Return the model of a name: a published one, or else that of the checkpoint, or the prepared
    weights, at `weights`.

    ConfigError for a name that no published model has, without weights, or that no folder can have;
    WeightsError for weights that are not a complete model of any known family.
    """
    try:
        return find_model(name)
    except ConfigError:
        if not weights:
            raise
    if not NAME.fullmatch(str(name)):
        raise ConfigError(
            f"model: {name!r}: the name of a model of your own has letters, digits, '.', '_' and "
            "'-' only, and begins with a letter or a digit",
            key="model",
        )
    source = some_path("weights", weights).absolute()
    if source.suffix == ".json" or (source / MANIFEST).is_file():
        record = read_record_file(source) if source.is_file() else read_manifest(source)
        if record.model != name:
            raise WeightsError(f"{source} holds {record.model}, not {name}", path=source)
        family, attention_dim = family_of(record.architecture), record.attention_dim or 0
        return Model(name, family, record.layers, record.dim, record.heads, attention_dim)
    return _described(name, source)


def _described(name: str, source: Path) -> Model:
    """Return the model of a checkpoint: of the first family that all its tensors fit."""
    published = source.stem if source.is_file() else source.name
    if published in MODELS:
        raise WeightsError(
            f"weights: {source} is named after {published}: set `model: {published}`, or rename "
            "the weights if they are your own",
            path=source,
        )
    nearest: tuple[str, list[str]] | None = None
    files: Files | None = None
    for family in dict.fromkeys(model.family for model in MODELS.values()):
        folder, tokenizer = source if source.is_dir() else source.parent, family.tokenizer
        if isinstance(tokenizer, TokenizerFile) and not (folder / tokenizer.name).is_file():
            continue
        if files is None:
            files = files_of(source, Model(name, family, 0, 0, 0))
            config, stored = stored_shapes(files)
        model, problems = _fit(name, family, config, stored)
        if not problems:
            return model
        if nearest is None or len(problems) < len(nearest[1]):
            nearest = family.name, problems
    assert nearest
    likest, problems = nearest
    if problems == [BARE]:
        raise WeightsError(f"weights: {source} {BARE}", path=source)
    hint = (
        "If these tensors are a task head, save the model without it: "
        'model.base_model.save_pretrained("folder")'
        if all(problem.endswith(UNMATCHED) for problem in problems)
        else "docs/models.md lists the families; the weights of a published model need its name, "
        f"not {name}"
    )
    raise WeightsError(
        f"weights: {source} is not a complete model of any known family (as {likest}, it "
        f"{', '.join(problems[:3])})\n{hint}",
        path=source,
    )


def _fit(
    name: str, family: Family, config: Mapping[str, object], stored: Mapping[str, tuple[int, ...]]
) -> tuple[Model, list[str]]:
    """Return the model that these tensors, by their published names, would be in a family, and what
    speaks against it.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for published, shape in stored.items():
        names = family.names.engine_names(published)
        for part in names:
            shapes[part] = (shape[0] // len(names), *shape[1:]) if shape else shape

    def size(tensor: str, axis: int) -> int:
        shape = shapes.get(tensor, ())
        return shape[axis] if axis < len(shape) else 0

    layers = {tensor.split(".")[1] for tensor in shapes if re.match(r"layers\.\d+\.", tensor)}
    inner = size("layers.0.self_attn.q_proj.weight", 0)
    dim, hidden = size("embed_tokens.weight", 1), size("layers.0.fc1.weight", 0)
    heads = stated_heads(config) or size("embed_distances.weight", 1)
    attention_dim = 0 if inner == dim else inner
    positions, rows = family.encoder.positions, size("embed_positions.weight", 0)
    if isinstance(positions, Learned) and rows and not family.max_tokens:
        encoder = replace(family.encoder, positions=replace(positions, rows=rows))
        longest = rows - positions.offset - family.extra_tokens
        family = replace(family, encoder=encoder, max_residues=longest)
    model = Model(name, family, len(layers), dim, heads, attention_dim, hidden)
    expected = tensor_shapes(model, shapes)
    wrong = (
        f"holds {tensor} with shape {shapes[tensor]} instead of {shape}"
        for tensor, shape in expected.items()
        if shapes.get(tensor, shape) != shape
    )
    problems = ([] if layers else ["lacks layers.0"]) + tensor_problems(expected, shapes, wrong)
    if contradiction := family.contradiction(config):
        problems.append(f"says {contradiction}")
    if not config and (family.required or not heads):
        return model, [*problems, BARE]
    problems += [f"does not say {key}" for key in family.required if key not in config]
    if not heads:
        problems.append("does not say its number of heads (num_attention_heads in config.json)")
    elif inner % heads:
        problems.append(f"has {heads} heads for a width of {inner}")
    return model, problems
