"""Weights adopted or downloaded once: checked, converted, compared with the published SHA-256.

They lie in a cache that campaigns, `plm-embed run` and Python share, in a folder for each content:
what is right in it is never written again, and it never becomes other weights. To see that it is
right takes no torch, which loads for a second: what needs torch is imported where weights are made.
"""

import errno
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

from plm_embed.accuracy import FLOOR
from plm_embed.errors import PlmEmbedError, WeightsError, some_path
from plm_embed.io.files import exclusive, remove_abandoned, sha256_file, sync, temporary_prefix
from plm_embed.io.paths import cache_folder
from plm_embed.models.checkpoints import Files, files_of
from plm_embed.models.manifest import (
    MANIFEST,
    SELF_TEST,
    TENSORS,
    Manifest,
    Source,
    caveat,
    read_manifest,
    read_record_file,
    weights_again,
    write_manifest,
)
from plm_embed.models.own import model_of
from plm_embed.models.registry import Model

log = logging.getLogger(__name__)


def weights_cache() -> Path:
    """Return the cache: PLM_EMBED_WEIGHTS, or ~/.cache/plm-embed/weights (below XDG_CACHE_HOME)."""
    if folder := os.environ.get("PLM_EMBED_WEIGHTS"):
        return Path(folder).expanduser()
    return cache_folder() / "weights"


def prepare_cached(
    model: Model, source: Path | str | None = None, cache: Path | None = None
) -> Manifest:
    """Prepare weights in the cache, unless they are there, and return their record.

    `source` as in `prepare`. A folder is named after the model; of weights that come from files,
    after their content, too.
    """
    source = source or model.shipped
    files = files_of(Path(source).absolute(), model) if source else None
    content = f"-{files.sha256[:12]}" if files else ""
    folder = (cache or weights_cache()).absolute() / f"{model.name}{content}"
    try:
        return replace(prepare(model, files, folder), folder=str(folder))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise WeightsError(
            f"{folder}: {error.strerror or error}",
            path=folder,
            remedy="set PLM_EMBED_WEIGHTS, or weights_folder, to a folder that can be written",
        ) from error


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
        return prepare_cached(model, path)
    manifest = read_manifest(folder)
    if manifest.model != model.name:
        raise WeightsError(
            f"{folder} holds the weights of {manifest.model}, not of {model.name}", path=folder
        )
    return replace(manifest, folder=str(folder))


def prepared_folder(weights: Path) -> Path:
    """Return the folder of prepared weights: `weights` itself, or the one that a campaign's record
    names, which is made again if it is gone. WeightsError when it does not hold the weights of the
    record.
    """
    if weights.is_dir():
        return weights
    record = read_record_file(weights)
    folder = Path(record.folder or "")
    if (folder / MANIFEST).is_file():
        manifest = read_manifest(folder)
    else:
        cache = folder.parent if record.folder else None
        model = model_of(record.model, record.source.path)
        manifest = prepare_cached(model, record.source.path, cache)
        folder = Path(manifest.folder or "")
    if manifest.weights_sha256 != record.weights_sha256:
        raise WeightsError(
            f"{folder / MANIFEST}: not the weights that {weights} names",
            path=folder,
            remedy=weights_again(folder),
        )
    return folder


def with_sha256(model: str, sha256: str) -> Path | None:
    """Return the folder in the cache that holds these very weights of a model, if there is one."""
    for path in weights_cache().glob(f"{model}*/{MANIFEST}"):
        manifest = read_manifest(path.parent)
        if (manifest.model, manifest.weights_sha256) == (model, sha256):
            return path.parent
    return None


def prepare(model: Model, source: Files | Path | str | None, output: Path) -> Manifest:
    """Make `output` a weights folder of `model` from `source`: the authors' file or a Hugging Face
    folder (config.json, files of tensors); without one from the shipped file, or a download.

    Does nothing when `output` is intact and made from the same source. Returns its manifest, with
    the source that was named here, for equal tensors may have come from others. Raises WeightsError
    when the source cannot be read, is not `model`, or is not what `output` holds. Of several
    processes with one `output`, one works and the others wait for it.
    """
    source = source or model.shipped
    if isinstance(source, Path | str):
        source = files_of(Path(source).absolute(), model)
    if manifest := _intact(model, source, output):
        return manifest
    with exclusive(output):
        remove_abandoned(output)
        if manifest := _intact(model, source, output):  # another process made it meanwhile
            return manifest
        if source:
            return _convert(model, source, output, {"path": str(source.source)})
        from plm_embed.models.download import download

        folder = output / "download"
        try:
            files = files_of(download(model, folder), model)
            return _convert(model, files, output, {"url": model.address})
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # all that is used is in model.safetensors


