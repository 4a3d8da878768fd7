"""LoRA adapters in PEFT's layout, merged into the weights that they were trained on.

An adapter has two small matrices, A (r, in) and B (out, r), for some of a model's matrices
W (out, in), which become W + scale * B A. What is no such sum is refused: merging the rest of it
would make another model than its authors have.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plm_embed.errors import ConfigError, WeightsError
from plm_embed.models.encoder.tensors import tensor_shapes
from plm_embed.models.model import Model
from plm_embed.models.registry import find_model
from plm_embed.models.sources.source_files import read_json
from plm_embed.models.sources.tensor_files import tensors_in

log = logging.getLogger(__name__)
CONFIG = "adapter_config.json"
TENSORS = ("adapter_model.safetensors", "adapter_model.bin")
ROWS = 64
"""Rows of a matrix that are changed at a time: what a cache holds."""

_HARMLESS = frozenset(
    {
        *("alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias"),
        *("ensure_weight_tying", "eva_config", "exclude_modules", "inference_mode"),
        *("init_lora_weights", "layers_pattern", "layers_to_transform", "loftq_config"),
        *("lora_alpha", "lora_dropout", "megatron_core", "modules_to_save", "peft_type"),
        *("peft_version", "qalora_group_size", "r", "rank_pattern", "revision"),
        *("runtime_config", "target_modules", "task_type", "use_dora", "use_rslora"),
    }
)
"""Keys of PEFT 0.21 that leave the sum as it is, or that are looked at here."""
_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")
"""How A and B may have been filled: the other ways change W itself before the training."""
_HEADS = ("classifier", "score", "qa_outputs")
"""What transformers puts behind an encoder."""
_PART = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(?:(embedding)_)?([AB])(?:\.weight)?")


@dataclass(frozen=True)
class _Pair:
    """A (r, in) and B (out, r) in float64, of a matrix or of a table of embeddings, which PEFT has
    transposed.
    """

    down: NDArray[np.float64]
    up: NDArray[np.float64]

    def product(self) -> NDArray[np.float64]:
        """B A, (out, in).

        Summed rank by rank: the library of matrix products would have an order of its own on each
        machine, and the SHA-256 of what is merged is part of every fingerprint.
        """
        found = np.zeros((len(self.up), self.down.shape[1]))
        for start in range(0, len(found), ROWS):
            rows = slice(start, start + ROWS)
            for rank, row in enumerate(self.down):
                found[rows] += self.up[rows, rank, None] * row
        return found


def files_of(folder: Path, model: Model) -> list[Path]:
    """The two files that decide what an adapter is: its settings and its tensors.

    WeightsError when they are not there, or when the settings say that it can't be merged.
    """
    found = [folder / name for name in TENSORS if (folder / name).is_file()]
    if not (folder / CONFIG).is_file() or not found:
        raise WeightsError(
            f"adapter: {folder} holds no adapter in PEFT's layout: {CONFIG}, and "
            f"{' or '.join(TENSORS)}.",
            path=folder,
        )
    for problem in _problems(read_json(folder / CONFIG), model):
        raise WeightsError(f"adapter: {folder} {problem}.", path=folder)
    return [folder / CONFIG, found[0]]


def merge(
    folder: Path, model: Model, tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint of `model`, by the engine's names, with an adapter in them.

    Sums are made in float64 and rounded once, to the dtype of the tensor. Raises WeightsError that
    names the adapter when it can't be merged.
    """
    settings, file = files_of(folder, model)
    config = read_json(settings)
    merged = dict(tensors)
    changed: set[str] = set()
    for module, pair in _pairs(folder, file, config, model):
        names = _names(model, module) or ()
        scale = _scale(folder, config, module, len(pair.down))
        product = pair.product()
        shape = sum(len(tensors[name]) for name in names), tensors[names[0]].shape[1]
        if product.shape != shape:
            raise WeightsError(
                f"adapter: {folder} changes {module} as a matrix of {product.shape}, but that of "
                f"{model.name} has {shape}.",
                path=folder,
            )
        ends = np.cumsum([len(tensors[name]) for name in names])[:-1]
        for name, part in zip(names, np.split(product, ends), strict=True):
            if name in changed:
                raise WeightsError(f"adapter: {folder} changes {name} twice.", path=folder)
            changed.add(name)
            sums = tensors[name].double().numpy() + scale * part
            merged[name] = rounded_once(sums, tensors[name].dtype)
            if not torch.isfinite(merged[name]).all():
                raise WeightsError(
                    f"adapter: {folder} makes numbers in {name} that are not finite, or too large "
                    f"for {merged[name].dtype}.",
                    path=folder,
                )
    if not changed:
        raise WeightsError(
            f"adapter: {folder} changes nothing of the encoder of {model.name}.", path=folder
        )
    log.info("%s: %d matrices of %s changed", folder, len(changed), model.name)
    return merged


