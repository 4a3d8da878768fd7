"""Checkpoints as their authors publish them, read into one set of names.

A file of tensors and a Hugging Face folder hold the same tensors under different names. The model's
family knows them, and which are not used. Tensors stay memory-mapped in their files where the
format allows it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from plm_embed.errors import WeightsError
from plm_embed.models.encoder.tensors import tensor_shapes
from plm_embed.models.family import Description, Layout
from plm_embed.models.model import Model
from plm_embed.models.registry import MODELS
from plm_embed.models.sources.pickles import unpickle
from plm_embed.models.sources.source_files import files_of, holds_tensors, read_json
from plm_embed.models.sources.tensor_files import tensors_in
from plm_embed.models.tokenizer_file import TENSOR, TokenizerFile

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes that a checkpoint may have."""


@dataclass(frozen=True)
class Checkpoint:
    """What a source says about its model, and its tensors under the common names."""

    said: Description
    tensors: dict[str, torch.Tensor]


def read(source: Path, layout: Layout, model: Model) -> Checkpoint:
    """The checkpoint at `source`, checked: it is `model`, complete, with nothing unknown in it.

    Raises WeightsError that names the source when it is damaged, unsafe to read, another model, or
    incomplete.
    """
    checkpoint = (
        _read_fair_esm(source, model)
        if layout == "fair-esm"
        else _read_tensors(source, layout, model)
    )
    _check_model(source, checkpoint.said, model)
    _check_tensors(source, checkpoint, model)
    tensors = model.family.mend(checkpoint.tensors)
    return replace(checkpoint, tensors=tensors | _tokenizer(source, model))


def _read_fair_esm(path: Path, model: Model) -> Checkpoint:
    data = unpickle(path)
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        raise WeightsError(
            f"weights: {path} is no fair-esm checkpoint: it lacks 'model', or 'cfg' or 'args' "
            "beside it.",
            path=path,
        )
    said = model.family.describe("fair-esm", path, data)
    tensors: dict[str, Any] = {}
    for key, tensor in data["model"].items():
        _add(
            tensors,
            path,
            model.family.common_names("fair-esm", said.architecture, str(key)),
            tensor,
        )
    return Checkpoint(said, tensors)


def _read_tensors(source: Path, layout: Layout, model: Model) -> Checkpoint:
    """Files of tensors, with a config.json or without."""
    config = read_json(source / "config.json") if layout == "hugging-face" else {}
    said = model.family.describe(layout, source, config)
    names = partial(model.family.common_names, layout, said.architecture)
    tensors: dict[str, Any] = {}
    for path in filter(holds_tensors, files_of(source, layout, model)):
        for key, tensor in tensors_in(path, names):
            _add(tensors, path, names(key), tensor)
    return Checkpoint(_completed(said, tensors), tensors)


def _tokenizer(source: Path, model: Model) -> dict[str, torch.Tensor]:
    """The file that decides the tokens as a tensor of bytes, if the family has one."""
    tokenizer = model.family.tokenizer
    if not isinstance(tokenizer, TokenizerFile):
        return {}
    path = (source if source.is_dir() else source.parent) / tokenizer.name
    content = path.read_bytes()
    try:
        count = len(tokenizer.read(content).letters)
        if count != (rows := model.family.encoder.rows):
            raise ValueError(f"it has {count:,} tokens, the model {rows:,}")
    except ValueError as error:
        raise WeightsError(
            f"weights: {path} is not the tokenizer of {model.name}: {error}.", path=path
        ) from None
    return {TENSOR: torch.frombuffer(bytearray(content), dtype=torch.uint8)}


def _add(tensors: dict[str, Any], path: Path, names: tuple[str, ...], tensor: Any) -> None:
    """Take a tensor in under its names, which share out its rows."""
    if names and not (isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided):
        raise WeightsError(f"weights: {path} holds {names[0]} without its numbers.", path=path)
    if len(names) > 1 and (tensor.ndim == 0 or len(tensor) % len(names)):
        raise WeightsError(
            f"weights: {path} holds {' and '.join(names)} in one tensor that cannot be shared out.",
            path=path,
        )
    parts = [tensor] if len(names) == 1 else tensor.chunk(len(names)) if names else []
    for name, part in zip(names, parts, strict=True):
        if name in tensors and not torch.equal(tensors[name], part):
            raise WeightsError(f"weights: {path} holds two unlike tensors for {name}.", path=path)
        tensors[name] = part


_NUMBERED = re.compile(r"layers\.(\d+)\.")


def _completed(said: Description, tensors: Mapping[str, Any]) -> Description:
    """The description with what only the tensors say."""
    numbers = [int(found[1]) for name in tensors if (found := _NUMBERED.match(name))]
    layers = max(numbers, default=-1) + 1 if said.layers is None else said.layers
    table = tensors.get("embed_tokens.weight")
    dim = said.dim
    if dim is None and isinstance(table, torch.Tensor) and table.ndim == 2:
        dim = table.shape[1]
    return replace(said, layers=layers, dim=dim)


def _check_model(source: Path, found: Description, wanted: Model) -> None:
    # what a source does not say, the shapes of its tensors show
    said = (found.layers, found.dim, wanted.heads if found.heads is None else found.heads)
    have = (found.architecture, *said)
    if have != (wanted.architecture, wanted.layers, wanted.dim, wanted.heads):
        same = [m for m in MODELS.values() if (m.architecture, m.layers, m.dim) == have[:3]]
        same = [m for m in same if found.heads in (None, m.heads)]
        shape = "{}, {} layers, width {}, {} heads".format(*have)
        if found.heads is None:
            shape = shape.rpartition(",")[0]
        name = f"{same[0].name} ({shape})" if same else f"an unknown model ({shape})"
        hint = (
            f"Set `model: {same[0].name}`, or give the weights of {wanted.name}."
            if same
            else "Check `model`."
        )
        raise WeightsError(
            f"weights: {source} holds {name}, but the model asked for is {wanted.name} "
            f"({wanted.shape}).\n{hint}",
            path=source,
        )
    # ESM-1b and the five ESM-1v have one shape; there only the name can tell them apart.
    named = MODELS.get(source.stem if source.is_file() else source.name)
    if named and wanted.name in MODELS and not named.has_weights_of(wanted):
        raise WeightsError(
            f"weights: {source} is named after {named.name}, but the model asked for is "
            f"{wanted.name}.",
            path=source,
        )


def _check_tensors(source: Path, found: Checkpoint, wanted: Model) -> None:
    shapes = tensor_shapes(wanted, found.tensors)
    wrong = [f"lacks {name}" for name in shapes if name not in found.tensors]
    wrong += [f"has an unknown tensor {name}" for name in found.tensors if name not in shapes]
    for name in sorted(shapes.keys() & found.tensors.keys()):
        tensor = found.tensors[name]
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in DTYPES:
            wrong.append(f"holds {name} as {getattr(tensor, 'dtype', type(tensor).__name__)}")
        elif tensor.layout != torch.strided or tensor.device.type != "cpu":
            wrong.append(f"holds {name} without its numbers, or as a sparse tensor")
        elif tuple(tensor.shape) != shapes[name]:
            wrong.append(f"holds {name} with shape {tuple(tensor.shape)} instead of {shapes[name]}")
        elif not torch.isfinite(tensor).all():
            wrong.append(f"holds NaN or infinite numbers in {name}")
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise WeightsError(
            f"weights: {source} is not a whole {wanted.name}: it {', '.join(wrong[:3])}{more}.",
            path=source,
        )
