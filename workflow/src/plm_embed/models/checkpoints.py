"""Checkpoints as their authors publish them, read into one set of names.

fair-esm's `.pt` and the Hugging Face folder hold the same tensors under different names. The
model's family knows them, and which are not used. Tensors stay memory-mapped in their files where
the format allows it.
"""

import argparse
import json
import logging
import pickle
import re
import textwrap
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors
import torch

from plm_embed.errors import WeightsError
from plm_embed.models.family import Description, Layout
from plm_embed.models.registry import MODELS, Model

log = logging.getLogger(__name__)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes that a checkpoint may have."""


@dataclass(frozen=True)
class Checkpoint:
    """What a source says about its model, and its tensors under the common names."""

    said: Description
    tensors: dict[str, torch.Tensor]


def layout_of(source: Path) -> Layout:
    """Which layout a source has, by what lies there. WeightsError when there is nothing that can be
    read.
    """
    if source.is_dir():
        if not (source / "config.json").is_file():
            raise WeightsError(
                f"weights: {source} is not a Hugging Face model folder (no config.json).\n"
                "Name the folder that holds config.json and model.safetensors, or a fair-esm .pt "
                "file.",
                path=source,
            )
        return "hugging-face"
    if not source.is_file():
        raise WeightsError(
            f"weights: {source} does not exist. Name a fair-esm .pt file or a Hugging Face folder.",
            path=source,
        )
    if source.suffix == ".safetensors":
        raise WeightsError(
            f"weights: {source} is one file of a Hugging Face folder: name the folder "
            f"{source.parent}.",
            path=source,
        )
    return "fair-esm"


def files_of(source: Path, layout: Layout, model: Model) -> list[Path]:
    """Every file that decides what a source holds, in a fixed order. `model` is for the advice in
    an error.
    """
    return (
        [source]
        if layout == "fair-esm"
        else [source / "config.json", *_hugging_face_files(source, model)]
    )


def read(source: Path, layout: Layout, model: Model) -> Checkpoint:
    """The checkpoint at `source`, checked: it is `model`, complete, with nothing unknown in it.

    Raises WeightsError that names the source when it is damaged, unsafe to read, another model, or
    incomplete.
    """
    checkpoint = (
        _read_fair_esm(source, model) if layout == "fair-esm" else _read_hugging_face(source, model)
    )
    _check_model(source, checkpoint.said, model)
    _check_tensors(source, checkpoint, model)
    return replace(checkpoint, tensors=model.family.mend(checkpoint.tensors))


def _read_fair_esm(path: Path, model: Model) -> Checkpoint:
    data = _unpickle(path)
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        raise WeightsError(
            f"weights: {path} is no fair-esm checkpoint: it lacks 'model', or 'cfg' or 'args' "
            "beside it.",
            path=path,
        )
    said = model.family.describe("fair-esm", path, data)
    tensors = {}
    for key, tensor in data["model"].items():
        if (name := model.family.common_name("fair-esm", said.architecture, str(key))) is not None:
            tensors[name] = tensor
    return Checkpoint(said, tensors)


def _unpickle(path: Path) -> Any:
    """Read a pickle as data. The one class allowed is `argparse.Namespace`, which fair-esm's own
    files hold.
    """
    with path.open("rb") as file:
        start = file.read(4)
    mapped = start == b"PK\x03\x04"
    if start.startswith(
        pickle.PROTO
    ):  # the format before torch 1.6, which was no zip file, cannot be memory-mapped
        log.info(
            "%s is in torch's old format: all %.2f GB of it go into memory",
            path,
            path.stat().st_size / 1e9,
        )
    if mapped and (member := _damaged_member(path)):
        raise WeightsError(
            _damaged(path, f"{member} in it is not what its checksum says"), path=path
        )
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(str(path), map_location="cpu", weights_only=True, mmap=mapped)
    except MemoryError:
        raise
    except (
        Exception
    ) as error:  # torch's reader raises whatever it stumbles over: struct.error, KeyError, ...
        unsafe = re.search(r"(?:GLOBAL|global:?|class) ([\w.]+\.\w+)", str(error))
        if unsafe and isinstance(error, pickle.UnpicklingError):
            raise WeightsError(
                f"weights: {path} was not loaded: it asks for {unsafe[1]}, which could run code. "
                "Only tensors and argparse.Namespace are allowed.\nUse the file that fair-esm "
                "publishes.",
                path=path,
            ) from None
        raise WeightsError(_damaged(path, str(error) or type(error).__name__), path=path) from None


def _damaged_member(path: Path) -> str | None:
    """What differs from its CRC-32 in a file that torch wrote (a zip archive since torch 1.6); None
    if nothing does.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip()
    except MemoryError:
        raise
    # zipfile raises whatever it stumbles over: BadZipFile, NotImplementedError, struct.error, ...
    except Exception:
        return "an entry"


