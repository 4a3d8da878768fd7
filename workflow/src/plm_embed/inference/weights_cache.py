"""Weights for Python, which names no folder: where prepared ones are kept between calls."""

import errno
import hashlib
import os
from pathlib import Path

from plm_embed.errors import WeightsError, some_path
from plm_embed.inference.prepare_weights import prepare
from plm_embed.io.paths import cache_folder
from plm_embed.models.manifest import MANIFEST, read_manifest
from plm_embed.models.model import Model
from plm_embed.models.sources.fetch_weights import in_python


def weights_cache() -> Path:
    """Where models lie that were downloaded or converted without a campaign: PLM_EMBED_WEIGHTS, or
    ~/.cache/plm-embed/weights (below XDG_CACHE_HOME).
    """
    if named := os.environ.get("PLM_EMBED_WEIGHTS"):
        return Path(named).expanduser()
    return cache_folder() / "weights"


def prepared_weights(model: Model, weights: str | Path | None) -> Path:
    """The weights folder of a model, made when there is none yet.

    `weights` is a weights folder, a folder of them (a campaign's `weights_folder`), or what
    `weights:` of the configuration may be; None stands for the cache, and a download. WeightsError
    when it holds another model, or cannot be had.
    """
    if weights is None:
        folder = weights_cache() / model.name
        # only downloads lie there under this name; what was damaged since is found when it is read
        return folder if (folder / MANIFEST).is_file() else _prepared(model, None, folder)
    given = some_path("weights", weights).absolute()
    for folder in (given, given / model.name):
        if (folder / MANIFEST).is_file():
            if (there := read_manifest(folder).model) != model.name:
                raise WeightsError(f"{folder} holds {there}, not {model.name}", path=folder)
            return folder
    # fine-tuned weights of one model lie side by side
    folder = weights_cache() / f"{model.name}-{hashlib.sha256(bytes(given)).hexdigest()[:8]}"
    return _prepared(model, given, folder)


def _prepared(model: Model, source: Path | None, folder: Path) -> Path:
    try:
        prepare(model, source, folder, naming=in_python)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise WeightsError(
            f"{folder}: {error.strerror or error}",
            path=folder,
            remedy="set PLM_EMBED_WEIGHTS to a folder that can be written",
        ) from error
    return folder
