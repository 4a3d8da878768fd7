"""A model's weights on disk: named by their SHA-256, checked on every use.

A weights folder holds `model.safetensors`, `self_test.npz` and `manifest.json`, which is written
last and has the SHA-256 of the others. The tensors bear fair-esm's names without prefixes, in
sorted order and with the dtype of their source, so that equal tensors give an equal file, and an
equal SHA-256, whichever layout they came in.
"""

import hashlib
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import torch

from plm_embed.errors import WeightsError
from plm_embed.models import checkpoints
from plm_embed.models.manifest import Manifest, read_manifest

TENSORS = "model.safetensors"


class Tensors(Mapping[str, torch.Tensor]):
    """The tensors of an open safetensors file by name, each read when it is asked for and kept by
    nobody here.

    Read, not mapped: pages of a mapped file count as memory of the process, all of them until it
    ends.
    """

    def __init__(self, file: FileIO) -> None:
        self._file = file
        file.seek(0)
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        self._begin = 8 + size
        self._entries: dict[str, Any] = {
            name: entry for name, entry in header.items() if name != "__metadata__"
        }

    def __getitem__(self, name: str) -> torch.Tensor:
        entry = self._entries[name]
        dtype = next(dtype for dtype, word in checkpoints.DTYPES.items() if word == entry["dtype"])
        tensor = torch.empty(entry["shape"], dtype=dtype)
        self._file.seek(self._begin + entry["data_offsets"][0])
        view: memoryview = tensor.view(-1).view(torch.uint8).numpy().data
        while view and (read := self._file.readinto(view)):  # one call reads 2 GB at most
            view = view[read:]
        if view:
            raise WeightsError(
                f"{self._file.name} ends before {name}: it is damaged or was replaced",
                path=self._file.name,
            )
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __del__(self) -> None:
        self._file.close()


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
    file = path.open("rb", buffering=0)
    try:
        if wrong := _damage(file, manifest):
            raise WeightsError(
                f"{path} {wrong}: it is damaged or was replaced",
                remedy=remedy(manifest, folder),
                path=path,
            )
        return manifest, Tensors(file)
    except BaseException:
        file.close()
        raise


def _damage(file: FileIO, manifest: Manifest) -> str:
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


def sha256_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of the file that `write` makes of these tensors."""
    digest = hashlib.sha256()
    for block in _blocks(tensors):
        digest.update(block)
    return digest.hexdigest()


def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a safetensors file one tensor at a time.

    Written here because the SHA-256 names the weights for ever: the bytes must depend on nothing
    but the tensors.
    """
    with path.open("wb") as file:
        for block in _blocks(tensors):
            file.write(block)


def _blocks(tensors: Mapping[str, torch.Tensor]) -> Iterator[bytes | memoryview]:
    names, header, offset = sorted(tensors), {}, 0
    for name in names:
        tensor = tensors[name]
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": checkpoints.DTYPES[tensor.dtype],
            "shape": [*tensor.shape],
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8 bytes
    yield len(text).to_bytes(8, "little")
    yield text
    for name in names:
        yield tensors[name].contiguous().view(torch.uint8).numpy().reshape(-1).data