def _damaged(path: Path, reason: str) -> str:
    reason = textwrap.shorten(next((line for line in reason.splitlines() if line.strip()), ""), 120)
    return (
        f"weights: {path} was not loaded: not a torch checkpoint, cut short "
        f"or damaged ({reason}).\nGet it again."
    )


def _hugging_face_files(folder: Path, model: Model) -> list[Path]:
    """The weight files of a Hugging Face folder: `model.safetensors`, or the index and its
    shards.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if index.is_file():
        shards = [folder / name for name in sorted(set(_index(index).values()))]
        absent = [shard.name for shard in shards if not shard.is_file()]
        if absent:
            raise WeightsError(
                f"weights: {folder} lacks {', '.join(absent[:3])} ({len(absent)} of {len(shards)} "
                "shards).",
                path=folder,
            )
        return [index, *shards]
    if any(folder.glob("pytorch_model*.bin")):
        raise WeightsError(
            f"weights: {folder} holds only pytorch_model.bin, a pickle, which is not read. Fetch "
            "the safetensors:\n"
            f"hf download facebook/{model.name} config.json model.safetensors --local-dir {folder}"
            f" (or give fair-esm's {model.name}.pt)",
            path=folder,
        )
    raise WeightsError(
        f"weights: {folder} holds neither model.safetensors nor model.safetensors.index.json.",
        path=folder,
    )


def _index(path: Path) -> dict[str, str]:
    names = _json(path).get("weight_map")
    if not isinstance(names, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in names.values()
    ):
        raise WeightsError(
            f"weights: {path} has no valid 'weight_map'. Get the folder again.", path=path
        )
    return names


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise WeightsError(
            f"weights: {path} is not valid JSON ({error}). Get the folder again.", path=path
        ) from None
    if not isinstance(value, dict):
        raise WeightsError(
            f"weights: {path} holds no JSON object. Get the folder again.", path=path
        )
    return value


def _read_hugging_face(folder: Path, model: Model) -> Checkpoint:
    said = model.family.describe("hugging-face", folder, _json(folder / "config.json"))
    tensors = {}
    for path in _hugging_face_files(folder, model):
        if path.suffix != ".safetensors":
            continue
        try:
            with safetensors.safe_open(path, framework="pt", device="cpu") as file:
                for key in sorted(file.keys()):
                    if (
                        name := model.family.common_name("hugging-face", said.architecture, key)
                    ) is not None:
                        tensors[name] = file.get_tensor(key)
        except (safetensors.SafetensorError, OSError) as error:
            raise WeightsError(
                f"weights: {path} was not loaded: cut short or damaged ({error}). Get it again.",
                path=path,
            ) from None
    return Checkpoint(said, tensors)


def _check_model(source: Path, found: Description, wanted: Model) -> None:
    have = (found.architecture, found.layers, found.dim, found.heads)
    if have != (wanted.architecture, wanted.layers, wanted.dim, wanted.heads):
        same = [m for m in MODELS.values() if (m.architecture, m.layers, m.dim, m.heads) == have]
        shape = "{}, {} layers, width {}, {} heads".format(*have)
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
    if named and named != wanted and wanted.name in MODELS:
        raise WeightsError(
            f"weights: {source} is named after {named.name}, but the model asked for is "
            f"{wanted.name}.",
            path=source,
        )


def _check_tensors(source: Path, found: Checkpoint, wanted: Model) -> None:
    shapes = wanted.family.tensor_shapes(wanted, found.tensors)
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