def rounded_once(values: NDArray[np.float64], dtype: torch.dtype) -> torch.Tensor:
    """Numbers in a dtype of a checkpoint, to nearest, ties to even. What overflows is infinite.

    torch rounds to half precision by way of float32, and so twice: 1 + 2^-8 + 2^-40 becomes a tie.
    """
    with np.errstate(over="ignore"):
        if dtype == torch.float16:
            return torch.from_numpy(values.astype(np.float16))
        single = values.astype(np.float32)
    if dtype == torch.bfloat16:
        # what float32 does not hold leaves its last bit odd, so that no tie comes about
        bits, exact = single.view(np.uint32), single.astype(np.float64)
        bits -= np.abs(exact) > np.abs(values)
        bits |= exact != values
    return torch.from_numpy(single).to(dtype)


def _problems(config: Mapping[str, Any], model: Model) -> Iterator[str]:
    """Why an adapter can't be merged, in words."""
    if (kind := config.get("peft_type")) != "LORA":
        yield f"is of the kind {kind!r}; only LoRA can be merged"
    if config.get("use_dora"):
        yield "is made with DoRA, which is no sum of matrices"
    if (bias := config.get("bias", "none")) != "none":
        yield f"trains biases too (bias: {bias!r}); only bias: 'none' can be merged"
    if (start := config.get("init_lora_weights")) not in _STARTS:
        yield f"began by changing the base model's weights (init_lora_weights: {start!r})"
    for key, value in config.items():
        if value and key not in _HARMLESS:
            yield f"asks for {key}, which can't be merged"
    named = str(config.get("base_model_name_or_path") or "")
    for name in (named, Path(named).name):
        try:
            base = find_model(name)
        except ConfigError:  # another name, or a path: the shapes decide
            continue
        if not base.has_weights_of(model):
            yield f"was trained on {named}, but the model asked for is {model.name}"


def _pairs(
    folder: Path, file: Path, config: Mapping[str, Any], model: Model
) -> Iterator[tuple[str, _Pair]]:
    """The modules of the encoder that an adapter changes, and how; a word on what it has besides.

    WeightsError for tensors that are neither.
    """
    parts: dict[str, dict[str, NDArray[np.float64]]] = {}
    shapes = tensor_shapes(model)
    behind = [f".{name}." for name in (*_HEADS, *(config.get("modules_to_save") or ()))]
    heads: set[str] = set()
    for key, tensor in tensors_in(file):
        found = _PART.fullmatch(key)
        module = found[1] if found else re.sub(r"^base_model\.model\.|\.(?:weight|bias)$", "", key)
        names = _names(model, module)
        if names == () or (names is None and any(name in f".{module}." for name in behind)):
            heads.add(module)
            continue
        if not found or names is None or any(len(shapes[name]) != 2 for name in names):
            raise WeightsError(
                f"adapter: {folder} holds {key}, which is no change of a matrix of {model.name}.",
                path=folder,
            )
        if not isinstance(tensor, torch.Tensor) or tensor.ndim != 2 or not tensor.isfinite().all():
            raise WeightsError(f"adapter: {folder} holds no finite matrix as {key}.", path=folder)
        matrix: NDArray[np.float64] = tensor.double().numpy()
        if found[2]:  # of a table of embeddings; (B A) transposed is A^T B^T
            parts.setdefault(module, {})["AB"[found[3] == "A"]] = matrix.T
        else:
            parts.setdefault(module, {})[found[3]] = matrix
    if heads:
        log.warning(
            "adapter: %s: %s: no part of the encoder, left out", folder, ", ".join(sorted(heads))
        )
    for module, pair in sorted(parts.items()):
        if pair.keys() != {"A", "B"} or len(pair["A"]) != pair["B"].shape[1]:
            raise WeightsError(
                f"adapter: {folder} has no two matrices of one rank for {module}.", path=folder
            )
        yield module, _Pair(pair["A"], pair["B"])


def _names(model: Model, module: str) -> tuple[str, ...] | None:
    """The engine's names for a module's matrix: none if it is not used, None if it is not known.

    Models are trained inside others (`transformer.` of T5 with a head), so leading parts of a
    module's path that are not known are left out.
    """
    parts, shapes = module.split("."), tensor_shapes(model)
    for start in range(len(parts)):
        path = ".".join([*parts[start:], "weight"])
        names = model.family.common_names("hugging-face", model.architecture, path)
        if all(name in shapes for name in names):
            return names
    return None


def _scale(folder: Path, config: Mapping[str, Any], module: str, rank: int) -> float:
    """What B A is multiplied by. WeightsError when its rank is not the one that was asked for."""
    said = _of(config, "rank_pattern", module, config.get("r"))
    alpha = _of(config, "alpha_pattern", module, config.get("lora_alpha"))
    if type(said) is not int or not isinstance(alpha, int | float):
        raise WeightsError(
            f"adapter: {folder / CONFIG} names no r and lora_alpha for {module}.", path=folder
        )
    if said != rank:
        raise WeightsError(
            f"adapter: {folder} has {module} with rank {rank}, but its {CONFIG} says {said}.",
            path=folder,
        )
    return alpha / (sqrt(rank) if config.get("use_rslora") else rank)


def _of(config: Mapping[str, Any], key: str, module: str, otherwise: object) -> object:
    """A setting of one module, by the first pattern that ends its path, as PEFT looks it up."""
    patterns = config.get(key)
    for pattern, value in patterns.items() if isinstance(patterns, Mapping) else ():
        try:
            if re.match(rf"(.*\.)?({pattern})$", module):
                return value
        except re.error:
            continue
    return otherwise
