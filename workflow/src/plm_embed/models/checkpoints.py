"""Checkpoints as their authors publish them, read as data under the engine's names.

A source is a file of tensors, or a folder of Hugging Face's layout. Tensors are read one by one, by
whoever needs their numbers: so a checkpoint may be larger than memory, but for torch's old format.
No torch here before a checkpoint is read.
"""

import argparse
import hashlib
import json
import logging
import pickle
import re
import textwrap
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plm_embed.errors import WeightsError
from plm_embed.io.files import sha256_file
from plm_embed.models.family import TASK_HEADS, Learned, T5RelativeBias
from plm_embed.models.registry import MODELS, Model
from plm_embed.models.tokens import TENSOR, TokenizerFile
from plm_embed.wording import some

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)
Layout = Literal["fair-esm", "hugging-face", "tensors"]
"""A .pt file of fair-esm; a folder with config.json and files of tensors; tensors alone."""
TENSOR_FILES = ("model.safetensors", "pytorch_model.bin")
"""The file of tensors of a Hugging Face folder; the first that is there counts."""
INDEX = ".index.json"
"""The end of its name where an index names several files instead."""
BARE = (
    "holds tensors without the model's settings (a bare state_dict). Use fair-esm's own layout, or "
    "a Hugging Face folder with config.json and model.safetensors"
)
UNMATCHED = "which no name in the family matches"
_SAFETENSORS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "layers")
_DIM = ("hidden_size", "d_model", "embed_dim")
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "attention_heads")


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


class Tensors(Mapping[str, "torch.Tensor"]):
    """Tensors by name, each read from its file whenever it is looked up, and kept by nobody here.

    Read, not mapped: pages of a mapped file count as memory of the process until it ends (1.34 GB
    after a file of that size; 0.003 GB when read).
    """

    def __init__(self, readers: "Mapping[str, Callable[[], torch.Tensor]]") -> None:
        self.readers = dict(readers)

    def __getitem__(self, name: str) -> "torch.Tensor":
        return self.readers[name]()

    def __contains__(self, name: object) -> bool:
        return name in self.readers

    def __iter__(self) -> Iterator[str]:
        return iter(self.readers)

    def __len__(self) -> int:
        return len(self.readers)


@dataclass
class Checkpoint:
    """A source's configuration, and its tensors under the engine's names.

    kinds: the shapes and dtypes of the tensors, as tensors that may be on the device `meta`.
    """

    layout: Layout = "tensors"
    config: dict[str, Any] = field(default_factory=dict)
    kinds: dict[str, "torch.Tensor"] = field(default_factory=dict)
    readers: "dict[str, Callable[[], torch.Tensor]]" = field(default_factory=dict)

    @property
    def tensors(self) -> Tensors:
        return Tensors(self.readers)

    def add(self, name: str, kind: "torch.Tensor", read: "Callable[[], torch.Tensor]") -> None:
        self.kinds[name], self.readers[name] = kind, read

    @property
    def token_dropout(self) -> bool:
        return bool(self.config.get("token_dropout", False))


def files_of(source: Path, model: Model) -> Files:
    """List the files of a source. WeightsError when one is missing."""
    named = source
    if source.name in TENSOR_FILES and (source.parent / "config.json").is_file():
        source = source.parent
    folder = source if source.is_dir() else source.parent
    if not source.exists():
        raise _wrong(source, "does not exist. Name the published file or a Hugging Face folder")
    if source.stem == "adapter_model":
        raise _adapter(source)
    tokenizer = folder / model.tokenizer_file if model.tokenizer_file else None
    if tokenizer and not tokenizer.is_file():
        raise _wrong(
            folder,
            f"lacks {model.tokenizer_file}, which decides the tokens of {model.name}. Copy it from "
            "where the weights are published",
        )
    if source.is_file():
        return Files(named, (source,), tokenizer=tokenizer)
    config = path if (path := folder / "config.json").is_file() else None
    for name in TENSOR_FILES:
        if (folder / name).is_file():
            return Files(named, (folder / name,), config, tokenizer)
        if (index := folder / f"{name}{INDEX}").is_file():
            shards = tuple(folder / shard for shard in shard_names(index))
            if absent := [shard.name for shard in shards if not shard.is_file()]:
                raise _wrong(
                    folder, f"lacks {', '.join(absent[:3])} ({len(absent)} of {len(shards)} shards)"
                )
            return Files(named, shards, config, tokenizer, index)
    if (folder / "adapter_config.json").is_file():
        raise _adapter(source)
    raise _wrong(
        folder, "holds neither model.safetensors nor pytorch_model.bin, and no index of shards"
    )


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


