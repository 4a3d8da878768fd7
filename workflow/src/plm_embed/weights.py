"""A model's weights on disk: adopted or downloaded once, converted, named by their SHA-256, checked on every use.

A weights folder holds `model.safetensors` and `manifest.json`, which is written last. The tensors bear fair-esm's names
without prefixes, in sorted order and with the dtype of their source, so that equal tensors give an equal file, and an
equal SHA-256, whichever layout they came in.
"""

import hashlib
import json
import logging
import shlex
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from plm_embed import layouts
from plm_embed.download import download
from plm_embed.errors import UserError
from plm_embed.files import atomic_path, exclusive, sha256_file, write_json
from plm_embed.models import Architecture, Model

log = logging.getLogger(__name__)

TENSORS = "model.safetensors"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Source:
    """Where weights came from: a `path` that was adopted or a `url` that was downloaded.

    `sha256` is that of the .pt file; of a Hugging Face folder it is the SHA-256 of the `sha256sum` lines of its files.
    """

    layout: layouts.Layout
    sha256: str
    path: str | None = None
    url: str | None = None


@dataclass(frozen=True)
class Manifest:
    """What a weights folder holds. `sha256` and `bytes` are those of model.safetensors."""

    model: str
    architecture: Architecture
    layers: int
    dim: int
    heads: int
    max_residues: int | None
    token_dropout: bool
    licence: str
    sha256: str
    bytes: int
    source: Source


def prepare(model: Model, source: Path | str | None, output: Path) -> Manifest:
    """Make `output` a weights folder of `model` from `source`, or from a download when there is no source.

    `source` is fair-esm's .pt file or a Hugging Face folder (config.json, safetensors). Does nothing when `output` is
    intact and made from the same source. Raises UserError when the source cannot be read or is not `model`.
    Of several processes with one `output`, one works and the others wait for it.
    """
    with exclusive(output):
        return _prepare(model, source, output)


def _prepare(model: Model, source: Path | str | None, output: Path) -> Manifest:
    made = _intact(output, model)
    if source is None:
        if made and made.source.url in model.urls:
            log.info("%s: %s is already there and intact", output, model.name)
            return made
        path = output / f"{model.name}.pt"
        url = _fetch(model, path)
    else:
        path, url = Path(source).absolute(), None
    layout = layouts.layout_of(path)
    sha256 = _source_sha256(layouts.files_of(path, layout, model))
    if made and (made.source.layout, made.source.sha256) == (layout, sha256):
        log.info("%s: already made from %s and intact", output, path)
        return made
    try:
        checkpoint = layouts.read(path, layout, model)
    except UserError:
        if url:
            path.unlink()  # or every later call would stumble over it again
        raise
    with atomic_path(output / TENSORS) as temporary:
        written = _write_safetensors(temporary, checkpoint.tensors)
        size = temporary.stat().st_size
    manifest = Manifest(
        model=model.name,
        architecture=model.architecture,
        layers=model.layers,
        dim=model.dim,
        heads=model.heads,
        max_residues=model.max_residues,
        token_dropout=checkpoint.token_dropout,
        licence=model.licence,
        sha256=written,
        bytes=size,
        source=Source(layout, sha256, path=None if url else str(path), url=url),
    )
    write_json(output / MANIFEST, asdict(manifest))
    if url:
        path.unlink()  # all of it that is used is in model.safetensors now
    log.info("%s: %s from %s, %.3f GB, SHA-256 %s", output, model.name, url or path, size / 1e9, written)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a weights folder. Raises UserError when there is none or it is not one."""
    path = folder / MANIFEST
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Manifest(**fields | {"source": Source(**fields["source"])})
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}): the weights are not prepared.\n"
            f"Run: plm-embed weights --model MODEL --output {folder}"
        ) from None
    except (ValueError, TypeError, KeyError):
        raise UserError(
            f"{path} is not a manifest of weights. Delete {folder} and run plm-embed weights again."
        ) from None


class Tensors(Mapping[str, torch.Tensor]):
    """The tensors of a safetensors file by name, each read when it is asked for and kept by nobody here.

    Read, not mapped: pages of a mapped file count as memory of the process, all of them until it ends.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        self._begin = 8 + size
        self._entries: dict[str, Any] = {name: entry for name, entry in header.items() if name != "__metadata__"}

    def __getitem__(self, name: str) -> torch.Tensor:
        entry = self._entries[name]
        dtype = next(dtype for dtype, word in layouts.DTYPES.items() if word == entry["dtype"])
        tensor = torch.empty(entry["shape"], dtype=dtype)
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._begin + entry["data_offsets"][0])
            view: memoryview = tensor.view(-1).view(torch.uint8).numpy().data
            while view and (read := file.readinto(view)):  # one call reads 2 GB at most
                view = view[read:]
        if view:
            raise UserError(f"{self._path} ends before {name}: it is damaged or was replaced")
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def load(folder: Path, *, verify: bool = True) -> tuple[Manifest, Tensors]:
    """The manifest and the tensors of a weights folder, in main memory one by one as they are asked for.

    The size is always checked, the SHA-256 when `verify` is set. Raises UserError when they differ from the manifest.
    """
    manifest = read_manifest(folder)
    wrong = _damage(folder / TENSORS, manifest, verify=verify)
    if wrong:
        source = f" --source {shlex.quote(manifest.source.path)}" if manifest.source.path else ""
        raise UserError(f"{wrong}.\nRun: plm-embed weights --model {manifest.model}{source} --output {folder}")
    return manifest, Tensors(folder / TENSORS)


