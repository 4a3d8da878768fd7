"""Checkpoints as their authors publish them, read as data under the engine's names.

A source is a file of tensors, or a folder of Hugging Face's layout. Tensors stay memory-mapped in
their files where the format allows it. No torch here before a checkpoint is read.
"""

import argparse
import json
import logging
import pickle
import re
import textwrap
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plm_embed.errors import WeightsError
from plm_embed.models.family import Family, Learned, T5RelativeBias
from plm_embed.models.registry import MODELS, Model
from plm_embed.models.tokens import TENSOR, TokenizerFile

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)
Layout = Literal["fair-esm", "hugging-face", "tensors"]
"""A .pt file of fair-esm; a folder with config.json and files of tensors; tensors alone."""
TENSOR_FILES = ("model.safetensors", "pytorch_model.bin")
"""The file of tensors of a Hugging Face folder; the first that is there counts."""
INDEX = ".index.json"
"""The end of its name where an index names several files instead."""
_LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "layers")
_DIM = ("hidden_size", "d_model", "embed_dim")
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "attention_heads")


@dataclass
class Checkpoint:
    """A source's configuration, and its tensors under the engine's names."""

    layout: Layout = "tensors"
    config: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, "torch.Tensor"] = field(default_factory=dict)

    @property
    def token_dropout(self) -> bool:
        return bool(self.config.get("token_dropout", False))


def files_of(source: Path, model: Model) -> list[Path]:
    """List every file that decides what a source holds, in a fixed order. WeightsError when one is
    missing.
    """
    if source.name in TENSOR_FILES and (source.parent / "config.json").is_file():
        source = source.parent
    folder = source if source.is_dir() else source.parent
    if not source.exists():
        raise _wrong(source, "does not exist. Name the published file or a Hugging Face folder")
    if source.stem == "adapter_model":
        raise _adapter(source)
    tokenizer = [folder / model.tokenizer_file] if model.tokenizer_file else []
    if tokenizer and not tokenizer[0].is_file():
        raise _wrong(
            folder,
            f"lacks {model.tokenizer_file}, which decides the tokens of {model.name}. Copy it from "
            "where the weights are published",
        )
    if source.is_file():
        return [*tokenizer, source]
    config = [path] if (path := folder / "config.json").is_file() else []
    for name in TENSOR_FILES:
        if (folder / name).is_file():
            return [*config, *tokenizer, folder / name]
        if (index := folder / f"{name}{INDEX}").is_file():
            shards = [folder / shard for shard in shard_names(index)]
            if absent := [shard.name for shard in shards if not shard.is_file()]:
                raise _wrong(
                    folder, f"lacks {', '.join(absent[:3])} ({len(absent)} of {len(shards)} shards)"
                )
            return [*config, *tokenizer, index, *shards]
    if (folder / "adapter_config.json").is_file():
        raise _adapter(source)
    raise _wrong(
        folder, "holds neither model.safetensors nor pytorch_model.bin, and no index of shards"
    )


def holds_tensors(path: Path) -> bool:
    """Return whether a file of a source is one of tensors, not of words about them."""
    return path.suffix not in (".json", ".txt")


def shard_names(index: Path) -> list[str]:
    """List the files that an index names. WeightsError when it is none, or names files
    elsewhere.
    """
    names = _read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in names.values()
    ):
        raise _wrong(index, "has no valid 'weight_map'. Get the folder again")
    return sorted(set(names.values()))


def read(source: Path, model: Model, *, published: bool = False) -> Checkpoint:
    """Read the checkpoint at `source`: it is `model`, complete, with nothing unknown in it. Whether
    its numbers are finite is seen when they are read.

    `published`: the files are known by their SHA-256, so no other checksum is looked at. Raises
    WeightsError that names the source when it is damaged, unsafe to read, another model, or
    incomplete.
    """
    import torch

    checkpoint = Checkpoint()
    for path in files_of(source, model):
        if path.name == "config.json":
            checkpoint.layout, checkpoint.config = "hugging-face", _read_json(path)
        elif path.name == model.tokenizer_file:
            checkpoint.tensors[TENSOR] = _tokenizer(path, model)
        elif holds_tensors(path):
            for name, tensor in _tensors_in(path, checkpoint, model.family, published):
                _add(checkpoint.tensors, path, model.family.names.engine_names(name), tensor)
    _check_model(source, checkpoint, model)
    _check_tensors(source, checkpoint.tensors, model)
    if model.family.cleared_rows:
        table = checkpoint.tensors["embed_tokens.weight"].clone()
        table[torch.tensor(model.family.cleared_rows)] = 0
        checkpoint.tensors["embed_tokens.weight"] = table
    return checkpoint


