"""Files of tensors as their authors, or users, publish them, read as data.

A source is such a file, or a folder of Hugging Face's layout. Tensors are read one by one, by
whoever needs their numbers: so a source may be larger than memory, but for torch's old format. No
torch here for what the headers of safetensors say.
"""

import argparse
import hashlib
import json
import pickle
import re
import textwrap
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from plm_embed.errors import WeightsError
from plm_embed.io.files import sha256_file
from plm_embed.models.registry import Model
from plm_embed.models.weights import Layout, Stored

TENSOR_FILES = ("model.safetensors", "pytorch_model.bin")
"""The file of tensors of a Hugging Face folder; the first that is there counts."""
INDEX = ".index.json"
"""The end of its name where an index names several files instead."""
FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""The dtypes of weights, by their names in safetensors."""


@dataclass(frozen=True)
class Files:
    """The files that decide what a source holds; None for those that it does not have or need."""

    source: Path
    tensors: tuple[Path, ...]
    config: Path | None = None
    tokenizer: Path | None = None
    index: Path | None = None

    @cached_property
    def digests(self) -> dict[Path, str]:
        """The SHA-256 of each file."""
        files = filter(None, (self.config, self.tokenizer, self.index, *self.tensors))
        return {path: sha256_file(path) for path in files}

    @property
    def sha256(self) -> str:
        """The SHA-256 of the one file; of several that of their `sha256sum` lines: moved they are
        the same weights, changed they are others.
        """
        if len(self.digests) == 1:
            return next(iter(self.digests.values()))
        lines = "".join(f"{digest}  {path.name}\n" for path, digest in self.digests.items())
        return hashlib.sha256(lines.encode()).hexdigest()


class Contents(NamedTuple):
    """A source as it was read: its settings, and its tensors by their published names. What holds
    no numbers has an empty shape.
    """

    layout: Layout
    config: dict[str, Any]
    stored: dict[str, Stored]


def files_of(source: Path, model: Model | None = None) -> Files:
    """List the files of a source, for a model with the one that decides its tokens. WeightsError
    when one is missing.
    """
    if not source.exists():
        raise wrong(source, "does not exist. Name the published file or a Hugging Face folder")
    folder = source if source.is_dir() else source.parent
    config = folder / "config.json" if (folder / "config.json").is_file() else None
    tokenizer = None
    if model and model.family.tokenizer.file:
        tokenizer = folder / model.family.tokenizer.file
        if not tokenizer.is_file():
            raise wrong(
                folder,
                f"lacks {tokenizer.name}, which decides the tokens of {model.name}. Copy it from "
                "where the weights are published",
            )
    if source.stem == "adapter_model":
        raise _adapter(source)
    if source.is_file() and not (source.name in TENSOR_FILES and config):
        return Files(source, (source,), tokenizer=tokenizer)
    for name in TENSOR_FILES:
        if (file := folder / name).is_file():
            return Files(source, (file,), config, tokenizer)
        if (index := folder / f"{name}{INDEX}").is_file():
            shards = tuple(folder / shard for shard in shard_names(index))
            if absent := [shard.name for shard in shards if not shard.is_file()]:
                words = f"lacks {', '.join(absent[:3])} ({len(absent)} of {len(shards)} shards)"
                raise wrong(folder, words)
            return Files(source, shards, config, tokenizer, index)
    if (folder / "adapter_config.json").is_file():
        raise _adapter(source)
    words = "holds neither model.safetensors nor pytorch_model.bin, and no index of shards"
    raise wrong(folder, words)


def shard_names(index: Path) -> list[str]:
    """List the files that an index names. WeightsError when it is none, or names files
    elsewhere.
    """
    names = _read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in names.values()
    ):
        raise wrong(index, "has no valid 'weight_map'. Get the folder again")
    return sorted(set(names.values()))


def read(files: Files, *, trusted: bool) -> Contents:
    """Read settings and tensors; of safetensors only the headers are read here. `trusted`: no
    checksum is looked at. WeightsError when a file is damaged, unsafe to read, or of another kind.
    """
    layout: Layout = "hugging-face" if files.config else "tensors"
    config = _read_json(files.config) if files.config else {}
    stored: dict[str, Stored] = {}
    for path in files.tensors:
        if path.suffix == ".safetensors":
            stored |= _in_safetensors(path)
            continue
        import torch

        content = _unpickle(path, trusted)
        training = content.get("cfg") or content.get("args")
        arguments = training.get("model") if isinstance(training, Mapping) else training
        if isinstance(content.get("model"), Mapping) and isinstance(arguments, argparse.Namespace):
            rotary = "cfg" in content  # of fair-esm's models only ESM-2 has it
            layout, config = "fair-esm", {"token_dropout": False}
            config |= {key.removeprefix("encoder_"): v for key, v in vars(arguments).items()}
            config["arch"] = "esm2" if rotary else config.get("arch")
            config["position_embedding_type"] = "rotary" if rotary else "absolute"
            content = content["model"]
        for name, value in content.items():
            dense = isinstance(value, torch.Tensor) and value.layout == torch.strided
            usable = dense and not value.is_meta
            stored[str(name)] = Stored.of(value) if usable else Stored((), "", torch.empty)
    if any("lora_" in name for name in stored):
        raise _adapter(files.source)
    return Contents(layout, config, stored)


def _in_safetensors(path: Path) -> dict[str, Stored]:
    import safetensors

    open_as = partial(safetensors.safe_open, path, backend="pread")
    try:
        file: Any = open_as(framework="np")
    except (safetensors.SafetensorError, OSError) as error:
        raise _not_loaded(path, str(error)) from None
    tensors: Any = cache(partial(open_as, framework="pt"))  # loads torch

    def stored(name: str) -> Stored:
        rows = file.get_slice(name)
        dtype = rows.get_dtype()
        shape = tuple(rows.get_shape())
        return Stored(shape, FLOATS.get(dtype, dtype), lambda part: tensors().get_slice(name)[part])

    return {name: stored(name) for name in sorted(file.keys())}


def _unpickle(path: Path, trusted: bool) -> Mapping[Any, Any]:
    """Read a pickle as data: nothing in it can run. The one class allowed is `argparse.Namespace`,
    which fair-esm's own files hold.
    """
    import torch

    with path.open("rb") as file:
        mapped = file.read(4) == b"PK\x03\x04"  # not in torch's old format, which has no checksums
    try:
        if mapped and not trusted:
            with zipfile.ZipFile(path) as archive:
                member = archive.testzip()
            if member:
                raise zipfile.BadZipFile(f"{member} in it does not match its checksum")
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(str(path), map_location="cpu", weights_only=True, mmap=mapped)
    except MemoryError:
        raise
    # both readers raise whatever they stumble over: struct.error, KeyError, NotImplementedError ...
    except Exception as error:
        unsafe = re.search(r"(?:GLOBAL|global:?|class) ([\w.]+\.\w+)", str(error))
        if unsafe and isinstance(error, pickle.UnpicklingError):
            raise wrong(
                path,
                f"was not loaded: it asks for {unsafe[1]}, which could run code. Only tensors and "
                "argparse.Namespace are allowed.\nUse the file that the model's authors publish",
            ) from None
        # of a text, torch says at length what no user can act on
        kind = "no file of tensors" if isinstance(error, pickle.UnpicklingError) else str(error)
        raise _not_loaded(path, kind or type(error).__name__) from None
    if not isinstance(content, Mapping):
        raise wrong(path, "holds no tensors by name")
    return content


def wrong(path: Path, problem: str) -> WeightsError:
    """Return the error that says what is wrong with a file or folder of weights."""
    return WeightsError(f"weights: {path} {problem}.", path=path)


def _not_loaded(path: Path, reason: str) -> WeightsError:
    """Say what a file is that could not be read: another kind of file, or a damaged one."""
    with path.open("rb") as file:
        start = file.read(200).lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        return wrong(
            path, "is a pointer of git-lfs, not the file itself. Run `git lfs pull` in its folder"
        )
    if start.startswith((b"<!doctype", b"<html")):
        return wrong(path, "was not loaded: it is a web page. Download the file itself")
    reason = textwrap.shorten(next((line for line in reason.splitlines() if line.strip()), ""), 120)
    return wrong(path, f"was not loaded: it is cut short or damaged ({reason}).\nGet it again")


def _adapter(source: Path) -> WeightsError:
    return WeightsError(
        f"weights: {source} is an adapter (LoRA), not a model",
        path=source,
        remedy="merge it into its model, and name the folder `merged` as the weights: "
        "docs/models.md#adapters has the lines of Python",
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise wrong(path, f"is not valid JSON ({error}). Get the folder again") from None
    if not isinstance(value, dict):
        raise wrong(path, "is not a JSON object. Get the folder again")
    return value
