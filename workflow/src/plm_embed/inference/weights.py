"""Weights adopted or downloaded once: checked, converted, compared with the published SHA-256.

They lie in a cache that campaigns, `plm-embed run` and Python share, in a folder for each content,
which never becomes other weights. To see that it is whole takes no torch, which loads for a second:
what needs torch is imported where weights are made.
"""

import errno
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

from plm_embed.accuracy import FLOOR
from plm_embed.errors import WeightsError, some_path
from plm_embed.io.files import atomic_path, cache_folder, exclusive, remove_abandoned, sha256_file
from plm_embed.models import checkpoints, weights
from plm_embed.models.checkpoints import Files, files_of, model_of
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

log = logging.getLogger(__name__)


def weights_cache() -> Path:
    """Return the cache: PLM_EMBED_WEIGHTS, or ~/.cache/plm-embed/weights (below XDG_CACHE_HOME)."""
    if folder := os.environ.get("PLM_EMBED_WEIGHTS"):
        return Path(folder).expanduser()
    return cache_folder() / "weights"


def prepared_weights(model: Model, weights: str | Path | None) -> Manifest:
    """Return the record of a model's prepared weights, with their folder; make them if there are
    none yet.

    `weights` is such a folder, a campaign's record (weights.json), or what `weights:` of the
    configuration may be; None means the published ones. WeightsError when it holds another model,
    or cannot be had.
    """
    path = None if weights is None else some_path("weights", weights).absolute()
    if path and ((path / MANIFEST).is_file() or path.suffix == ".json"):
        folder = prepared_folder(path)
    elif not path and (weights_cache() / model.name / MANIFEST).is_file():
        folder = weights_cache() / model.name  # damage is noticed when it is read
    else:
        return prepare(model, path)
    manifest = read_manifest(folder)
    if manifest.model != model.name:
        raise WeightsError(
            f"{folder} holds the weights of {manifest.model}, not of {model.name}", path=folder
        )
    _check_shape(model, manifest, folder)
    return manifest


def prepared_folder(weights: Path) -> Path:
    """Return the folder of prepared weights: `weights` itself, or the one that a campaign's record
    names, which is made again if it is gone. WeightsError when it does not hold the weights of the
    record.
    """
    if weights.is_dir():
        return weights
    record = read_manifest(weights)
    folder = Path(record.folder or "")
    if (folder / MANIFEST).is_file():
        manifest = read_manifest(folder)
    else:
        cache = folder.parent if record.folder else None
        model = model_of(record.model, record.source.path)
        manifest = prepare(model, record.source.path, cache=cache)
        folder = Path(manifest.folder or "")
    if manifest.weights_sha256 != record.weights_sha256:
        raise WeightsError(
            f"{folder / MANIFEST}: not the weights that {weights} names",
            path=folder,
            remedy=WEIGHTS_AGAIN.format(folder),
        )
    return folder


def with_head(manifest: Manifest) -> Manifest:
    """Return the record of prepared weights that can give scores. A head that an earlier version
    left out is taken from their checkpoint, if that is still there or can be downloaded.

    WeightsError where there is no head to be had.
    """
    path, folder = manifest.source.path, Path(manifest.folder or "")
    if manifest.head_sha256 is None and (path is None or Path(path).exists()):
        manifest = prepare(model_of(manifest.model, path), path, folder, scores=True)
    if manifest.head_sha256 is None:
        raise WeightsError(
            f"{folder}: has no head of the language model, which scores need: an earlier version "
            "prepared it, or its checkpoint has none",
            remedy=f"delete {folder} and run again, with the weights as they are published",
        )
    return manifest


