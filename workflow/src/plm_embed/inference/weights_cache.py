"""The cache of prepared weights, which campaigns, `plm-embed run` and Python share: a folder for
each content, so that nothing in it ever becomes other weights.
"""

import errno
import os
from dataclasses import replace
from pathlib import Path

from plm_embed.errors import WeightsError, some_path
from plm_embed.inference.prepare_weights import content_of, prepare
from plm_embed.io.paths import cache_folder
from plm_embed.models.manifest import (
    MANIFEST,
    Manifest,
    read_manifest,
    read_record_file,
    weights_again,
)
from plm_embed.models.model import Model
from plm_embed.models.registry import find_model
from plm_embed.models.sources.fetch_weights import Naming, in_config, in_python


def weights_cache() -> Path:
    """Return the cache: PLM_EMBED_WEIGHTS, or ~/.cache/plm-embed/weights (below XDG_CACHE_HOME)."""
    if named := os.environ.get("PLM_EMBED_WEIGHTS"):
        return Path(named).expanduser()
    return cache_folder() / "weights"


def prepare_cached(
    model: Model,
    source: Path | str | None = None,
    *,
    cache: Path | None = None,
    naming: Naming = in_config,
) -> Manifest:
    """Prepare weights in the cache, unless they are there, and return their record.

    `source` as in `prepare`. A download is called by its model; what comes from files, by their
    content.
    """
    source = source or model.shipped
    cache = (cache or weights_cache()).absolute()
    named = f"-{content_of(model, source)[:12]}" if source else ""
    folder = cache / f"{model.name}{named}"
    try:
        manifest = prepare(model, source, folder, naming=naming)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise WeightsError(
            f"{folder}: {error.strerror or error}",
            path=folder,
            remedy="set PLM_EMBED_WEIGHTS, or weights_folder, to a folder that can be written",
        ) from error
    return replace(manifest, folder=str(folder))


def prepared_folder(weights: Path) -> Path:
    """Return the folder of prepared weights that is named by itself or by a campaign's record, made
    anew if it is gone. WeightsError when it does not hold the weights of the record.
    """
    if weights.is_dir():
        return weights
    record = read_record_file(weights)
    folder = Path(record.folder or "")
    held: Manifest | None = read_manifest(folder) if (folder / MANIFEST).is_file() else None
    if held is None:
        cache = folder.parent if record.folder else None
        held = prepare_cached(find_model(record.model), record.source.path, cache=cache)
        folder = Path(held.folder or "")
    if held.weights_sha256 != record.weights_sha256:
        raise WeightsError(
            f"{folder / MANIFEST}: not the weights that {weights} names",
            path=folder,
            remedy=weights_again(folder),
        )
    return folder


def prepared_weights(model: Model, weights: str | Path | None) -> Path:
    """Return the folder of prepared weights of a model, made when there is none yet.

    `weights` is such a folder, a campaign's record (weights.json), or what `weights:` of the
    configuration may be; None stands for a download. WeightsError when it holds another model, or
    cannot be had.
    """
    named = None if weights is None else some_path("weights", weights).absolute()
    if named and ((named / MANIFEST).is_file() or named.suffix == ".json"):
        folder = prepared_folder(named)
    elif not named and (weights_cache() / model.name / MANIFEST).is_file():
        folder = weights_cache() / model.name  # what was damaged since is found when it is read
    else:
        folder = Path(prepare_cached(model, named, naming=in_python).folder or "")
    if (there := read_manifest(folder).model) != model.name:
        raise WeightsError(f"{folder} holds {there}, not {model.name}", path=folder)
    return folder


def with_sha256(model: str, sha256: str) -> Path | None:
    """Return the folder in the cache that holds these very weights of a model, if there is one."""
    for manifest in weights_cache().glob(f"{model}*/{MANIFEST}"):
        held = read_manifest(manifest.parent)
        if (held.model, held.weights_sha256) == (model, sha256):
            return manifest.parent
    return None
