"""A folder of prepared weights, and its record: whose weights they are, from where, published or
not.

It holds `model.safetensors`, `self_test.npz`, `lm_head.safetensors` if the checkpoint has a head,
and `manifest.json`, a sealed JSON file that is written last and has the SHA-256 of the others. The
tensors bear fair-esm's names without prefixes, in sorted order and with the dtype of their source,
so that equal tensors give an equal file, and an equal SHA-256, whichever layout they came in. No
torch here before tensors are read or written.
"""

import hashlib
import json
import math
from collections import UserDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from plm_embed.accuracy import Rounding
from plm_embed.errors import WeightsError
from plm_embed.io.files import sha256_file
from plm_embed.io.json_files import read_sealed
from plm_embed.models.registry import ARCHITECTURES, MODELS, Model

if TYPE_CHECKING:
    import torch

MANIFEST = "manifest.json"
TENSORS = "model.safetensors"
SELF_TEST = "self_test.npz"
HEAD = "lm_head.safetensors"
RECORD = "weights.json"
"""A campaign's copy of the manifest, in the folder of its model: says what was used, wherever the
results go.
"""
WEIGHTS_AGAIN = "delete {} and run again, or make it by `plm-embed weights`"
"""Remedy for a damaged folder of prepared weights: a run that needs it makes it."""
NOT_VERIFIED = "not verified as the published weights"
UNPUBLISHED = "unpublished weights: plm-embed lists no model of this name"
Layout = Literal["fair-esm", "hugging-face", "tensors"]
"""A .pt file of fair-esm; a folder with config.json and files of tensors; tensors alone."""
Published = Literal["no", "sha256", "known answers"]
"""Proof that weights are the published ones: none, or the SHA-256 of their file. Earlier versions
took known answers for a proof, too.
"""
_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "uint8": "U8"}
"""Names of the dtypes in safetensors, in the order in which its own library writes them."""


@dataclass(frozen=True)
class Source:
    """The origin of weights: a `path` that was adopted or a `url` that was downloaded.

    `sha256` is that of the one file; of several it is the SHA-256 of their `sha256sum` lines.
    """

    layout: Layout
    sha256: str
    path: str | None = None
    url: str | None = None


@dataclass(frozen=True)
class Manifest:
    """The contents of a weights folder. `weights_sha256` and `bytes` are those of
    model.safetensors.
    """

    model: str
    architecture: str
    layers: int
    dim: int
    heads: int
    max_residues: int | None
    token_dropout: bool
    license: str
    weights_sha256: str
    bytes: int
    source: Source
    self_test_sha256: str = ""
    roundings: dict[str, Rounding] | None = None
    """The distance by which each compute dtype alone moves these weights' vectors; None of an
    earlier version.
    """
    published: Published = "no"
    attention_dim: int | None = None
    """Width of all heads together where it is not `dim`."""
    tokenizer_sha256: str | None = None
    """SHA-256 of the published file that decides the tokens; its bytes are among the tensors."""
    tokens_sha256: str | None = None
    """SHA-256 of the part of that file that decides the tokens."""
    head_sha256: str | None = None
    """SHA-256 of lm_head.safetensors, which scores need and vectors do not; None if there is none,
    because the checkpoint had none or an earlier version prepared it.
    """
    folder: str | None = None
    """The folder of the prepared weights, which a campaign's record names."""

    @classmethod
    def of(cls, model: Model, source: Source, **facts: Any) -> "Manifest":
        """Return the manifest of a model's weights: its shape, and the facts about them."""
        return cls(
            model=model.name,
            architecture=model.family.architecture,
            layers=model.layers,
            dim=model.dim,
            heads=model.heads,
            attention_dim=model.attention_dim or None,
            max_residues=model.family.max_residues,
            license=model.license,
            source=source,
            **facts,
        )

    @cached_property
    def as_model(self) -> Model:
        """The model by its name and what is recorded of its shape, of a family that leaves nothing
        open. WeightsError for an architecture that this version does not know.
        """
        if self.architecture not in ARCHITECTURES:
            words = f"architecture {self.architecture!r} is not known to this version of plm-embed"
            raise WeightsError(words)
        family = ARCHITECTURES[self.architecture]
        encoder = replace(family.encoder, token_dropout=self.token_dropout)
        family = replace(family, encoder=encoder, max_residues=self.max_residues)
        return Model(self.model, family, self.layers, self.dim, self.heads, self.attention_dim or 0)

    @property
    def path(self) -> Path:
        """The folder of the prepared weights."""
        return Path(self.folder or "")

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of the other files in that folder, by name."""
        digests = {TENSORS: self.weights_sha256, SELF_TEST: self.self_test_sha256}
        return digests | ({HEAD: self.head_sha256} if self.head_sha256 else {})


class Stored(NamedTuple):
    """A tensor of a file: its shape, its dtype in torch's words, and what reads it, or a slice of
    its rows.
    """

    shape: tuple[int, ...]
    dtype: str
    read: "Callable[..., torch.Tensor]"

    @classmethod
    def of(cls, tensor: "torch.Tensor") -> "Stored":
        """Return a tensor in memory as one of a file."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        return cls(tuple(tensor.shape), dtype, lambda rows=slice(None): tensor[rows])