def _damage(path: Path, manifest: Manifest, *, verify: bool) -> str:
    """How a file of tensors differs from its manifest, in words; empty when it does not."""
    if not path.is_file():
        return f"{path} is missing"
    size = path.stat().st_size
    if size != manifest.bytes:
        return f"{path} has {size} bytes, its manifest says {manifest.bytes}: it is damaged or was replaced"
    if verify and (found := sha256_file(path)) != manifest.sha256:
        return f"{path} has SHA-256 {found}, its manifest says {manifest.sha256}: it is damaged or was replaced"
    return ""


def _intact(output: Path, model: Model) -> Manifest | None:
    """The manifest of `output` when it holds `model` undamaged."""
    try:
        made = read_manifest(output)
    except UserError:
        return None
    if (made.model, made.architecture, made.layers, made.dim, made.heads, made.max_residues) != (
        model.name, model.architecture, model.layers, model.dim, model.heads, model.max_residues,
    ):  # fmt: skip
        return None
    wrong = _damage(output / TENSORS, made, verify=True)
    if wrong:
        log.info("%s; converting again", wrong)
    return None if wrong else made


def _source_sha256(files: list[Path]) -> str:
    if len(files) == 1:
        return sha256_file(files[0])
    return hashlib.sha256("".join(f"{sha256_file(file)}  {file.name}\n" for file in files).encode()).hexdigest()


def _write_safetensors(path: Path, tensors: dict[str, torch.Tensor]) -> str:
    """Write a safetensors file one tensor at a time; return its SHA-256.

    Written here because the SHA-256 names the weights for ever: the bytes must depend on nothing but the tensors.
    """
    names, header, offset = sorted(tensors), {}, 0
    for name in names:
        tensor = tensors[name]
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": layouts.DTYPES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8 bytes

    def blocks() -> Iterator[bytes | memoryview]:
        yield len(text).to_bytes(8, "little")
        yield text
        for name in names:
            yield tensors[name].contiguous().view(torch.uint8).numpy().reshape(-1).data

    digest = hashlib.sha256()
    with path.open("wb") as file:
        for block in blocks():
            file.write(block)
            digest.update(block)
    return digest.hexdigest()


def _fetch(model: Model, path: Path) -> str:
    """Download the model's .pt to `path`, unless a whole download is already there; return the URL used."""
    if not model.urls:
        raise UserError(f"weights: {model.name} cannot be downloaded. Set `weights:` to its .pt file.")
    staged = shlex.quote(str((path.parent.parent / path.name).absolute()))
    failures = []
    for url in model.urls:
        try:
            if not path.exists():
                download(url, path)
        except UserError as error:
            failures.append(str(error))
            continue
        if model.md5 and (found := _md5(path)) != model.md5:
            path.unlink()
            failures.append(f"{url} has MD5 {found}; the published file has {model.md5}.")
            continue
        if damaged := _damaged_member(path):
            path.unlink()
            failures.append(f"{url} arrived damaged: {damaged} in it is not what its checksum says.")
            continue
        return url
    raise UserError(
        f"weights: {' '.join(failures)}\nFetch it where there is a network: curl -L -C - -o {staged} {model.urls[0]}\n"
        f"and set in the config: `weights: {staged}`"
    )


def _damaged_member(path: Path) -> str | None:
    """What differs from its CRC-32 in a file that torch wrote (a zip archive since torch 1.6); None if nothing does."""
    if not zipfile.is_zipfile(path):
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip()
    except zipfile.BadZipFile:
        return "an entry"


def _md5(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "md5").hexdigest()
