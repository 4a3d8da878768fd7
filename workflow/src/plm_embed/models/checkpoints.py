"""Checkpoints as their authors, or users, publish them: files read as data, and recognized as a
model of a known family, with their tensors under the engine's names.

A source is such a file, or a folder of Hugging Face's layout. Tensors are read one by one, by
whoever needs their numbers: so a source may be larger than memory, but for torch's old format. No
torch here for what the headers of safetensors say.
"""

import argparse
import hashlib
import json
import logging
import pickle
import re
import textwrap
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Any

from plm_embed.errors import ConfigError, WeightsError, some_path
from plm_embed.io.files import sha256_file
from plm_embed.models.family import (
    LM_HEAD,
    TASK_HEADS,
    TENSOR,
    Learned,
    Names,
    T5RelativeBias,
    TokenizerFile,
)
from plm_embed.models.registry import MODELS, Model, find_model
from plm_embed.models.weights import MANIFEST, Layout, Stored, read_manifest
from plm_embed.wording import some

log = logging.getLogger(__name__)
TENSOR_FILES = ("model.safetensors", "pytorch_model.bin")
"""The file of tensors of a Hugging Face folder; the first that is there counts."""
INDEX = ".index.json"
"""The end of its name where an index names several files instead."""
FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""The dtypes of weights, by their names in safetensors."""
BARE = (
    "holds tensors without the model's settings (a bare state_dict). Use fair-esm's own layout, or "
    "a Hugging Face folder with config.json and model.safetensors"
)
UNKNOWN = "which no name in the family matches"
_OWN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SIZES = attrgetter("family.encoder", "layers", "dim", "heads", "inner", "hidden")
"""Everything that tensors and a configuration show of a model."""
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "attention_heads")


@dataclass(frozen=True)
class Files:
    """The files that decide what a source holds; None for those that it does not have or need."""

    source: Path
    tensors: tuple[Path, ...]
    name: str
    """The name of the file without its ending, or of the folder."""
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


@dataclass
class Checkpoint:
    """A model under the engine's names: its tensors, and those of the head of the language model by
    the names of `family.Head`; none without one.
    """

    layout: Layout
    token_dropout: bool
    tensors: dict[str, Stored]
    head: dict[str, Stored]


def model_of(name: str, weights: Path | str | None = None) -> Model:
    """Return the model of a name: a published one, or else that of the checkpoint, or the prepared
    weights, at `weights`: of the first family that all its tensors fit.

    ConfigError for a name that no published model has, without weights, or that no folder can have;
    WeightsError for weights that are not a complete model of any known family.
    """
    try:
        return find_model(name)
    except ConfigError:
        if not weights:
            raise
    if not _OWN_NAME.fullmatch(str(name)):
        raise ConfigError(
            f"model: {name!r}: the name of a model of your own has letters, digits, '.', '_' and "
            "'-' only, and begins with a letter or a digit",
            key="model",
        )
    source = some_path("weights", weights).absolute()
    if source.suffix == ".json" or (source / MANIFEST).is_file():
        return read_manifest(source, of=name).as_model
    files = files_of(source)
    if published := MODELS.get(files.name):
        raise WeightsError(
            f"weights: {source} is named after {published.name}: set `model: {published.name}`, or "
            "rename the weights if they are your own",
            path=source,
        )
    _, config, stored = _contents(files, trusted=True)
    folder = source if source.is_dir() else source.parent
    mismatches: dict[str, list[str]] = {}
    for family in dict.fromkeys(model.family for model in MODELS.values()):
        if (folder / family.tokenizer.file).exists():
            model, _, problems = _fit(source, config, stored, Model(name, family, 0, 0, 0))
            if not problems:
                return model
            mismatches[family.name] = problems
    likest, problems = min(mismatches.items(), key=lambda item: len(item[1]))
    if problems == [BARE]:
        raise wrong(source, BARE)
    advice = ""
    if any(problem.endswith(UNKNOWN) for problem in problems):
        advice = '; save a model without its task head: model.base_model.save_pretrained("folder")'
    raise WeightsError(
        f"weights: {source} is not a complete model of any known family (as {likest}, it "
        f"{some(problems)})\ndocs/models.md lists the families{advice}",
        path=source,
    )


def read(files: Files, model: Model, *, published: bool = False) -> Checkpoint:
    """Read a checkpoint: it is `model`, complete, with nothing unknown in it. Whether its numbers
    are finite is seen when they are read.

    `published`: the files are known by their SHA-256, so no other checksum is looked at. Raises
    WeightsError that names the source when it is damaged, unsafe to read, another model, or
    incomplete.
    """
    source, family = files.source, model.family
    layout, config, stored = _contents(files, trusted=published)
    fitted, tensors, problems = _fit(source, config, stored, model)
    unsuitable = BARE in problems or family.contradiction(config)
    if _SIZES(fitted) != _SIZES(model) and not unsuitable:
        alike = (other.name for other in MODELS.values() if _SIZES(other) == _SIZES(fitted))
        raise wrong(
            source,
            f"holds {next(alike, 'an unknown model')} ({fitted.shape}), but the model asked for is "
            f"{model.name} ({model.shape}).\nCheck `model` and `weights`",
        )
    if problems:
        raise wrong(source, f"is not a complete {model.name}: it {some(problems)}")
    # some models have one shape, and only a name can tell them apart
    named = MODELS.get(files.name)
    if named and model.name in MODELS and named.address != model.address:
        raise wrong(source, f"is named after {named.name}, but the model asked for is {model.name}")
    if unused := [name for name in stored if name.startswith(TASK_HEADS)]:
        log.info("%s: the tensors of its task head are not used: %s", source, some(unused))
    if family.cleared_rows:
        table = tensors["embed_tokens.weight"].read().clone()
        table[list(family.cleared_rows)] = 0
        tensors["embed_tokens.weight"] = Stored.of(table)
    head = _take_head(source, model, tensors)
    if files.tokenizer and isinstance(family.tokenizer, TokenizerFile):
        import torch

        content, rows = files.tokenizer.read_bytes(), family.encoder.rows
        try:
            if (count := len(family.tokenizer.read(content).letters)) != rows:
                raise ValueError(f"it has {count:,} tokens, the model {rows:,}")
        except ValueError as error:
            raise wrong(files.tokenizer, f"is not the tokenizer of {model.name}: {error}") from None
        tensors[TENSOR] = Stored.of(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    dropout = config.get("token_dropout", family.encoder.token_dropout)
    return Checkpoint(layout, bool(dropout), tensors, head)


def _take_head(source: Path, model: Model, tensors: dict[str, Stored]) -> dict[str, Stored]:
    """Take the head of the language model from among tensors; nothing where it is not whole."""
    names = [name for name in tensors if name.startswith(LM_HEAD)]
    head = {name.removeprefix(LM_HEAD): tensors.pop(name) for name in names}
    kind, rows, dim = model.family.head, model.family.encoder.rows, model.dim
    if not head or kind is None:
        return {}
    if kind.tied:
        head["out.weight"] = tensors["embed_tokens.weight"]
    shapes = {"out.weight": (rows, dim), "out.bias": (rows,), "layer_norm.weight": (dim,)}
    shapes |= {"layer_norm.bias": (dim,)} if model.family.encoder.norm == "layer" else {}
    shapes |= {"dense.weight": (dim, dim), "dense.bias": (dim,)} if kind.dense else {}
    if (
        {name: part.shape for name, part in head.items()} == shapes
        and all(part.dtype in FLOATS.values() for part in head.values())
        and all(part.read().isfinite().all() for part in head.values())
    ):
        return head
    log.info("%s: the head of its language model is not whole: no scores", source)
    return {}  # vectors need none


def _fit(
    source: Path, config: Mapping[str, Any], stored: Mapping[str, Stored], model: Model
) -> tuple[Model, dict[str, Stored], list[str]]:
    """Return the model that a checkpoint holds if it is of a model's family and has its number of
    heads where nothing shows it, the tensors by the engine's names, and what speaks against it
    being a whole one: of tensors that are missing, unknown or of another kind the first few show
    each.
    """
    family, tensors = model.family, _renamed(source, stored, model.family.names)
    rows = {name: tensor.shape[0] for name, tensor in tensors.items()}
    columns = {name: tensor.shape[1] for name, tensor in tensors.items() if tensor.shape[1:]}
    layers = {name.split(".")[1] for name in tensors if re.match(r"layers\.\d+\.", name)}
    dim, hidden = columns.get("embed_tokens.weight", 0), rows.get("layers.0.fc1.weight", 0)
    inner = rows.get("layers.0.self_attn.q_proj.weight", 0)
    in_config = (config[key] for key in _HEADS if type(config.get(key)) is int)
    heads = next(in_config, columns.get("embed_distances.weight", 0)) or model.heads
    positions, count = family.encoder.positions, rows.get("embed_positions.weight", 0)
    if isinstance(positions, Learned) and count and not family.max_tokens:
        encoder = replace(family.encoder, positions=replace(positions, rows=count))
        longest = count - positions.offset - family.tokens(0)
        family = replace(family, encoder=encoder, max_residues=longest)
    attention_dim = 0 if inner == dim else inner
    fitted = Model(model.name, family, len(layers), dim, heads, attention_dim, hidden)
    if not config and (family.required or not heads):
        return fitted, tensors, [BARE]

    contradiction = family.contradiction(config)
    problems = [f"says {contradiction}"] if contradiction else []
    absent = [key for key in family.required if key not in config]
    problems += [f"does not say {key} in config.json" for key in absent]
    if heads < 1:
        problems.append("does not say its number of heads (num_attention_heads in config.json)")
    elif fitted.heads_problem:
        problems.append(f"has {fitted.heads_problem}")
    shapes = tensor_shapes(fitted, tensors)
    missing = [] if layers else ["lacks layers.0"]
    missing += [f"lacks {name}" for name in shapes if name not in tensors]
    strange = (name for name in tensors if name not in shapes and not name.startswith(LM_HEAD))
    unknown = [f"has {name}, {UNKNOWN}" for name in strange]
    other = []
    for name in sorted(shapes.keys() & tensors.keys()):
        if tensors[name].dtype not in FLOATS.values():
            other.append(f"holds {name} as {tensors[name].dtype}")
        elif tensors[name].shape != shapes[name]:
            other.append(f"holds {name} with shape {tensors[name].shape}, not {shapes[name]}")
    turns = zip_longest(missing, unknown, other)
    return fitted, tensors, problems + [problem for turn in turns for problem in turn if problem]


def _renamed(source: Path, stored: Mapping[str, Stored], names: Names) -> dict[str, Stored]:
    """Return the tensors that a family uses by the engine's names; unknown ones by their own."""
    tensors: dict[str, Stored] = {}
    for published, (shape, dtype, read) in stored.items():
        parts = names.engine_names(published)
        if not parts:
            continue
        if not (shape and shape[0]):
            raise wrong(source, f"holds {parts[0]} without numbers")
        rows, rest = divmod(shape[0], len(parts))
        if rest:
            raise wrong(source, f"holds {' and '.join(parts)} in one tensor that cannot be split")
        for number, name in enumerate(parts):
            part = partial(read, slice(number * rows, (number + 1) * rows))
            if name in tensors and not tensors[name].read().equal(part()):
                raise wrong(source, f"holds two different tensors for {name}")
            tensors[name] = Stored((rows, *shape[1:]), dtype, part)
    return tensors