def _intact(model: Model, files: Files | None, output: Path) -> Manifest | None:
    """Return the manifest of a weights folder that was made from these files, or without any from
    the published ones, and is what the manifest says. Log why it is not.
    """
    manifest = _manifest(output)
    if not manifest or manifest.model != model.name:
        return None
    source = manifest.source
    if files and source.sha256 != files.sha256:
        return None
    if not files and source.url != model.address and manifest.published != "sha256":
        return None
    digests = {TENSORS: manifest.weights_sha256, SELF_TEST: manifest.self_test_sha256}
    damaged = [
        name
        for name, digest in digests.items()
        if not (output / name).is_file() or sha256_file(output / name) != digest
    ]
    if damaged:
        log.info("%s: %s missing or damaged: made again", output, " and ".join(damaged))
        return None
    if not FLOOR.keys() <= (manifest.roundings or {}).keys():  # a dtype is not measured
        log.info("%s: prepared by an earlier version: completed", output)
        return None
    log.info("%s: %s is already there and intact", output, manifest.model)
    if files:
        source = Source(source.layout, files.sha256, path=str(files.source))
    return replace(manifest, source=source)


def _manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a weights folder, if there is a whole one."""
    try:
        return read_manifest(folder)
    except PlmEmbedError:
        return None


def _convert(model: Model, files: Files, output: Path, origin: dict[str, str]) -> Manifest:
    """Write the weights folder `output` from the files of a source."""
    (place,) = origin.values()
    published = {files.digests[path] for path in files.tensors} <= set(model.sha256)
    if "url" in origin and model.sha256 and not published:
        raise WeightsError(
            f"weights: the download from {place} was not used: its SHA-256 is not the published "
            "one\nRun again; or download the file yourself and name it as `weights`"
        )
    held = _manifest(output)
    from plm_embed.models import checkpoints, weights

    checkpoint = checkpoints.read(files, model, published=published)
    output.mkdir(parents=True, exist_ok=True)
    tensors, temporary = output / TENSORS, output / f"{temporary_prefix()}{TENSORS}"
    try:
        weights_sha256 = weights.write(temporary, checkpoint.tensors, checkpoint.kinds)
        if held and (held.model, held.weights_sha256, held.token_dropout) != (
            (model.name, weights_sha256, checkpoint.token_dropout)
        ):
            raise WeightsError(
                f"{output} holds other weights ({held.model}, SHA-256 {held.weights_sha256[:12]}) "
                f"than {place} ({model.name}, {weights_sha256[:12]}). Campaigns may share them, "
                f"so they are not replaced.\n"
                f"Choose another folder, or delete {output} if nothing needs it.",
                path=output,
            )
        if not tensors.is_file() or sha256_file(tensors) != weights_sha256:
            sync(temporary)
            temporary.replace(tensors)
    except ValueError as error:
        raise WeightsError(
            f"weights: {files.source} is not a complete {model.name}: it holds {error}.",
            path=files.source,
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
    source = Source(checkpoint.layout, files.sha256, **origin)
    manifest = Manifest(
        model=model.name,
        architecture=model.architecture,
        layers=model.layers,
        dim=model.dim,
        heads=model.heads,
        max_residues=model.max_residues,
        token_dropout=checkpoint.token_dropout,
        license=model.license,
        weights_sha256=weights_sha256,
        bytes=tensors.stat().st_size,
        source=source,
        attention_dim=model.attention_dim or None,
        tokenizer_sha256=files.digests[files.tokenizer] if files.tokenizer else None,
        tokens_sha256=model.family.tokens_of(checkpoint.tensors).sha256 or None,
        published="sha256" if published else "no",
    )
    if held and (held.published == "sha256" or not published):
        manifest = held  # the tensors are the same: what is known of them stays known
    manifest = seal(output, manifest)
    log.info(
        "%s: %s from %s, %.3f GB, SHA-256 %s",
        *(output, model.name, place, manifest.bytes / 1e9, weights_sha256),
    )
    if doubt := caveat(model.name, manifest):
        log.warning("weights of %s: %s", model.name, doubt)
    return replace(manifest, source=source)  # as it was named here


def seal(folder: Path, manifest: Manifest) -> Manifest:
    """Complete a weights folder, which has its tensors: measure what rounding does to them, write
    the self-test's golden vectors, and last the manifest.
    """
    from plm_embed.inference import self_test
    from plm_embed.models.weights import stored_tensors

    manifest = self_test.measure(folder, manifest, stored_tensors(folder / TENSORS))
    write_manifest(folder / MANIFEST, manifest)
    return manifest