def _tensors_in(
    path: Path, checkpoint: Checkpoint, family: Family, published: bool
) -> Iterator[tuple[str, Any]]:
    """Yield the name and tensor of each in a file, of safetensors those that the family uses. A
    file of fair-esm says what it holds: this becomes the checkpoint's configuration.
    """
    if path.suffix == ".safetensors":
        import safetensors

        try:
            with safetensors.safe_open(path, framework="pt", device="cpu") as file:
                for name in sorted(file.keys()):
                    if "lora_" in name:
                        raise _adapter(path)
                    if family.names.engine_names(name):
                        yield name, file.get_tensor(name)
        except (safetensors.SafetensorError, OSError) as error:
            raise _not_loaded(path, str(error)) from None
        return
    content = _unpickle(path, published)
    if not isinstance(content, Mapping):
        raise _wrong(path, "holds no tensors by name")
    trained = content.get("cfg") or content.get("args")
    arguments = trained.get("model") if isinstance(trained, Mapping) else trained
    if isinstance(content.get("model"), Mapping) and isinstance(arguments, argparse.Namespace):
        said = {name.removeprefix("encoder_"): value for name, value in vars(arguments).items()}
        rotary = "cfg" in content  # of fair-esm's models only ESM-2 has it
        checkpoint.layout = "fair-esm"
        checkpoint.config = {
            "token_dropout": False,
            **said,
            "arch": "esm2" if rotary else said.get("arch"),
            "position_embedding_type": "rotary" if rotary else "absolute",
        }
        content = content["model"]
    for name, tensor in content.items():
        if "lora_" in str(name):
            raise _adapter(path)
        yield str(name), tensor


def _unpickle(path: Path, published: bool) -> Any:
    """Read a pickle as data: nothing in it can run. The one class allowed is `argparse.Namespace`,
    which fair-esm's own files hold.
    """
    import torch

    with path.open("rb") as file:
        start = file.read(4)
    mapped = start == b"PK\x03\x04"
    if start.startswith(pickle.PROTO):
        # the format before torch 1.6, which was no zip file, cannot be memory-mapped
        log.info(
            "%s is in torch's old format, which has no checksums: all %.2f GB go into memory",
            path,
            path.stat().st_size / 1e9,
        )
    try:
        if mapped and not published:
            with zipfile.ZipFile(path) as archive:
                member = archive.testzip()
            if member:
                raise _not_loaded(path, f"{member} in it is not what its checksum says")
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(str(path), map_location="cpu", weights_only=True, mmap=mapped)
    except (MemoryError, WeightsError):
        raise
    # both readers raise whatever they stumble over: struct.error, KeyError, NotImplementedError ...
    except Exception as error:
        unsafe = re.search(r"(?:GLOBAL|global:?|class) ([\w.]+\.\w+)", str(error))
        if unsafe and isinstance(error, pickle.UnpicklingError):
            raise _wrong(
                path,
                f"was not loaded: it asks for {unsafe[1]}, which could run code. Only tensors and "
                "argparse.Namespace are allowed.\nUse the file that the model's authors publish",
            ) from None
        raise _not_loaded(path, str(error) or type(error).__name__) from None