def tensor_shapes(model: Model, tensors: Collection[str] = ()) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of every tensor that a model needs, and of those that it may have and
    that are among `tensors`. Names are fair-esm's without prefixes, where it has such a tensor.
    """
    encoder, dim, inner, hidden = model.family.encoder, model.dim, model.inner, model.hidden
    bias, norm_before = encoder.attention_bias, encoder.embedding_norm
    norm_bias = encoder.norm == "layer"
    # name, shape, and a bias or none
    modules: list[tuple[str, tuple[int, ...], bool]] = [
        ("embed_tokens", (encoder.rows, dim), False)
    ]
    if isinstance(encoder.positions, Learned):
        modules += [("embed_positions", (encoder.positions.rows, dim), False)]
    if isinstance(encoder.positions, T5RelativeBias):
        modules += [("embed_distances", (encoder.positions.count, model.heads), False)]
    if encoder.token_types:
        modules += [("embed_types", (2, dim), False)]
    there = any(name.startswith("emb_layer_norm_before") for name in tensors)
    if norm_before == "always" or (norm_before == "optional" and there):
        modules += [("emb_layer_norm_before", (dim,), norm_bias)]
    for layer in (f"layers.{number}." for number in range(model.layers)):
        modules += [(f"{layer}self_attn_layer_norm", (dim,), norm_bias)]
        modules += [(f"{layer}final_layer_norm", (dim,), norm_bias)]
        modules += [(f"{layer}self_attn.{part}_proj", (inner, dim), bias) for part in "qkv"]
        if encoder.query_key_norm:
            modules += [(f"{layer}self_attn.{part}_layer_norm", (inner,), False) for part in "qk"]
        modules += [(f"{layer}self_attn.out_proj", (dim, inner), bias)]
        modules += [(f"{layer}fc1", (hidden, dim), encoder.up_bias)]
        if encoder.gated:
            modules += [(f"{layer}fc_gate", (hidden, dim), encoder.up_bias)]
        modules += [(f"{layer}fc2", (dim, hidden), encoder.down_bias)]
    if encoder.order == "pre" and encoder.final_norm:
        modules += [("emb_layer_norm_after", (dim,), norm_bias and encoder.final_norm_bias)]
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape, biased in modules:
        shapes[f"{name}.weight"] = shape
        if biased:
            shapes[f"{name}.bias"] = shape[:1]
    return shapes


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
    name = source.stem if source.is_file() else source.name
    files = partial(Files, source, name=name, tokenizer=tokenizer)
    if source.is_file() and not (source.name in TENSOR_FILES and config):
        return files((source,))
    for kind in TENSOR_FILES:
        if (file := folder / kind).is_file():
            return files((file,), config=config)
        if (index := folder / f"{kind}{INDEX}").is_file():
            shards = tuple(folder / shard for shard in shard_names(index))
            if absent := [shard.name for shard in shards if not shard.is_file()]:
                words = f"lacks {', '.join(absent[:3])} ({len(absent)} of {len(shards)} shards)"
                raise wrong(folder, words)
            return files(shards, config=config, index=index)
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


def _contents(files: Files, *, trusted: bool) -> tuple[Layout, dict[str, Any], dict[str, Stored]]:
    """Read the layout, the settings, and the tensors by their published names; of safetensors only
    the headers are read here, and what holds no numbers has an empty shape. `trusted`: no checksum
    is looked at. WeightsError when a file is damaged, unsafe to read, or of another kind.
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
    return layout, config, stored


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
