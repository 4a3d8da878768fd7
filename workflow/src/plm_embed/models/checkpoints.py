"""Checkpoints recognized as a model of a known family, with their tensors under the engine's
names.
"""

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path

from plm_embed.errors import ConfigError, WeightsError, some_path
from plm_embed.models import tensor_files
from plm_embed.models.family import LM_HEAD, TASK_HEADS, Family, Learned, T5RelativeBias
from plm_embed.models.registry import MODELS, Model, find_model
from plm_embed.models.tensor_files import FLOATS, Contents, Files, files_of, wrong
from plm_embed.models.tokens import TENSOR, TokenizerFile
from plm_embed.models.weights import MANIFEST, Layout, Stored, read_manifest
from plm_embed.wording import some

log = logging.getLogger(__name__)
BARE = (
    "holds tensors without the model's settings (a bare state_dict). Use fair-esm's own layout, or "
    "a Hugging Face folder with config.json and model.safetensors"
)
UNKNOWN = "which no name in the family matches"
_OWN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "attention_heads")


@dataclass
class Checkpoint:
    """A model under the engine's names: its tensors, and those of the head of the language model by
    the names of `head_shapes`; none without one.
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
    if published := _named_after(source):
        raise WeightsError(
            f"weights: {source} is named after {published.name}: set `model: {published.name}`, or "
            "rename the weights if they are your own",
            path=source,
        )
    contents = tensor_files.read(files_of(source), trusted=True)
    folder = source if source.is_dir() else source.parent
    mismatches: dict[str, list[str]] = {}
    for family in dict.fromkeys(model.family for model in MODELS.values()):
        if (folder / family.tokenizer.file).exists():
            model, _, problems = _fit(source, contents, Model(name, family, 0, 0, 0))
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
    contents = tensor_files.read(files, trusted=published)
    fitted, tensors, problems = _fit(source, contents, model)
    unsuitable = BARE in problems or family.contradiction(contents.config)
    if fitted.sizes != model.sizes and not unsuitable:
        alike = (other.name for other in MODELS.values() if other.sizes == fitted.sizes)
        raise wrong(
            source,
            f"holds {next(alike, 'an unknown model')} ({fitted.shape}), but the model asked for is "
            f"{model.name} ({model.shape}).\nCheck `model` and `weights`",
        )
    if problems:
        raise wrong(source, f"is not a complete {model.name}: it {some(problems)}")
    # some models have one shape, and only a name can tell them apart
    named = _named_after(source)
    if named and model.name in MODELS and named.address != model.address:
        raise wrong(source, f"is named after {named.name}, but the model asked for is {model.name}")
    if unused := [name for name in contents.stored if name.startswith(TASK_HEADS)]:
        log.info("%s: the tensors of its task head are not used: %s", source, some(unused))
    names = [name for name in tensors if name.startswith(LM_HEAD)]
    head = {name.removeprefix(LM_HEAD): tensors.pop(name) for name in names}
    if family.cleared_rows:
        table = tensors["embed_tokens.weight"].read().clone()
        table[list(family.cleared_rows)] = 0
        tensors["embed_tokens.weight"] = Stored.of(table)
    if head and family.head and family.head.tied:
        head["out.weight"] = tensors["embed_tokens.weight"]
    if head and not (
        {name: part.shape for name, part in head.items()} == head_shapes(model)
        and all(part.dtype in FLOATS.values() for part in head.values())
        and all(part.read().isfinite().all() for part in head.values())
    ):
        log.info("%s: the head of its language model is not whole: no scores", source)
        head = {}  # vectors need none
    if files.tokenizer:
        tensors[TENSOR] = _tokenizer(files.tokenizer, model)
    dropout = contents.config.get("token_dropout", family.encoder.token_dropout)
    return Checkpoint(contents.layout, bool(dropout), tensors, head)


def _named_after(source: Path) -> Model | None:
    """Return the published model whose name a file or folder has."""
    return MODELS.get(source.stem if source.is_file() else source.name)


def _tokenizer(path: Path, model: Model) -> Stored:
    """Return the file that decides the tokens as a tensor of bytes."""
    import torch

    content, tokenizer = path.read_bytes(), model.family.tokenizer
    assert isinstance(tokenizer, TokenizerFile)
    try:
        count = len(tokenizer.read(content).letters)
        if count != (rows := model.family.encoder.rows):
            raise ValueError(f"it has {count:,} tokens, the model {rows:,}")
    except ValueError as error:
        raise wrong(path, f"is not the tokenizer of {model.name}: {error}") from None
    return Stored.of(torch.frombuffer(bytearray(content), dtype=torch.uint8))


def _renamed(source: Path, stored: Mapping[str, Stored], family: Family) -> dict[str, Stored]:
    """Return the tensors that a family uses by the engine's names; unknown ones by their own."""
    tensors: dict[str, Stored] = {}
    for published, (shape, dtype, read) in stored.items():
        names = family.names.engine_names(published)
        if not names:
            continue
        if not (shape and shape[0]):
            raise wrong(source, f"holds {names[0]} without numbers")
        rows, rest = divmod(shape[0], len(names))
        if rest:
            raise wrong(source, f"holds {' and '.join(names)} in one tensor that cannot be split")
        for number, name in enumerate(names):
            part = partial(read, slice(number * rows, (number + 1) * rows))
            if name in tensors and not tensors[name].read().equal(part()):
                raise wrong(source, f"holds two different tensors for {name}")
            tensors[name] = Stored((rows, *shape[1:]), dtype, part)
    return tensors