def with_sha256(model: str, sha256: str) -> Path | None:
    """Return the folder in the cache that holds these very weights of a model, if there is one."""
    for path in weights_cache().glob(f"{model}*/{MANIFEST}"):
        manifest = read_manifest(path.parent)
        if (manifest.model, manifest.weights_sha256) == (model, sha256):
            return path.parent
    return None


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
    named here. Raises WeightsError when the source cannot be read, is not `model`, or is not what
    `output` holds. Of several processes with one folder, one works and the others wait for it.
    """
    source = source or model.shipped
    files = files_of(Path(source).absolute(), model) if source else None
    content = f"-{files.sha256[:12]}" if files else ""
    folder = output or (cache or weights_cache()).absolute() / f"{model.name}{content}"
    try:
        with exclusive(folder):
            if manifest := _intact(model, files, folder, scores):
                return manifest
            remove_abandoned(folder)
            if files:
                return _convert(model, files, folder, {"path": str(files.source)})
            from plm_embed.models.download import download

            downloaded = folder / "download"
            try:
                files = files_of(download(model, downloaded), model)
                return _convert(model, files, folder, {"url": model.address})
            finally:
                shutil.rmtree(downloaded, ignore_errors=True)  # model.safetensors has all of it
    except OSError as error:
        if output or error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise WeightsError(
            f"{folder}: {error.strerror or error}",
            path=folder,
            remedy="set PLM_EMBED_WEIGHTS, or weights_folder, to a folder that can be written",
        ) from error


def _intact(model: Model, files: Files | None, output: Path, scores: bool) -> Manifest | None:
    """Return the manifest of a weights folder that is what it says; None if it has to be made.
    WeightsError when it was made from other files than these, or without any than the published
    ones.
    """
    try:
        manifest = read_manifest(output) if (output / MANIFEST).exists() else None
    except WeightsError:
        return None
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
            f"{output} holds other weights ({manifest.model}, SHA-256 "
            f"{manifest.weights_sha256[:12]}) than {files.source if files else model.address}. "
            "Campaigns may share them, so they are not replaced",
            path=output,
            remedy=f"choose another folder, or delete {output} if nothing needs it",
        )
    _check_shape(model, manifest, output)
    digests = {TENSORS: manifest.weights_sha256, SELF_TEST: manifest.self_test_sha256}
    digests |= {HEAD: manifest.head_sha256} if manifest.head_sha256 else {}
    whole = all(
        (output / name).is_file() and sha256_file(output / name) == digest
        for name, digest in digests.items()
    )
    complete = manifest.head_sha256 or not (scores and model.family.head)
    if not (whole and complete and FLOOR.keys() <= (manifest.roundings or {}).keys()):
        log.info("%s: damaged, or of an earlier version: made again", output)
        return None
    log.info("%s: %s is already there and intact", output, manifest.model)
    return replace(manifest, source=source)


def _check_shape(model: Model, manifest: Manifest, folder: Path) -> None:
    """Raise WeightsError where prepared weights have another shape than a model's entry."""
    prepared = manifest.architecture, manifest.layers, manifest.dim, manifest.heads, manifest.inner
    if prepared != (model.family.architecture, model.layers, model.dim, model.heads, model.inner):
        raise WeightsError(
            f"{folder} holds {model.name} as {manifest.as_model.shape}, but models.yaml has "
            f"{model.shape}",
            path=folder,
            remedy=f"correct models.yaml, or delete {folder} and run again",
        )


def _convert(model: Model, files: Files, output: Path, origin: dict[str, str]) -> Manifest:
    """Write the weights folder `output` from the files of a source."""
    (place,) = origin.values()
    published = {files.digests[path] for path in files.tensors} <= set(model.sha256)
    if "url" in origin and model.sha256 and not published:
        raise WeightsError(
            f"weights: the download from {place} was not used: its SHA-256 is not the published "
            "one\nRun again; or download the file yourself and name it as `weights`"
        )
    from plm_embed.inference import self_test

    checkpoint = checkpoints.read(files, model, published=published)
    digests: dict[str, str] = {}
    try:
        for name, tensors in ((TENSORS, checkpoint.tensors), (HEAD, checkpoint.head)):
            if tensors:
                with atomic_path(output / name) as temporary:
                    digests[name] = weights.write(temporary, tensors)
    except ValueError as error:
        raise WeightsError(
            f"weights: {files.source} is not a complete {model.name}: it holds {error}.",
            path=files.source,
        ) from None
    manifest = Manifest(
        model=model.name,
        architecture=model.family.architecture,
        layers=model.layers,
        dim=model.dim,
        heads=model.heads,
        max_residues=model.family.max_residues,
        token_dropout=checkpoint.token_dropout,
        license=model.license,
        weights_sha256=digests[TENSORS],
        bytes=(output / TENSORS).stat().st_size,
        source=Source(checkpoint.layout, files.sha256, **origin),
        attention_dim=model.attention_dim or None,
        tokenizer_sha256=files.digests[files.tokenizer] if files.tokenizer else None,
        tokens_sha256=model.family.tokenizer.within(Tensors(output / TENSORS)).sha256 or None,
        published="sha256" if published else "no",
        head_sha256=digests.get(HEAD),
    )
    manifest = self_test.seal(output, manifest)
    log.info(
        "%s: %s from %s, %.3f GB, SHA-256 %s",
        *(output, model.name, place, manifest.bytes / 1e9, manifest.weights_sha256),
    )
    if doubt := caveat(model.name, manifest):
        log.warning("weights of %s: %s", model.name, doubt)
    return manifest
