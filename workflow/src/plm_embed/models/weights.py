"""A model's weights on disk: named by their SHA-256, checked on every use.

A weights folder holds `model.safetensors`, `self_test.npz`, `lm_head.safetensors` if the checkpoint
has a head, and `manifest.json`, which is written last and has the SHA-256 of the others. The
tensors bear fair-esm's names without prefixes, in sorted order and with the dtype of their source,
so that equal tensors give an equal file, and an equal SHA-256, whichever layout they came in.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from plm_embed.errors import WeightsError
from plm_embed.models.checkpoints import Tensors
from plm_embed.models.manifest import HEAD, TENSORS, Manifest, read_manifest, weights_again

_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint8: "U8"}
"""Names of the dtypes in the format, in the order in which its own library writes them."""


def load(folder: Path) -> tuple[Manifest, Tensors]:
    """Load the manifest and the tensors of a weights folder, in main memory one by one as they are
    asked for.

    Size and SHA-256 are checked, and the file that was checked stays open: what replaces it later
    is not read. Raises WeightsError, with what to run, when they differ from the manifest.
    """
    manifest = read_manifest(folder)
    return manifest, _checked(folder, TENSORS, manifest.weights_sha256, manifest.bytes)


def load_head(folder: Path) -> Tensors | None:
    """Load the head of the language model of a weights folder, like `load`; None if it has none."""
    digest = read_manifest(folder).head_sha256
    return _checked(folder, HEAD, digest) if digest else None


def _checked(folder: Path, name: str, sha256: str, size: int | None = None) -> Tensors:
    path = folder / name
    if not path.is_file():
        raise WeightsError(f"{path} is missing", remedy=weights_again(folder), path=path)
    with path.open("rb") as file:
        held = os.fstat(file.fileno()).st_size
        if size not in (None, held):
            wrong = f"has {held} bytes, its manifest says {size}"
        else:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest == sha256:
                return stored_tensors(Path(f"/dev/fd/{file.fileno()}"))  # the checked one
            wrong = f"has SHA-256 {digest}, its manifest says {sha256}"
    raise WeightsError(
        f"{path} {wrong}: it is damaged or was replaced", remedy=weights_again(folder), path=path
    )


def stored_tensors(path: Path) -> Tensors:
    """Return the tensors of a safetensors file."""
    file: Any = safe_open(path, framework="pt", device="cpu", backend="pread")
    return Tensors({name: partial(file.get_tensor, name) for name in file.keys()})  # noqa: SIM118


def write(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    kinds: Mapping[str, torch.Tensor] | None = None,
) -> str:
    """Write a safetensors file, tensor by tensor, and return its SHA-256. Its bytes depend on
    nothing but the tensors, and are those that the format's own library writes.

    `kinds` has the tensors' shapes and dtypes where it takes time to look the tensors up. Raises
    ValueError for numbers that are not finite.
    """
    kinds = kinds or tensors
    ranks = {dtype: rank for rank, dtype in enumerate(_DTYPES)}
    order = sorted(kinds, key=lambda name: (ranks[kinds[name].dtype], name))
    header, end = {}, 0
    for name in order:
        kind = kinds[name]
        start, end = end, end + kind.nbytes
        header[name] = {
            "dtype": _DTYPES[kind.dtype],
            "shape": list(kind.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for part in (len(text).to_bytes(8, "little"), text):
            digest.update(part)
            file.write(part)
        for name in order:
            tensor = tensors[name].contiguous()
            if not torch.stack(torch.aminmax(tensor)).isfinite().all():  # takes no copy
                raise ValueError(f"NaN or infinite numbers in {name}")
            content = tensor.flatten().view(torch.uint8).numpy().data
            digest.update(content)
            file.write(content)
    return digest.hexdigest()
