"""Weights adopted or downloaded once: checked, converted, compared with the published SHA-256.

They lie in a cache that campaigns, `plm-embed run` and Python share, in a folder for each content,
which never becomes other weights. To see that it is whole takes no torch, which loads for a second:
what needs torch is imported where weights are made.
"""

import errno
import logging
import os
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from plm_embed.accuracy import FLOOR
from plm_embed.errors import WeightsError, some_path
from plm_embed.io.files import atomic_path, cache_folder, exclusive, remove_abandoned, sha256_file
from plm_embed.models import checkpoints, weights
from plm_embed.models.checkpoints import Files, files_of, model_of
from plm_embed.models.download import download
from plm_embed.models.registry import Model
from plm_embed.models.weights import (
    HEAD,
    MANIFEST,
    SELF_TEST,
    TENSORS,
    WEIGHTS_AGAIN,
    Manifest,
    Source,
    Tensors,
    caveat,
    read_manifest,
)
from plm_embed.wording import some

log = logging.getLogger(__name__)
DOWNLOAD = "download"
"""A folder within that of the weights, until they are converted."""


def weights_cache() -> Path:
    """Return the cache: PLM_EMBED_WEIGHTS, or ~/.cache/plm-embed/weights (below XDG_CACHE_HOME)."""
    if folder := os.environ.get("PLM_EMBED_WEIGHTS"):
        return Path(folder).expanduser()
    return cache_folder() / "weights"


def with_sha256(model: str, sha256: str) -> Path | None:
    """Return the folder in the cache that holds these very weights of a model, if there is one."""
    for path in weights_cache().glob(f"{model}*/{MANIFEST}"):
        manifest = read_manifest(path.parent)
        if (manifest.model, manifest.weights_sha256) == (model, sha256):
            return path.parent
    return None


def prepared_weights(model: Model, weights: str | Path | None, *, scores: bool = False) -> Manifest:
    """Return the record of a model's prepared weights, with their folder; make them if there are
    none yet.

    `weights` is what `prepared` or `prepare` take; None means the published ones, whose folder in
    the cache is not checked here: damage is noticed when it is read. WeightsError when it holds
    another model, or cannot be had.
    """
    source = None if weights is None else some_path("weights", weights).absolute()
    path = source or weights_cache() / model.name
    if path.suffix != ".json" and not (path / MANIFEST).is_file():
        return prepare(model, source, scores=scores)
    manifest = prepared(path, of=model.name, scores=scores)
    _check_shape(model, manifest)
    return manifest


def prepared(weights: Path, *, of: str = "", scores: bool = False) -> Manifest:
    """Return the record, with its folder, of prepared weights: `weights` is the folder, or a
    campaign's record (weights.json), whose folder is made again if it is gone.

    `scores`: with the head of the language model. One that an earlier version left out is taken
    from their checkpoint, if that is still there or can be downloaded. WeightsError where it cannot
    be had, and for other weights than those of the record, or not `of` this model.
    """
    manifest = read_manifest(weights, of)
    if weights.suffix == ".json":
        record, folder = manifest, manifest.path
        if (folder / MANIFEST).is_file():
            manifest = read_manifest(folder)
        else:
            source, cache = record.source.path, folder.parent if record.folder else None
            manifest = prepare(model_of(record.model, source), source, cache=cache)
        if manifest.weights_sha256 != record.weights_sha256:
            raise WeightsError(
                f"{manifest.path / MANIFEST}: not the weights that {weights} names",
                path=manifest.path,
                remedy=WEIGHTS_AGAIN.format(manifest.path),
            )
    if scores and manifest.head_sha256 is None:
        source = manifest.source.path
        if source and not Path(source).exists():
            raise _headless(manifest.path)
        return prepare(model_of(manifest.model, source), source, manifest.path, scores=True)
    return manifest


def prepare(
    model: Model,
    source: Path | str | None = None,
    output: Path | None = None,
    *,
    cache: Path | None = None,
    scores: bool = False,
) -> Manifest:
    """Make a weights folder of `model` from `source`: the authors' file or a Hugging Face folder
    (config.json, files of tensors); without one from the shipped file, or a download. It is
    `output`, or else lies in the cache, named after the model, and of weights that come from files
    after their content, too.

    Does nothing when it is intact and made from the same source, with the head of the language
    model if `scores` are asked for. Returns its manifest, with the place of the source that was
    named here. Raises WeightsError when the source cannot be read, is not `model`, lacks a head for
    `scores`, or is not what `output` holds. Of several processes with one folder, one works and the
    others wait for it.
    """
    source = source or model.shipped
    files = files_of(Path(source).absolute(), model) if source else None
    content = f"-{files.sha256[:12]}" if files else ""
    folder = (output or (cache or weights_cache()) / f"{model.name}{content}").absolute()
    others = {path.name for path in folder.glob("[!.]*")} - {DOWNLOAD}
    ours = SELF_TEST in others or {MANIFEST} <= others <= {MANIFEST, TENSORS, HEAD}
    if output and others and not ours:
        words = f"{folder}: holds other files: {some(sorted(others))}"
        remedy = "choose a new folder, or delete them if an interrupted run left them"
        raise WeightsError(words, path=folder, remedy=remedy)
    try:
        with exclusive(folder), ExitStack() as at_the_end:
            manifest = _intact(model, files, folder, scores)
            if manifest is None:
                remove_abandoned(folder)
                url = "" if files else model.address
                if files is None:
                    place = folder / DOWNLOAD  # model.safetensors will have all of it
                    at_the_end.callback(shutil.rmtree, place, ignore_errors=True)
                    files = files_of(download(model, place), model)
                manifest = _convert(model, files, folder, url)
    except OSError as error:
        if output or error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise WeightsError(
            f"{folder}: {error.strerror or error}",
            path=folder,
            remedy="set PLM_EMBED_WEIGHTS, or weights_folder, to a folder that can be written",
        ) from error
    if scores and manifest.head_sha256 is None:
        raise _headless(folder)
    return manifest