def _not_loaded(path: Path, reason: str) -> WeightsError:
    """Say what a file is that could not be read: another kind of file, or a damaged one."""
    with path.open("rb") as file:
        start = file.read(200).lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        return _wrong(
            path, "is a pointer of git-lfs, not the file itself. Run `git lfs pull` in its folder"
        )
    if start.startswith((b"<!doctype", b"<html")):
        return _wrong(path, "was not loaded: it is a web page. Download the file itself")
    reason = textwrap.shorten(next((line for line in reason.splitlines() if line.strip()), ""), 120)
    return _wrong(path, f"was not loaded: it is cut short or damaged ({reason}).\nGet it again")


def _wrong(path: Path, problem: str) -> WeightsError:
    return WeightsError(f"weights: {path} {problem}.", path=path)


def _adapter(source: Path) -> WeightsError:
    folder = source if source.is_dir() else source.parent
    return WeightsError(
        f"weights: {source} is an adapter (LoRA), not a model. Merge it into its model, and name "
        "the folder `merged`:\n"
        "from peft import PeftModel\n"
        "model = ...  # as it was loaded for training\n"
        f"PeftModel.from_pretrained(model, {str(folder)!r}).merge_and_unload()"
        '.save_pretrained("merged")',
        path=source,
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _wrong(path, f"is not valid JSON ({error}). Get the folder again") from None
    if not isinstance(value, dict):
        raise _wrong(path, "holds no JSON object. Get the folder again")
    return value


def _tokenizer(path: Path, model: Model) -> "torch.Tensor":
    """Return the file that decides the tokens as a tensor of bytes."""
    import torch

    content, tokenizer = path.read_bytes(), model.family.tokenizer
    assert isinstance(tokenizer, TokenizerFile)
    try:
        count = len(tokenizer.read(content).letters)
        if count != (rows := model.family.encoder.rows):
            raise ValueError(f"it has {count:,} tokens, the model {rows:,}")
    except ValueError as error:
        raise _wrong(path, f"is not the tokenizer of {model.name}: {error}") from None
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _add(tensors: dict[str, Any], path: Path, names: tuple[str, ...], tensor: Any) -> None:
    """Take a tensor in under its names, which share out its rows."""
    import torch

    if not names:
        return
    if not (isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided):
        raise _wrong(path, f"holds {names[0]} without its numbers")
    if len(names) > 1 and (tensor.ndim == 0 or len(tensor) % len(names)):
        raise _wrong(path, f"holds {' and '.join(names)} in one tensor that cannot be shared out")
    parts = [tensor] if len(names) == 1 else tensor.chunk(len(names))
    for name, part in zip(names, parts, strict=True):
        if name in tensors and not torch.equal(tensors[name], part):
            raise _wrong(path, f"holds two unlike tensors for {name}")
        tensors[name] = part


def _check_model(source: Path, checkpoint: Checkpoint, model: Model) -> None:
    config, tensors = checkpoint.config, checkpoint.tensors
    family = model.family

    def number(keys: tuple[str, ...]) -> int | None:
        return next((config[key] for key in keys if type(config.get(key)) is int), None)

    # what a source does not say, the shapes of its tensors show
    layers = number(_LAYERS)
    if layers is None:
        numbers = [int(name.split(".")[1]) for name in tensors if re.match(r"layers\.\d+\.", name)]
        layers = max(numbers, default=-1) + 1
    dim, table = number(_DIM), tensors.get("embed_tokens.weight")
    if dim is None and table is not None and table.ndim == 2:
        dim = table.shape[1]
    heads = number(_HEADS)
    contradiction = _contradiction(family, config)
    for key in () if contradiction else family.required:
        if key not in config:
            raise _wrong(
                source, f"does not say {key}: name a file of fair-esm, or a folder with config.json"
            )
    if contradiction or (layers, dim, heads or model.heads) != (
        model.layers,
        model.dim,
        model.heads,
    ):
        alike = [
            other
            for other in MODELS.values()
            if (other.layers, other.dim, heads or other.heads) == (layers, dim, other.heads)
            and (config or other.architecture == model.architecture)
            and not _contradiction(other.family, config)
        ]
        shape = f"{layers} layers, width {dim}" + (f", {heads} heads" if heads else "")
        name = f"{alike[0].name} ({shape})" if alike else f"an unknown model ({shape})"
        why = f": its configuration says {contradiction}" if contradiction else ""
        hint = (
            f"Set `model: {alike[0].name}`, or give the weights of {model.name}"
            if alike
            else "Check `model`"
        )
        raise _wrong(
            source,
            f"holds {name}, but the model asked for is {model.name} ({model.shape}){why}.\n{hint}",
        )
    # some models have one shape, and only a name can tell them apart
    named = MODELS.get(source.stem if source.is_file() else source.name)
    if named and model.name in MODELS and not named.has_weights_of(model):
        raise _wrong(
            source, f"is named after {named.name}, but the model asked for is {model.name}"
        )


def _contradiction(family: Family, config: Mapping[str, Any]) -> str:
    """Name what a configuration says that is not so in the family; empty if nothing."""
    wrong = [key for key, value in family.config.items() if config.get(key, value) != value]
    return f"{wrong[0]}: {config[wrong[0]]!r}, not {family.config[wrong[0]]!r}" if wrong else ""


def _check_tensors(source: Path, tensors: Mapping[str, "torch.Tensor"], model: Model) -> None:
    import torch

    shapes = tensor_shapes(model, tensors)
    held = {name: tensor for name, tensor in tensors.items() if name != TENSOR}
    wrong = [f"lacks {name}" for name in shapes if name not in held]
    wrong += [f"has an unknown tensor {name}" for name in held if name not in shapes]
    for name in sorted(shapes.keys() & held.keys()):
        tensor = held[name]
        if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            wrong.append(f"holds {name} as {tensor.dtype}")
        elif tensor.device.type != "cpu":
            wrong.append(f"holds {name} without its numbers")
        elif tuple(tensor.shape) != shapes[name]:
            wrong.append(f"holds {name} with shape {tuple(tensor.shape)} instead of {shapes[name]}")
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise _wrong(source, f"is not a whole {model.name}: it {', '.join(wrong[:3])}{more}")


def tensor_shapes(model: Model, tensors: Collection[str] = ()) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of every tensor that a model needs, and of those that it may have and
    that are among `tensors`.

    The names are fair-esm's without prefixes, where it has them.
    """
    encoder, dim, inner, hidden = model.family.encoder, model.dim, model.inner, model.hidden
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (encoder.rows, dim)}

    def add_norm(name: str, bias: bool, width: int = dim) -> None:
        shapes.update({f"{name}.{kind}": (width,) for kind in ("weight", "bias")[: 1 + bias]})

    if isinstance(encoder.positions, Learned):
        shapes["embed_positions.weight"] = encoder.positions.rows, dim
    if isinstance(encoder.positions, T5RelativeBias):
        shapes["embed_distances.weight"] = encoder.positions.count, model.heads
    if encoder.token_types:
        shapes["embed_types.weight"] = 2, dim
    before = "emb_layer_norm_before"
    if encoder.embedding_norm == "always" or (
        encoder.embedding_norm == "optional" and any(name.startswith(before) for name in tensors)
    ):
        add_norm(before, bias=encoder.norm == "layer")
    linear = {f"self_attn.{part}_proj": (inner, dim, encoder.attention_bias) for part in "qkv"}
    linear["self_attn.out_proj"] = dim, inner, encoder.attention_bias
    for name in ("fc1", "fc_gate") if encoder.gated else ("fc1",):
        linear[name] = hidden, dim, encoder.up_bias
    linear["fc2"] = dim, hidden, encoder.down_bias
    for layer in range(model.layers):
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            add_norm(f"layers.{layer}.{name}", encoder.norm_bias)
        for part in "qk" if encoder.query_key_norm else "":
            add_norm(f"layers.{layer}.self_attn.{part}_layer_norm", bias=False, width=inner)
        for name, (rows, columns, bias) in linear.items():
            shapes[f"layers.{layer}.{name}.weight"] = rows, columns
            if bias:
                shapes[f"layers.{layer}.{name}.bias"] = (rows,)
    if encoder.order == "pre" and encoder.final_norm:
        add_norm("emb_layer_norm_after", encoder.final_norm_bias)
    return shapes