def _fit(
    source: Path, contents: Contents, model: Model
) -> tuple[Model, dict[str, Stored], list[str]]:
    """Return the model that a checkpoint holds if it is of a model's family and has its number of
    heads where nothing shows it, the tensors by the engine's names, and what speaks against it
    being a whole one.
    """
    family, config = model.family, contents.config
    tensors = _renamed(source, contents.stored, family)

    rows = {name: tensor.shape[0] for name, tensor in tensors.items()}
    columns = {name: tensor.shape[1] for name, tensor in tensors.items() if tensor.shape[1:]}
    layers = {name.split(".")[1] for name in tensors if re.match(r"layers\.\d+\.", name)}
    dim, hidden = columns.get("embed_tokens.weight", 0), rows.get("layers.0.fc1.weight", 0)
    inner = rows.get("layers.0.self_attn.q_proj.weight", 0)
    stated = (config[key] for key in _HEADS if type(config.get(key)) is int)
    heads = next(stated, columns.get("embed_distances.weight", 0)) or model.heads
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
    return fitted, tensors, problems + _unfit(fitted, tensors)


def _unfit(model: Model, tensors: Mapping[str, Stored]) -> list[str]:
    """Name tensors that are missing, unknown or of another kind than a model's; the first few show
    each.
    """
    shapes = tensor_shapes(model, tensors)
    missing = [] if model.layers else ["lacks layers.0"]
    missing += [f"lacks {name}" for name in shapes if name not in tensors]
    strange = (name for name in tensors if name not in shapes and not name.startswith(LM_HEAD))
    unknown = [f"has {name}, {UNKNOWN}" for name in strange]
    other = []
    for name in sorted(shapes.keys() & tensors.keys()):
        if tensors[name].dtype not in FLOATS.values():
            other.append(f"holds {name} as {tensors[name].dtype}")
        elif tensors[name].shape != shapes[name]:
            other.append(f"holds {name} with shape {tensors[name].shape}, not {shapes[name]}")
    return [problem for turn in zip_longest(missing, unknown, other) for problem in turn if problem]


def head_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the tensors of the language model's head; empty without one."""
    head, encoder, dim = model.family.head, model.family.encoder, model.dim
    if head is None:
        return {}
    shapes: dict[str, tuple[int, ...]] = {"out.weight": (encoder.rows, dim)}
    shapes |= {"out.bias": (encoder.rows,), "layer_norm.weight": (dim,)}
    shapes |= {"layer_norm.bias": (dim,)} if encoder.norm == "layer" else {}
    return shapes | ({"dense.weight": (dim, dim), "dense.bias": (dim,)} if head.dense else {})


def tensor_shapes(model: Model, tensors: Collection[str] = ()) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of every tensor that a model needs, and of those that it may have and
    that are among `tensors`. Names are fair-esm's without prefixes, where it has such a tensor.
    """
    encoder, dim, inner, hidden = model.family.encoder, model.dim, model.inner, model.hidden
    norm_before = encoder.embedding_norm == "always" or (
        encoder.embedding_norm == "optional"
        and any(name.startswith("emb_layer_norm_before") for name in tensors)
    )
    shapes: dict[str, tuple[int, ...]] = {}

    def add(name: str, *shape: int, bias: bool = False) -> None:
        shapes[f"{name}.weight"] = shape
        if bias:
            shapes[f"{name}.bias"] = shape[:1]

    add("embed_tokens", encoder.rows, dim)
    if isinstance(encoder.positions, Learned):
        add("embed_positions", encoder.positions.rows, dim)
    if isinstance(encoder.positions, T5RelativeBias):
        add("embed_distances", encoder.positions.count, model.heads)
    if encoder.token_types:
        add("embed_types", 2, dim)
    if norm_before:
        add("emb_layer_norm_before", dim, bias=encoder.norm == "layer")
    for layer in (f"layers.{number}." for number in range(model.layers)):
        add(f"{layer}self_attn_layer_norm", dim, bias=encoder.norm_bias)
        add(f"{layer}final_layer_norm", dim, bias=encoder.norm_bias)
        for part in "qkv":
            add(f"{layer}self_attn.{part}_proj", inner, dim, bias=encoder.attention_bias)
        for part in "qk" if encoder.query_key_norm else "":
            add(f"{layer}self_attn.{part}_layer_norm", inner)
        add(f"{layer}self_attn.out_proj", dim, inner, bias=encoder.attention_bias)
        add(f"{layer}fc1", hidden, dim, bias=encoder.up_bias)
        if encoder.gated:
            add(f"{layer}fc_gate", hidden, dim, bias=encoder.up_bias)
        add(f"{layer}fc2", dim, hidden, bias=encoder.down_bias)
    if encoder.order == "pre" and encoder.final_norm:
        add("emb_layer_norm_after", dim, bias=encoder.final_norm_bias)
    return shapes