def read(files: Files, model: Model, *, published: bool = False) -> Checkpoint:
    """Read a checkpoint: it is `model`, complete, with nothing unknown in it. Whether its numbers
    are finite is seen when they are read.

    `published`: the files are known by their SHA-256, so no other checksum is looked at. Raises
    WeightsError that names the source when it is damaged, unsafe to read, another model, or
    incomplete.
    """
    import torch

    checkpoint = Checkpoint()
    if files.config:
        checkpoint.layout, checkpoint.config = "hugging-face", _read_json(files.config)
    if files.tokenizer:
        tokenizer = _tokenizer(files.tokenizer, model)
        checkpoint.add(TENSOR, tokenizer, lambda: tokenizer)
    head: list[str] = []
    for path in files.tensors:
        for published_name, tensor, read_rows in _tensors_in(path, checkpoint, published):
            if published_name.startswith(TASK_HEADS):
                head.append(published_name)
            names = model.family.names.engine_names(published_name)
            if not names:
                continue
            if tensor is None or tensor.ndim == 0 or not len(tensor):
                raise _wrong(path, f"holds {names[0]} without numbers")
            if len(tensor) % len(names):
                both = " and ".join(names)
                raise _wrong(path, f"holds {both} in one tensor that cannot be split")
            rows = len(tensor) // len(names)
            for number, (name, kind) in enumerate(zip(names, tensor.split(rows), strict=True)):
                read_part = partial(read_rows, slice(number * rows, (number + 1) * rows))
                if name in checkpoint.kinds and not torch.equal(
                    checkpoint.readers[name](), read_part()
                ):
                    raise _wrong(path, f"holds two different tensors for {name}")
                checkpoint.add(name, kind, read_part)
    _check_model(files.source, checkpoint, model)
    _check_tensors(files.source, checkpoint.kinds, model)
    if head:
        log.info("%s: the tensors of its task head are not used: %s", files.source, some(head))
    if model.family.cleared_rows:
        table = checkpoint.readers["embed_tokens.weight"]().clone()
        table[torch.tensor(model.family.cleared_rows)] = 0
        checkpoint.add("embed_tokens.weight", table, lambda: table)
    return checkpoint