def _headless(folder: Path) -> WeightsError:
    return WeightsError(
        f"{folder}: has no head of the language model, which scores need: an earlier version "
        "prepared it, or its checkpoint has none",
        remedy=f"delete {folder} and run again, with the weights as they are published",
    )


def _intact(model: Model, files: Files | None, folder: Path, scores: bool) -> Manifest | None:
    """Return the manifest of a weights folder that is what it says; None if it has to be made.
    WeightsError when it was made from other files than these, or without any than the published
    ones.
    """
    try:
        manifest = read_manifest(folder) if (folder / MANIFEST).exists() else None
    except WeightsError:  # it is damaged
        manifest = None
    if manifest is None:
        return None
    source = manifest.source
    if files:
        same = source.sha256 == files.sha256
        source = replace(source, path=str(files.source), url=None)
    else:
        same = source.url == model.address or manifest.published == "sha256"
    if manifest.model != model.name or not same:
        raise WeightsError(
            f"{folder} holds other weights ({manifest.model}, SHA-256 "
            f"{manifest.weights_sha256[:12]}) than {files.source if files else model.address}. "
            "Campaigns may share them, so they are not replaced",
            path=folder,
            remedy=f"choose another folder, or delete {folder} if nothing needs it",
        )
    _check_shape(model, manifest)
    whole = all(
        (folder / name).is_file() and sha256_file(folder / name) == digest
        for name, digest in manifest.digests.items()
    )
    complete = manifest.head_sha256 or not (scores and model.family.head)
    if not (whole and complete and FLOOR.keys() <= (manifest.roundings or {}).keys()):
        log.info("%s: damaged, or of an earlier version: made again", folder)
        return None
    log.info("%s: %s is already there and intact", folder, manifest.model)
    return replace(manifest, source=source)


def _check_shape(model: Model, manifest: Manifest) -> None:
    """Raise WeightsError where prepared weights have another shape than a model's entry."""
    if (shape := manifest.as_model.shape) != model.shape:
        folder = manifest.path
        raise WeightsError(
            f"{folder} holds {model.name} as {shape}, but models.yaml has {model.shape}",
            path=folder,
            remedy=f"correct models.yaml, or delete {folder} and run again",
        )


def _convert(model: Model, files: Files, folder: Path, url: str) -> Manifest:
    """Write the tensors of a source, which came from `url`, and everything about them."""
    published = {files.digests[path] for path in files.tensors} <= set(model.sha256)
    if url and model.sha256 and not published:
        raise WeightsError(
            f"weights: the download from {url} was not used: its SHA-256 is not the published "
            "one\nRun again; or download the file yourself and name it as `weights`"
        )
    from plm_embed.inference import golden_vectors

    checkpoint = checkpoints.read(files, model, published=published)
    digests: dict[str, str] = {}
    try:
        for name, tensors in ((TENSORS, checkpoint.tensors), (HEAD, checkpoint.head)):
            if tensors:
                with atomic_path(folder / name) as temporary:
                    digests[name] = weights.write(temporary, tensors)
    except ValueError as error:
        words = f"weights: {files.source} is not a complete {model.name}: it holds {error}."
        raise WeightsError(words, path=files.source) from None
    origin = {"url": url} if url else {"path": str(files.source)}
    manifest = Manifest.of(
        model,
        Source(checkpoint.layout, files.sha256, **origin),
        token_dropout=checkpoint.token_dropout,
        weights_sha256=digests[TENSORS],
        bytes=(folder / TENSORS).stat().st_size,
        tokenizer_sha256=files.digests[files.tokenizer] if files.tokenizer else None,
        tokens_sha256=model.family.tokenizer.within(Tensors(folder / TENSORS)).sha256 or None,
        published="sha256" if published else "no",
        head_sha256=digests.get(HEAD),
    )
    manifest = golden_vectors.seal(folder, manifest)
    log.info(
        "%s: %s from %s, %.3f GB, SHA-256 %s",
        *(folder, model.name, url or files.source, manifest.bytes / 1e9, manifest.weights_sha256),
    )
    if doubt := caveat(model.name, manifest):
        log.warning("weights of %s: %s", model.name, doubt)
    return manifest
