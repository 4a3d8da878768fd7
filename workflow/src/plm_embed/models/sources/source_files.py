"""Where published weights lie: a file, or a folder with its configuration, tokenizer and shards."""

import json
from pathlib import Path
from typing import Any

from plm_embed.errors import WeightsError
from plm_embed.models.family import Layout
from plm_embed.models.model import Model

TENSORS = ("model.safetensors", "pytorch_model.bin")
"""The file of tensors of a Hugging Face folder; the first that is there counts."""
INDEX = ".index.json"
"""What its name has besides where an index names several instead."""


def layout_of(source: Path, model: Model) -> Layout:
    """Which layout a source has, by what lies there. WeightsError when there is nothing that can be
    read.
    """
    file = model.family.file
    wanted = "a fair-esm .pt file" if file == "fair-esm" else "the published file"
    if source.is_dir():
        model_files = [f"{name}{end}" for name in TENSORS for end in ("", INDEX)]
        if (source / "adapter_config.json").is_file() and not any(
            (source / name).is_file() for name in model_files
        ):
            raise _adapter(source, source)
        if (source / "config.json").is_file():
            return "hugging-face"
        if file == "fair-esm":
            raise WeightsError(
                f"weights: {source} is not a Hugging Face model folder (no config.json).\n"
                f"Name the folder that holds config.json and model.safetensors, or {wanted}.",
                path=source,
            )
        return "tensors"
    if not source.is_file():
        raise WeightsError(
            f"weights: {source} does not exist. Name {wanted} or a Hugging Face folder.",
            path=source,
        )
    if source.stem == "adapter_model":
        raise _adapter(source, source.parent)
    if source.suffix == ".safetensors" and file == "fair-esm":
        raise WeightsError(
            f"weights: {source} is one file of a Hugging Face folder: name the folder "
            f"{source.parent}.",
            path=source,
        )
    return file


def _adapter(source: Path, folder: Path) -> WeightsError:
    return WeightsError(
        f"weights: {source} is an adapter of PEFT. Merge it into the model that it was trained on, "
        "and name the folder that this writes:\n"
        f"PeftModel.from_pretrained(model, {str(folder)!r}).merge_and_unload()"
        '.save_pretrained("merged")',
        path=source,
    )


def files_of(source: Path, layout: Layout, model: Model) -> list[Path]:
    """Every file that decides what a source holds, in a fixed order."""
    folder = source if source.is_dir() else source.parent
    beside = [folder / model.tokenizer_file] if model.tokenizer_file else []
    for path in beside:
        if not path.is_file():
            raise WeightsError(
                f"weights: {folder} lacks {path.name}, which decides the tokens of {model.name}. "
                "Copy it from where the weights are published.",
                path=path,
            )
    if source.is_file():
        return [*beside, source]
    config = [source / "config.json"] if layout == "hugging-face" else []
    return [*config, *beside, *_folder_files(source)]


def holds_tensors(path: Path) -> bool:
    """Whether a file of a source is one of tensors, and not of words about them."""
    return path.suffix not in (".json", ".txt")


def _folder_files(folder: Path) -> list[Path]:
    """The weight files of a folder: one, or an index and its shards; safetensors go before
    pickles.
    """
    for name in TENSORS:
        single, index = folder / name, folder / f"{name}{INDEX}"
        if single.is_file():
            return [single]
        if index.is_file():
            return [index, *_shards(folder, index)]
    raise WeightsError(
        f"weights: {folder} holds neither model.safetensors nor pytorch_model.bin, and no index "
        "of their shards.",
        path=folder,
    )


def _shards(folder: Path, index: Path) -> list[Path]:
    shards = [folder / name for name in shard_names(index)]
    absent = [shard.name for shard in shards if not shard.is_file()]
    if absent:
        raise WeightsError(
            f"weights: {folder} lacks {', '.join(absent[:3])} ({len(absent)} of {len(shards)} "
            "shards).",
            path=folder,
        )
    return shards


def shard_names(path: Path) -> list[str]:
    """The files that an index names. WeightsError when it is none, or names files elsewhere."""
    names = read_json(path).get("weight_map")
    if not isinstance(names, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in names.values()
    ):
        raise WeightsError(
            f"weights: {path} has no valid 'weight_map'. Get the folder again.", path=path
        )
    return sorted(set(names.values()))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. WeightsError when it holds none."""
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