def stored_shapes(files: Files) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Return the configuration of a source, and the shapes of its tensors by their published names.

    Of safetensors only the headers are read, without torch. WeightsError as `read`.
    """
    checkpoint = Checkpoint(config=_read_json(files.config) if files.config else {})
    shapes: dict[str, tuple[int, ...]] = {}
    for path in files.tensors:
        if path.suffix == ".safetensors":
            file = _safetensors(path, "np")
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        else:
            for name, tensor, _ in _tensors_in(path, checkpoint, published=True):
                shapes[name] = () if tensor is None else tuple(tensor.shape)
    return checkpoint.config, shapes


def stated_heads(config: Mapping[str, Any]) -> int | None:
    """Return the number of heads that a configuration states."""
    return next((config[key] for key in _HEADS if type(config.get(key)) is int), None)


def _safetensors(path: Path, framework: str) -> Any:
    """Open a file of safetensors, of which nothing but the header is read. WeightsError when it is
    none.
    """
    import safetensors

    try:
        file = safetensors.safe_open(path, framework=framework, backend="pread")
    except (safetensors.SafetensorError, OSError) as error:
        raise _not_loaded(path, str(error)) from None
    if any("lora_" in name for name in file.keys()):  # type: ignore[no-untyped-call]  # noqa: SIM118
        raise _adapter(path)
    return file


def _tensors_in(
    path: Path, checkpoint: Checkpoint, published: bool
) -> Iterator[tuple[str, Any, Callable[[slice], Any]]]:
    """Yield the name of each tensor in a file, the tensor or one of its kind on the device `meta`
    (None if it has no numbers), and what reads its rows. A file of fair-esm says what it holds:
    this becomes the checkpoint's configuration.
    """
    import torch

    if path.suffix == ".safetensors":
        file = _safetensors(path, "pt")
        for name in sorted(file.keys()):
            rows = file.get_slice(name)
            shape = rows.get_shape()
            kind = _SAFETENSORS.get(rows.get_dtype())
            dtype = getattr(torch, kind) if kind else file.get_tensor(name).dtype
            yield name, torch.empty(shape, dtype=dtype, device="meta"), rows.__getitem__
        return
    content = _unpickle(path, published)
    if not isinstance(content, Mapping):
        raise _wrong(path, "holds no tensors by name")
    training = content.get("cfg") or content.get("args")
    arguments = training.get("model") if isinstance(training, Mapping) else training
    if isinstance(content.get("model"), Mapping) and isinstance(arguments, argparse.Namespace):
        settings = {name.removeprefix("encoder_"): value for name, value in vars(arguments).items()}
        rotary = "cfg" in content  # of fair-esm's models only ESM-2 has it
        checkpoint.layout = "fair-esm"
        checkpoint.config = {
            "token_dropout": False,
            **settings,
            "arch": "esm2" if rotary else settings.get("arch"),
            "position_embedding_type": "rotary" if rotary else "absolute",
        }
        content = content["model"]
    for name, tensor in content.items():
        if "lora_" in str(name):
            raise _adapter(path)
        stored = isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided
        usable = stored and tensor.device.type == "cpu"
        # of what is no tensor nobody reads rows
        yield str(name), tensor if usable else None, tensor.__getitem__ if usable else str


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
                raise _not_loaded(path, f"{member} in it does not match its checksum")
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
        raise _wrong(path, f"is not valid JSON ({error}). Get the folder again") from None
    if not isinstance(value, dict):
        raise _wrong(path, "is not a JSON object. Get the folder again")
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


def _check_model(source: Path, checkpoint: Checkpoint, model: Model) -> None:
    """Raise WeightsError, with the model that it may be, when a checkpoint is of another one."""
    config, family = checkpoint.config, model.family
    layers, dim, heads = _shape(checkpoint)
    contradiction = family.contradiction(config)
    missing = [key for key in family.required if key not in config]
    if missing and not contradiction:
        raise _wrong(
            source,
            f"does not say {missing[0]} in config.json. Get that file as the model was saved"
            if config
            else BARE,
        )
    shape = (layers, dim, heads or model.heads)
    if contradiction or shape != (model.layers, model.dim, model.heads):
        alike = [
            candidate
            for candidate in MODELS.values()
            if (candidate.layers, candidate.dim) == (layers, dim)
            and heads in (None, candidate.heads)
            and (config or candidate.architecture == model.architecture)
            and not candidate.family.contradiction(config)
        ]
        words = f"{layers} layers, width {dim}" + (f", {heads} heads" if heads else "")
        name = f"{alike[0].name} ({words})" if alike else f"an unknown model ({words})"
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


def _shape(checkpoint: Checkpoint) -> tuple[int, int | None, int | None]:
    """Return the layers, the width and the heads that a checkpoint's configuration states, else
    that its tensors show. Tensors show no heads.
    """
    config, tensors = checkpoint.config, checkpoint.kinds
    layers, dim = (
        next((config[key] for key in keys if type(config.get(key)) is int), None)
        for keys in (_LAYERS, _DIM)
    )
    if layers is None:
        numbers = [int(name.split(".")[1]) for name in tensors if re.match(r"layers\.\d+\.", name)]
        layers = max(numbers, default=-1) + 1
    table = tensors.get("embed_tokens.weight")
    if dim is None and table is not None and table.ndim == 2:
        dim = table.shape[1]
    return layers, dim, stated_heads(config)


def _check_tensors(source: Path, tensors: Mapping[str, "torch.Tensor"], model: Model) -> None:
    import torch

    shapes = tensor_shapes(model, tensors)
    wrong = []
    for name in sorted(shapes.keys() & tensors.keys()):
        tensor = tensors[name]
        if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            wrong.append(f"holds {name} as {tensor.dtype}")
        elif tuple(tensor.shape) != shapes[name]:
            wrong.append(f"holds {name} with shape {tuple(tensor.shape)} instead of {shapes[name]}")
    if problems := tensor_problems(shapes, tensors, wrong):
        more = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise _wrong(source, f"is not a complete {model.name}: it {', '.join(problems[:3])}{more}")


def tensor_problems(
    needed: Collection[str], tensors: Collection[str], wrong: Iterable[str]
) -> list[str]:
    """List the tensors that are missing, those that are unknown and what else is wrong, by turns:
    the first few show each kind.
    """
    missing = (f"lacks {name}" for name in needed if name not in tensors)
    unknown = (
        f"has {name}, {UNMATCHED}" for name in tensors if name not in needed and name != TENSOR
    )
    return [text for text in chain.from_iterable(zip_longest(missing, unknown, wrong)) if text]


def tensor_shapes(model: Model, tensors: Collection[str] = ()) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of every tensor that a model needs, and of those that it may have and
    that are among `tensors`.

    The names are fair-esm's without prefixes, where it has such a tensor.
    """
    encoder, dim, inner, hidden = model.family.encoder, model.dim, model.inner, model.hidden
    before = "emb_layer_norm_before"
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (encoder.rows, dim)}
    norms: dict[str, tuple[int, bool]] = {}  # width, and True for a bias
    if isinstance(encoder.positions, Learned):
        shapes["embed_positions.weight"] = encoder.positions.rows, dim
    if isinstance(encoder.positions, T5RelativeBias):
        shapes["embed_distances.weight"] = encoder.positions.count, model.heads
    if encoder.token_types:
        shapes["embed_types.weight"] = 2, dim
    if encoder.embedding_norm == "always" or (
        encoder.embedding_norm == "optional" and any(name.startswith(before) for name in tensors)
    ):
        norms[before] = dim, encoder.norm == "layer"
    matrices = {f"self_attn.{part}_proj": (inner, dim, encoder.attention_bias) for part in "qkv"}
    matrices["self_attn.out_proj"] = dim, inner, encoder.attention_bias
    for name in ("fc1", "fc_gate") if encoder.gated else ("fc1",):
        matrices[name] = hidden, dim, encoder.up_bias
    matrices["fc2"] = dim, hidden, encoder.down_bias
    for layer in (f"layers.{number}." for number in range(model.layers)):
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            norms[layer + name] = dim, encoder.norm_bias
        for part in "qk" if encoder.query_key_norm else "":
            norms[f"{layer}self_attn.{part}_layer_norm"] = inner, False
        for name, (rows, columns, bias) in matrices.items():
            shapes[f"{layer}{name}.weight"] = rows, columns
            shapes |= {f"{layer}{name}.bias": (rows,)} if bias else {}
    if encoder.order == "pre" and encoder.final_norm:
        norms["emb_layer_norm_after"] = dim, encoder.final_norm_bias
    for name, (width, bias) in norms.items():
        shapes |= {f"{name}.{kind}": (width,) for kind in ("weight", "bias")[: 1 + bias]}
    return shapes