class Tensors(UserDict[str, Any]):
    """The tensors of a safetensors file by name, each read whenever it is looked up, and kept by
    nobody here.

    Read, not mapped: pages of a mapped file count as memory of the process until it ends (1.34 GB
    after a file of that size; 0.003 GB when read).
    """

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        file: Any = safe_open(path, framework="pt", device="cpu", backend="pread")
        super().__init__(dict.fromkeys(file.keys(), file))

    def __getitem__(self, name: str) -> "torch.Tensor":
        tensor: torch.Tensor = self.data[name].get_tensor(name)
        return tensor


def caveat(name: str, manifest: Manifest | None) -> str:
    """Say why a model's weights are not known to be the published ones; empty when they are."""
    model = MODELS.get(name)
    if model is None:
        return UNPUBLISHED
    if manifest is None:
        return f"{NOT_VERIFIED}: nothing here says where they came from"
    if not model.trained:
        return demo_caveat(model, manifest.source.sha256)
    doubts = []
    if manifest.published != "sha256" and model.sha256:
        doubts.append("not a published file whose SHA-256 is known")
    elif manifest.published != "sha256":
        origin = f"downloaded from {manifest.source.url}, but " if manifest.source.url else ""
        doubts.append(f"{origin}no SHA-256 of the published file is known")
    if model.tokens_sha256 and manifest.tokens_sha256 not in (None, model.tokens_sha256):
        doubts.append(
            f"its {model.family.tokenizer.file} makes other tokens than the published one"
        )
    return f"{NOT_VERIFIED}: {'; '.join(doubts)}" if doubts else ""


def demo_caveat(model: Model, sha256: str) -> str:
    """Say what weights under the name of the demo's model are, by the SHA-256 of their file."""
    if model.shipped and sha256 != sha256_file(model.shipped):
        return "unpublished weights of another origin, under the name of the demo's model"
    return "random numbers, not the published weights of any model: these vectors mean nothing"


def read_manifest(path: Path, of: str = "") -> Manifest:
    """Return the manifest of a weights folder, or a campaign's record (.json) of one. WeightsError,
    with what to do, when it is missing or damaged, or not `of` this model.
    """
    kind = "a manifest of weights"
    if path.suffix == ".json":
        manifest = read_sealed(path, Manifest, kind, error=WeightsError)
    else:
        remedy = WEIGHTS_AGAIN.format(path)
        if not (path / SELF_TEST).is_file():  # it is somebody else's
            remedy = "name a campaign's weights.json, or the folder that `plm-embed weights` made"
        manifest = read_sealed(path / MANIFEST, Manifest, kind, remedy, WeightsError)
        manifest = replace(manifest, folder=str(path))
    if of and manifest.model != of:
        raise WeightsError(f"{path} holds the weights of {manifest.model}, not of {of}", path=path)
    return manifest


def read_record(folder: Path) -> Manifest | None:
    """Return the campaign's record in its model's folder; None when there is none. WeightsError
    when damaged.
    """
    return read_manifest(folder / RECORD) if (folder / RECORD).exists() else None


def load(folder: Path, *, self_test: bool = False) -> tuple[Manifest, Tensors, Tensors | None]:
    """Load the manifest and the tensors of a weights folder, in main memory one by one as they are
    asked for, and those of the head of the language model; None if it has none.

    Each SHA-256 is checked, that of the golden vectors for a `self_test` alone, and the file that
    was checked stays open: what replaces it later is not read. Raises WeightsError, with what to
    run, when one differs from the manifest.
    """
    manifest, opened = read_manifest(folder), dict[str, Tensors]()
    for name, sha256 in manifest.digests.items():
        if name == SELF_TEST and not self_test:
            continue
        path, problem = folder / name, "is missing"
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                if digest == sha256:
                    if name != SELF_TEST:
                        opened[name] = Tensors(Path(f"/dev/fd/{file.fileno()}"))  # the checked one
                    continue
            problem = f"has SHA-256 {digest}, its manifest says {sha256}: damaged, or replaced"
        raise WeightsError(f"{path} {problem}", remedy=WEIGHTS_AGAIN.format(folder), path=path)
    return manifest, opened[TENSORS], opened.get(HEAD)


def write(path: Path, tensors: Mapping[str, Stored]) -> str:
    """Write a safetensors file, tensor by tensor, and return its SHA-256. Its bytes depend on
    nothing but the tensors, and are those that the format's own library writes. Raises ValueError
    for numbers that are not finite.
    """
    import torch

    kinds = list(_DTYPES)
    order = sorted(tensors, key=lambda name: (kinds.index(tensors[name].dtype), name))
    header, end = {}, 0
    for name in order:
        shape, dtype, _ = tensors[name]
        start, end = end, end + math.prod(shape) * getattr(torch, dtype).itemsize
        header[name] = {
            "dtype": _DTYPES[dtype],
            "shape": list(shape),
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
            tensor = tensors[name].read().contiguous()
            if not torch.stack(torch.aminmax(tensor)).isfinite().all():  # takes no copy
                raise ValueError(f"NaN or infinite numbers in {name}")
            content = tensor.flatten().view(torch.uint8).numpy().data
            digest.update(content)
            file.write(content)
    return digest.hexdigest()
