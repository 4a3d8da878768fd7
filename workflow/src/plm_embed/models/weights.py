"""A model's weights on disk: named by their SHA-256, checked on every use.

A weights folder holds `model.safetensors`, `self_test.npz` and `manifest.json`, which is written
last and has the SHA-256 of the others. The tensors bear fair-esm's names without prefixes, in
sorted order and with the dtype of their source, so that equal tensors give an equal file, and an
equal SHA-256, whichever layout they came in.
"""

import hashlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from plm_embed.errors import WeightsError
from plm_embed.models.manifest import TENSORS, Manifest, read_manifest


class Tensors(Mapping[str, torch.Tensor]):
    """The tensors of a safetensors file by name, each read when it is asked for and kept by nobody
    here.

    Read, not mapped: pages of a mapped file count as memory of the process until it ends (1.34 GB
    after a file of that size; 0.003 GB when read).
    """

    def __init__(self, path: Path) -> None:
        self._file: Any = safe_open(path, framework="pt", device="cpu", backend="pread")

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._file.get_tensor(name)
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in set(self)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.keys())

    def __len__(self) -> int:
        return len(self._file.keys())


def load(folder: Path) -> tuple[Manifest, Tensors]:
    """The manifest and the tensors of a weights folder, in main memory one by one as they are asked
    for.

    Size and SHA-256 are checked, and the file that was checked stays open: what replaces it later
    is not read. Raises WeightsError, with what to run, when they differ from the manifest.
    """
    manifest = read_manifest(folder)
    path = folder / TENSORS
    if not path.is_file():
        raise WeightsError(f"{path} is missing", remedy=remedy(manifest, folder), path=path)
    with path.open("rb") as file:
        if wrong := _damage(file, manifest):
            raise WeightsError(
                f"{path} {wrong}: it is damaged or was replaced",
                remedy=remedy(manifest, folder),
                path=path,
            )
        return manifest, Tensors(Path(f"/dev/fd/{file.fileno()}"))  # the file that was checked


def _damage(file: BufferedReader, manifest: Manifest) -> str:
    """How an open file of tensors differs from its manifest, in words; empty when it does not."""
    size = os.fstat(file.fileno()).st_size
    if size != manifest.bytes:
        return f"has {size} bytes, its manifest says {manifest.bytes}"
    found = hashlib.file_digest(file, "sha256").hexdigest()
    return (
        ""
        if found == manifest.weights_sha256
        else f"has SHA-256 {found}, its manifest says {manifest.weights_sha256}"
    )


def remedy(manifest: Manifest, folder: Path) -> str:
    """The command that makes a damaged weights folder whole."""
    source = ["--source", manifest.source.path] if manifest.source.path else []
    command = shlex.join(
        ["plm-embed", "weights", "--model", manifest.model, *source, "--output", str(folder)]
    )
    return f"run `{command}`"


def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a safetensors file. Its bytes depend on nothing but the tensors. Raises OSError."""
    path.touch()
    mode = path.stat().st_mode  # by the umask; save_file's own lets nobody else read
    path.unlink()
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
        path.chmod(mode)
    except SafetensorError as error:  # a full disk is to be told from a bug
        if system := re.search(r"\(os error (\d+)\)", str(error)):
            code = int(system[1])
            raise OSError(code, os.strerror(code), str(path)) from error
        raise
